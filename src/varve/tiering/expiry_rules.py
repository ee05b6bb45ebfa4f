"""Which cold segments a log may let go: by age and size over both tiers, and behind its log start.

Invariant  whole segments from the oldest on; the walk ends at the first that must stay. Segments of
           a history that the log does not share are passed over.
Threads    any: the decision is made on values and changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from varve.cleaning.effective_time import retention_timestamp
from varve.cleaning.log_facts import SegmentTimes
from varve.cleaning.removals.removal import Reason
from varve.commit_log import LogSettings
from varve.tiering.cold_segment import ColdSegment
from varve.tiering.lineage import Epochs, is_in_lineage


@dataclass(frozen=True, slots=True)
class ColdLogFacts:
    """A log in two tiers at one moment; `total_bytes` counts each of its records once."""

    settings: LogSettings
    epochs: Epochs
    log_start_offset: int
    end_offset: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ExpiredColdSegment:
    """A segment that may go, and why."""

    segment: ColdSegment
    reason: Reason
    rule: str


def find_expired(
    facts: ColdLogFacts, segments: Iterable[ColdSegment], now_ms: int
) -> Iterator[ExpiredColdSegment]:
    """Those that may go, oldest first, of readable segments in the order of their offsets."""
    left = facts.total_bytes
    for segment in segments:
        if segment.end_offset < facts.log_start_offset:
            start = facts.log_start_offset
            rule = f"it ends at {segment.end_offset}, and the log starts at {start}"
            yield ExpiredColdSegment(segment, Reason.BELOW_LOG_START, rule)
            left -= segment.size
            continue
        if not is_in_lineage(segment, facts.epochs, log_end_offset=facts.end_offset):
            continue
        found = _find_rule(facts.settings, segment, left, now_ms)
        if found is None:
            return
        left -= segment.size
        yield ExpiredColdSegment(segment, *found)


def _find_rule(
    settings: LogSettings, segment: ColdSegment, left: int, now_ms: int
) -> tuple[Reason, str] | None:
    if "delete" not in settings.cleanup_policy:
        return None
    if settings.retention_ms >= 0:
        since = retention_timestamp(
            SegmentTimes(segment.max_timestamp, *segment.append_ms), settings
        )
        age_ms = now_ms - since.ms
        if age_ms > settings.retention_ms:
            note = f" ({since.note})" if since.note else ""
            return Reason.EXPIRED_TIME, (
                f"it is {age_ms} ms old by {since.source} time{note}, and "
                f"retention.ms={settings.retention_ms}"
            )
    if 0 <= settings.retention_bytes <= left - segment.size:
        return Reason.EXPIRED_SIZE, (
            f"{left - segment.size} bytes are left without it, and "
            f"retention.bytes={settings.retention_bytes}"
        )
    return None
