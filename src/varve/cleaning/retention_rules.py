"""Which segments a log may let go, by age, by size, and behind its log start offset.

Invariant  only whole segments from the oldest on, none that reaches above the high watermark, and
           never an empty active segment. A log without `delete` in its policy loses only what lies
           behind its log start offset; so does one that is copied to the cold tier, where age and
           size are those of both tiers (`tiering.expiry`).
Threads    any; the decision is made on facts taken once and changes nothing.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from varve.cleaning.effective_time import RetentionTimestamp, retention_timestamp
from varve.cleaning.log_facts import LogFacts, SegmentFacts
from varve.cleaning.removals.removal import Reason
from varve.commit_log import TopicPartition

Predicate = Callable[[SegmentFacts], str | None]
"""The rule, in words, by which a segment may go; None where it must stay."""


@dataclass(frozen=True, slots=True)
class ExpiredSegment:
    """A segment that may go, and why; `records` is None until they were counted."""

    base_offset: int
    next_offset: int
    size: int
    reason: Reason
    rule: str
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """What retention lets go of one log: all before `before_offset`.

    With `takes_active` that is everything, and the log rolls first.
    """

    partition: TopicPartition
    before_offset: int
    segments: tuple[ExpiredSegment, ...]
    takes_active: bool

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "partition": str(self.partition), "size": self.size}


@dataclass(frozen=True, slots=True)
class Review:
    """What a retention pass finds: what may go, and whose timestamps were not believed.

    `overruled` lists, by base offset, those of the segments that the pass had to look at.
    """

    expiry: Expiry | None
    overruled: dict[int, RetentionTimestamp]


def review(facts: LogFacts, now_ms: int) -> Review:
    """Each check walks what the one before it left, oldest first, and stops at what must stay."""
    overruled: dict[int, RetentionTimestamp] = {}
    expired = _walk(facts, 0, Reason.BELOW_LOG_START, _below_log_start(facts))
    if "delete" in facts.settings.cleanup_policy and not facts.settings.copies_to_tier:
        start = len(expired)
        expired += _walk(facts, start, Reason.EXPIRED_SIZE, _beyond_size(facts, start))
        start = len(expired)
        by_time = _beyond_time(facts, now_ms, overruled)
        expired += _walk(facts, start, Reason.EXPIRED_TIME, by_time)
    if not expired:
        return Review(None, overruled)
    expiry = Expiry(
        partition=facts.partition,
        before_offset=expired[-1].next_offset,
        segments=tuple(expired),
        takes_active=len(expired) == len(facts.segments),
    )
    return Review(expiry, overruled)


def _walk(
    facts: LogFacts, start: int, reason: Reason, predicate: Predicate
) -> list[ExpiredSegment]:
    expired: list[ExpiredSegment] = []
    for segment in facts.segments[start:]:
        rule = predicate(segment) if may_go(facts, segment) else None
        if rule is None:
            break
        expired.append(
            ExpiredSegment(segment.base_offset, segment.next_offset, segment.size, reason, rule)
        )
    return expired


def may_go(facts: LogFacts, segment: SegmentFacts) -> bool:
    """Whether any check may take it: not above the high watermark, not empty and active."""
    is_empty_active = segment.is_active and segment.size == 0
    return facts.high_watermark >= segment.next_offset and not is_empty_active


def _below_log_start(facts: LogFacts) -> Predicate:
    def rule(segment: SegmentFacts) -> str | None:
        if segment.is_active or segment.next_offset > facts.log_start_offset:
            return None
        return f"it ends at {segment.next_offset}, and the log starts at {facts.log_start_offset}"

    return rule


def _beyond_size(facts: LogFacts, start: int) -> Predicate:
    limit = facts.settings.retention_bytes
    left = sum(segment.size for segment in facts.segments[start:])

    def rule(segment: SegmentFacts) -> str | None:
        nonlocal left
        if limit < 0 or left - segment.size < limit:
            return None
        left -= segment.size
        return f"{left} bytes are left without it, and retention.bytes={limit}"

    return rule


def _beyond_time(
    facts: LogFacts, now_ms: int, overruled: dict[int, RetentionTimestamp]
) -> Predicate:
    limit = facts.settings.retention_ms

    def rule(segment: SegmentFacts) -> str | None:
        if limit < 0:
            return None
        since = retention_timestamp(segment.read_times(), facts.settings)
        if since.is_rejected:
            overruled[segment.base_offset] = since
        age_ms = now_ms - since.ms
        if age_ms <= limit:
            return None
        note = f" ({since.note})" if since.note else ""
        return f"it is {age_ms} ms old by {since.source} time{note}, and retention.ms={limit}"

    return rule
