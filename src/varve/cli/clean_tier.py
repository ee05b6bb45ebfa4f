"""What `varve clean` tells of the cold tier: what left the local disk for it, and what expired."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varve.tiering.tier import TierPass


def tier_document(found: "TierPass") -> dict[str, Any]:
    """A pass over both tiers as JSON has it."""
    return {
        "moved": [
            {
                "base_offset": one.base_offset,
                "next_offset": one.next_offset,
                "size": one.size,
                "rule": one.rule,
            }
            for one in found.moved.segments
        ],
        "expired": [
            {
                "base_offset": one.segment.base_offset,
                "next_offset": one.segment.next_offset,
                "size": one.segment.size,
                "reason": str(one.reason),
                "rule": one.rule,
            }
            for one in found.expiry.expired
        ],
        "removed_segments": found.expiry.removed_count,
    }


def tier_lines(found: "TierPass", would: str) -> Iterator[str]:
    """What was done to both tiers, or would be; nothing where nothing is."""
    moved, expiry = found.moved.segments, found.expiry
    if moved:
        yield (
            f"{_segments(len(moved))} {would}let go by the local disk, {found.moved.size:,} bytes "
            f"that the cold tier has; local records begin at offset {moved[-1].next_offset}"
        )
        yield f"local retention: {moved[-1].rule}"
    if expiry.expired:
        yield (
            f"{_segments(len(expiry.expired))} of the cold tier {would}expired, {expiry.size:,} "
            f"bytes; the log begins at offset {expiry.end_offset}"
        )
        for reason in dict.fromkeys(one.reason for one in expiry.expired):
            last = [one for one in expiry.expired if one.reason is reason][-1]
            yield f"{reason}: {last.rule}"
    if expiry.removed_count:
        yield f"objects of {_segments(expiry.removed_count)} {would}removed from the store"


def _segments(count: int) -> str:
    return f"{count} segment{'' if count == 1 else 's'}"
