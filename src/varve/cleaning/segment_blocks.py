"""What keeps compaction from the stale records of a segment.

Invariant  nothing is changed. All that stands in the way is named at once, except that a segment
           which cannot be cleaned yet is not asked whether it would be worth it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varve.cleaning.border import WAITS_FOR_COPY
from varve.cleaning.effective_time import first_time, lag_time
from varve.cleaning.explanation import Block, Rule
from varve.cleaning.log_facts import LogFacts, SegmentFacts
from varve.cleaning.report import SegmentHold
from varve.cleaning.selection import Dirtiness
from varve.commit_log.rolling import max_segment_ms
from varve.foundation.settings import LONG_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBlocks:
    """Finds the blocks of one log's segments.

    `stale_bytes` gives, by base offset, how much of a segment is stale; None where unknown.
    `find_producer` gives the producer whose transaction began at an offset.
    """

    facts: LogFacts
    dirtiness: Dirtiness
    now_ms: int
    holds: Sequence[SegmentHold]
    stale_bytes: Callable[[int], int | None]
    find_producer: Callable[[int], int | None]

    def find(self, segment: SegmentFacts) -> list[Block]:
        """What keeps stale records of a segment from going; all but the ratio at once."""
        blocks = [
            block
            for block in (
                self._held(segment),
                _active(self.facts, segment),
                self._undecided(segment),
                self._uncopied(segment),
                _young(self.facts, segment, self.dirtiness.first_dirty, self.now_ms),
            )
            if block is not None
        ]
        if segment.base_offset < self.dirtiness.first_uncleanable:
            blocks += self._not_worth(segment)
        return blocks

    def _held(self, segment: SegmentFacts) -> Block | None:
        for hold in self.holds:
            if hold.base_offset == segment.base_offset:
                times = f"{hold.attempts} attempt{'' if hold.attempts == 1 else 's'}"
                return Block(
                    Rule.HELD,
                    f"held after {times}, it is damaged: {hold.reason}",
                    hold.retry_ms,
                )
        return None

    def _undecided(self, segment: SegmentFacts) -> Block | None:
        stable = self.facts.last_stable_offset
        if stable >= segment.next_offset:
            return None
        if self.facts.high_watermark <= stable:
            return Block(
                Rule.HIGH_WATERMARK, f"records from the high watermark {stable} on may still go"
            )
        producer_id = self.find_producer(stable)
        who = "a producer" if producer_id is None else f"producer {producer_id}"
        return Block(
            Rule.OPEN_TRANSACTION,
            f"the transaction of {who} is undecided since offset {stable}, the last stable offset",
        )

    def _uncopied(self, segment: SegmentFacts) -> Block | None:
        border = self.dirtiness.border
        if border is None or segment.next_offset <= border.copied_offset or segment.is_active:
            return None
        return Block(
            Rule.COPY, f"{WAITS_FOR_COPY}, which has come to offset {border.copied_offset}"
        )

    def _not_worth(self, segment: SegmentFacts) -> list[Block]:
        dirt, blocks = self.dirtiness, []
        if not dirt.is_due:
            blocks.append(
                Block(
                    Rule.DIRTY_RATIO,
                    f"{dirt.cleanable_bytes} of {dirt.clean_bytes + dirt.cleanable_bytes} bytes "
                    f"are dirty, a ratio of {dirt.ratio:.3f}; cleaning begins above "
                    f"{dirt.min_ratio}",
                    _forced_ms(self.facts, dirt),
                )
            )
        stale = self.stale_bytes(segment.base_offset)
        if stale is None or segment.base_offset >= dirt.first_dirty:
            return blocks
        limit = self.facts.settings.min_stale_ratio
        if stale == 0:
            blocks.append(Block(Rule.NOTHING_STALE, "none of its records is superseded"))
        elif stale < limit * segment.size:
            blocks.append(
                Block(
                    Rule.STALE_SHARE,
                    f"it was cleaned already, and {stale} of its {segment.size} bytes are stale: "
                    f"it is rewritten from a share of {limit} on",
                )
            )
        return blocks


def _active(facts: LogFacts, segment: SegmentFacts) -> Block | None:
    if not segment.is_active:
        return None
    roll_ms = max_segment_ms(facts.settings)
    until_ms = segment.read_times().first_append_ms + roll_ms if segment.size else None
    return Block(
        Rule.ACTIVE_SEGMENT,
        "the active segment is not cleaned; it rolls at segment.bytes="
        f"{facts.settings.segment_bytes}, or {roll_ms} ms after its first append",
        until_ms,
    )


def _young(facts: LogFacts, segment: SegmentFacts, first_dirty: int, now_ms: int) -> Block | None:
    """The segment and the dirty ones before it must all have outlived `min.compaction.lag.ms`."""
    lag_ms = facts.settings.min_compaction_lag_ms
    if lag_ms <= 0:
        return None
    until_ms, youngest = max(
        (
            (lag_time(one.read_times(), facts.settings) + lag_ms, one.base_offset)
            for one in facts.closed_from(first_dirty)
            if one.base_offset <= segment.base_offset
        ),
        default=(now_ms, 0),
    )
    if until_ms <= now_ms:
        return None
    text = f"segment {youngest} holds records younger than min.compaction.lag.ms={lag_ms}"
    return Block(Rule.MIN_COMPACTION_LAG, text, until_ms)


def _forced_ms(facts: LogFacts, dirt: Dirtiness) -> int | None:
    """When `max.compaction.lag.ms` forces a cleaning whatever the ratio."""
    lag_ms = facts.settings.max_compaction_lag_ms
    if lag_ms >= LONG_MAX or dirt.cleanable_bytes == 0:
        return None
    begun = (first_time(one, facts.settings) for one in facts.closed_from(dirt.first_dirty))
    earliest_ms = min((ms for ms in begun if ms > 0), default=None)
    return None if earliest_ms is None else earliest_ms + lag_ms + 1
