"""Which part of a compacted log may be cleaned, how dirty it is, and whether it is due.

Invariant  whole segments only: neither the active segment, nor one that an undecided transaction
           or a record younger than `min.compaction.lag.ms` touches, nor one of a tiered topic that
           is not copied yet, nor anything behind those.
Threads    any; the decision is made on facts taken once.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from varve.cleaning.border import WAITS_FOR_COPY, Border
from varve.cleaning.effective_time import first_time, lag_time
from varve.cleaning.log_facts import LogFacts, look_steadily, observe
from varve.commit_log import Log, LogSettings, TopicPartition
from varve.foundation.settings import LONG_MAX


class Blocker(StrEnum):
    """What ends the part of a log that may be cleaned."""

    ACTIVE_SEGMENT = "active segment"
    LAST_STABLE_OFFSET = "last stable offset"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"
    COPY = "copy to object storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """What selection found of one log.

    `is_corrected` says that the checkpoint lay outside the log and `first_dirty` should replace
    it. `blocked_by` tells what ends the cleanable part at `first_uncleanable`, and
    `blocked_until_ms` when that ends by itself, None when it takes an event. `border` is that of
    the cold tier, None for a topic that has none.
    """

    partition: TopicPartition
    first_dirty: int
    is_corrected: bool
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    min_ratio: float
    delay_ms: int
    blocker: Blocker
    blocked_by: str
    blocked_until_ms: int | None
    border: Border | None = None

    @property
    def must_clean_now(self) -> bool:
        """Whether a record has waited longer than `max.compaction.lag.ms`."""
        return self.delay_ms > 0

    @property
    def is_due(self) -> bool:
        if self.clean_bytes + self.cleanable_bytes == 0:
            return False
        return self.is_forced or self.ratio > self.min_ratio

    @property
    def is_forced(self) -> bool:
        return self.must_clean_now and self.cleanable_bytes > 0

    @property
    def priority(self) -> tuple[bool, int, float]:
        """Orders logs that are due, the greatest first: broken promises, then dirt."""
        return (self.is_forced, self.delay_ms if self.is_forced else 0, self.ratio)

    @property
    def next_first_dirty(self) -> int:
        """The checkpoint once all that may be cleaned is clean.

        What was cleaned before it had to wait for its copy stays clean.
        """
        return max(self.first_dirty, self.first_uncleanable)

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "partition": str(self.partition),
            "must_clean_now": self.must_clean_now,
            "is_due": self.is_due,
        }


def select(
    log: Log,
    first_dirty: int | None,
    now_ms: int,
    settings: LogSettings | None = None,
    *,
    border: Border | None = None,
) -> Dirtiness:
    """How dirty a log is; `first_dirty` is its cleaner checkpoint, None without one.

    `settings` are the topic's, for a look at what others would give.
    """
    return look_steadily(
        log, lambda: select_facts(observe(log, settings), first_dirty, now_ms, border)
    )


def in_order(found: Iterable[Dirtiness]) -> list[Dirtiness]:
    """Those that are due, the most pressing first."""
    return sorted((one for one in found if one.is_due), key=lambda one: one.priority, reverse=True)


def select_facts(
    facts: LogFacts, checkpoint: int | None, now_ms: int, border: Border | None = None
) -> Dirtiness:
    first_dirty = facts.log_start_offset if checkpoint is None else checkpoint
    is_outside = not facts.log_start_offset <= first_dirty <= facts.end_offset
    if is_outside:
        first_dirty = facts.log_start_offset
    blocker, bound, until_ms = _uncleanable_bound(facts, first_dirty, now_ms, border)
    first_uncleanable = facts.find_segment(max(bound, first_dirty)).base_offset
    if border is not None:
        first_uncopied = facts.find_segment(border.copied_offset).base_offset
        first_uncleanable = min(first_uncleanable, first_uncopied)
    clean_bytes = sum(one.size for one in facts.segments if one.base_offset < first_dirty)
    first_counted = facts.find_segment(min(first_dirty, first_uncleanable)).base_offset
    cleanable_bytes = sum(
        one.size for one in facts.segments if first_counted <= one.base_offset < first_uncleanable
    )
    total = clean_bytes + cleanable_bytes
    return Dirtiness(
        partition=facts.partition,
        first_dirty=first_dirty,
        is_corrected=is_outside,
        first_uncleanable=first_uncleanable,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=cleanable_bytes / total if total else 0.0,
        min_ratio=facts.settings.min_cleanable_dirty_ratio,
        delay_ms=_compaction_delay_ms(facts, first_dirty, now_ms),
        blocker=blocker,
        blocked_by=_blocked_text(facts, blocker, bound, until_ms),
        blocked_until_ms=until_ms,
        border=border,
    )


def _uncleanable_bound(
    facts: LogFacts, first_dirty: int, now_ms: int, border: Border | None
) -> tuple[Blocker, int, int | None]:
    """What ends the cleanable part, at which offset, and until when if time alone lifts it."""
    blocker, bound, until_ms = Blocker.ACTIVE_SEGMENT, facts.active.base_offset, None
    if facts.last_stable_offset < bound:
        blocker, bound = Blocker.LAST_STABLE_OFFSET, facts.last_stable_offset
    if border is not None and border.copied_offset < bound:
        blocker, bound = Blocker.COPY, border.copied_offset
    lag_ms = facts.settings.min_compaction_lag_ms
    if lag_ms <= 0:
        return blocker, bound, until_ms
    for segment in facts.closed_from(first_dirty):
        if segment.base_offset >= bound:
            break
        newest_ms = lag_time(segment.read_times(), facts.settings)
        if newest_ms > now_ms - lag_ms:
            return Blocker.MIN_COMPACTION_LAG, segment.base_offset, newest_ms + lag_ms
    return blocker, bound, until_ms


def _blocked_text(facts: LogFacts, blocker: Blocker, bound: int, until_ms: int | None) -> str:
    match blocker:
        case Blocker.ACTIVE_SEGMENT:
            return f"the active segment {bound} is never cleaned"
        case Blocker.LAST_STABLE_OFFSET:
            if facts.high_watermark <= bound:
                return f"records from the high watermark {bound} on are not replicated yet"
            return f"a transaction is undecided since offset {bound}, the last stable offset"
        case Blocker.COPY:
            return f"what lies from offset {bound} on {WAITS_FOR_COPY}"
        case Blocker.MIN_COMPACTION_LAG:
            return (
                f"segment {bound} holds records younger than "
                f"min.compaction.lag.ms={facts.settings.min_compaction_lag_ms} until {until_ms}"
            )


def _compaction_delay_ms(facts: LogFacts, first_dirty: int, now_ms: int) -> int:
    """By how much the oldest dirty closed segment has outwaited `max.compaction.lag.ms`."""
    lag_ms = facts.settings.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        return 0
    begun = (first_time(one, facts.settings) for one in facts.closed_from(first_dirty))
    earliest_ms = min((ms for ms in begun if ms > 0), default=None)
    return 0 if earliest_ms is None else max(0, now_ms - lag_ms - earliest_ms)
