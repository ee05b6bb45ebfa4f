"""What `varve clean` tells of the cold tier: what left the local disk for it, and what expired."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varve.tiering.tier import TierPass


def tier_document(tier_pass: "TierPass") -> dict[str, Any]:
    """A pass over both tiers as JSON has it."""
    return {
        "moved": [
            {
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "size": segment.size,
                "rule": segment.rule,
            }
            for segment in tier_pass.moved.segments
        ],
        "expired": [
            {
                "base_offset": due.segment.base_offset,
                "next_offset": due.segment.next_offset,
                "size": due.segment.size,
                "reason": str(due.reason),
                "rule": due.rule,
            }
            for due in tier_pass.expiry.expired
        ],
        "removed_segments": tier_pass.expiry.removed_count,
    }


def tier_lines(tier_pass: "TierPass", would: str) -> Iterator[str]:
    """What was done to both tiers, or would be; nothing where nothing is."""
    moved, expiry = tier_pass.moved.segments, tier_pass.expiry
    if moved:
        yield (
            f"{_segments(len(moved))} {would}let go by the local disk, {tier_pass.moved.size:,} "
            "bytes "
            f"that the cold tier has; local records begin at offset {moved[-1].next_offset}"
        )
        yield f"local retention: {moved[-1].rule}"
    if expiry.expired:
        yield (
            f"{_segments(len(expiry.expired))} of the cold tier {would}expired, {expiry.size:,} "
            f"bytes; the log begins at offset {expiry.end_offset}"
        )
        for reason in dict.fromkeys(due.reason for due in expiry.expired):
            last = [due for due in expiry.expired if due.reason is reason][-1]
            yield f"{reason}: {last.rule}"
    if expiry.removed_count:
        yield f"objects of {_segments(expiry.removed_count)} {would}removed from the store"


def _segments(count: int) -> str:
    return f"{count} segment{'' if count == 1 else 's'}"
