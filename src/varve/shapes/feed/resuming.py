"""Checks whether a feed can resume its table, and whether it may have missed tombstones.

A compacted topic keeps a tombstone for `delete.retention.ms`. A feed that lagged
behind its topic for longer cannot know from missing offsets which rows were deleted.

Invariant  a table is resumed only if every record after its positions can still be read, in the
           order in which it was read before, and the log still has the last batch that was read,
           and no record was erased since.
           If the clock is behind the time at which a table was written, the lag is unknown and
           counts as too long. While the feed runs, a clock that is set back adds nothing. The
           setting may be altered at any time, so a feed that lags reads it again.
Threads    one.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from varve.commit_log.settings import LAST_ERASURE, NO_ERASURE
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt
from varve.foundation.settings import LONG_MAX
from varve.rocks.database import MemoryBudget
from varve.shapes.feed.journal import Journal, OffsetSpan
from varve.shapes.feed.table_store import TableState, TableStore, remove_table
from varve.topics import HistoryMark, OffsetRange, Position, TopicInfo, TopicReader
from varve.topics import find_break as find_other_history

logger = logging.getLogger(__name__)

_REFRESH_MS: Final = 1_000
"""A feed that lags longer than this reads the setting again, at most this often. An altered setting
has no effect before the log is cleaned, which takes longer."""
_DELETE_RETENTION_MS: Final = 24 * 3_600_000
"""Kafka's default of delete.retention.ms."""


def find_marks(reader: TopicReader, positions: Mapping[int, int]) -> dict[int, HistoryMark]:
    """The last batch before each position, where the log has one."""
    marks = {}
    for number, offset in positions.items():
        header = reader.find_batch_before(number, offset)
        if header is not None:
            marks[number] = HistoryMark.of(header)
    return marks


def open_store(
    path: str, budget: MemoryBudget | None
) -> tuple[TableStore, TableState | None, str | None]:
    """The table, its state if it has one, and why a damaged table was removed."""
    store: TableStore | None = None
    try:
        store = TableStore(path, budget)
        return store, store.read_state(), None
    except Corrupt as error:
        if store is not None:
            store.close()
        logger.warning("table removed", extra={"path": path, "error": str(error)})
        remove_table(path)
        return TableStore(path, budget), None, f"the table was damaged: {error}"


def find_break(
    state: TableState,
    reader: TopicReader,
    bounds: Mapping[int, OffsetRange],
    journal: Journal,
    *,
    signature: str,
) -> str | None:
    """Why a table cannot be resumed; None if it can."""
    if state.signature != signature:
        return f"rows were made by {state.signature!r}, now by {signature!r}"
    reason = find_other_topic(state.topic_id, reader.info())
    if reason is not None:
        return reason
    reason = find_erasure(state.erasure, reader)
    if reason is not None:
        return reason
    if len(bounds) < len(state.positions):
        return f"topic {reader.topic} has {len(bounds)} partitions, it had {len(state.positions)}"
    for number, position in state.positions.items():
        start, end = bounds[number]
        if position < start:
            return f"partition {number} begins at {start}: it was read up to {position}"
        if position > end:
            return f"partition {number} ends at {end}: it was read up to {position}"
    spans = [span for span in journal.spans if span.next_tx > state.next_tx]
    return _find_broken_order(state, bounds, spans) or _find_lost_end(
        reader, {**state.marks, **journal.find_marks_after(state.marks)}
    )


def find_other_topic(topic_id: str, info: TopicInfo) -> str | None:
    """The reason if the topic has another id than before; None if it has not, or is unknown."""
    if not topic_id or not info.id_text or topic_id == info.id_text:
        return None
    return (
        f"topic {info.name} was deleted and created again: its id is {info.id_text}, it was "
        f"{topic_id}"
    )


def read_last_erasure(reader: TopicReader) -> str:
    """The last erasure of the topic; `NO_ERASURE` also where a broker knows of none."""
    return reader.settings().get(LAST_ERASURE, NO_ERASURE)


def find_erasure(before: str, reader: TopicReader) -> str | None:
    """The reason if records were erased since the erasure `before`: rows may hold them."""
    last = read_last_erasure(reader)
    return None if last == before else f"records were erased from topic {reader.topic} by {last}"


def _find_lost_end(reader: TopicReader, marks: Mapping[int, HistoryMark]) -> str | None:
    for number, mark in marks.items():
        position = Position(mark.last_offset + 1, mark)
        reason = find_other_history(reader, number, position)
        if reason is not None:
            return f"partition {number} lost records that were read: {reason}"
    return None


def _find_broken_order(
    state: TableState, bounds: Mapping[int, OffsetRange], spans: Sequence[OffsetSpan]
) -> str | None:
    if spans and spans[0].first_tx > state.next_tx and len(state.positions) > 1:
        return f"the journal begins at {spans[0].first_tx}, the table ends at {state.next_tx}"
    for span in spans:
        if span.partition not in bounds or span.end > bounds[span.partition].end:
            return f"partition {span.partition} was read up to {span.end} and ends before it"
    return None


class TombstoneHorizon:
    """How long one opening of a feed has lagged behind the end of its topic."""

    def __init__(self, reader: TopicReader, clock: Clock, caught_up_ms: int) -> None:
        """`caught_up_ms` is when the end of the topic was last reached, as the table has it."""
        self.caught_up_ms = caught_up_ms
        self.retention_ms: int | None = None
        """How long tombstones are kept, as it was last read; None means forever."""
        self._reader = reader
        self._clock = clock
        self._refreshed_ms: int | None = None
        self._now_ms = clock.now_ms()
        lag_ms = self._now_ms - caught_up_ms
        self._lag_ms = lag_ms if lag_ms >= 0 else LONG_MAX

    def advance(self) -> None:
        """Adds the time that has passed; called with each poll."""
        now_ms = self._clock.now_ms()
        self._lag_ms = min(LONG_MAX, self._lag_ms + max(0, now_ms - self._now_ms))
        self._now_ms = now_ms

    def caught_up(self) -> None:
        """The feed is at the end of its topic, as of the last `advance`."""
        self._lag_ms, self.caught_up_ms = 0, self._now_ms

    def may_have_passed(self) -> bool:
        """Whether the log may have removed tombstones that were not read; raises Unavailable."""
        if self._is_exceeded():
            return True
        if not self._needs_refresh():
            return False
        self.refresh()
        return self._is_exceeded()

    def refresh(self) -> None:
        """Reads how long the topic keeps tombstones."""
        self._refreshed_ms = self._clock.now_ms()
        self.retention_ms = find_tombstone_retention(self._reader)

    def _needs_refresh(self) -> bool:
        if self._refreshed_ms is None:
            return True
        passed_ms = self._clock.now_ms() - self._refreshed_ms
        return self._lag_ms > _REFRESH_MS and not 0 <= passed_ms < _REFRESH_MS

    def _is_exceeded(self) -> bool:
        return self.retention_ms is not None and self._lag_ms > self.retention_ms


def find_tombstone_retention(reader: TopicReader) -> int | None:
    """How long the topic keeps tombstones at least, in ms; None where it is not compacted."""
    settings = reader.settings()
    if "compact" not in settings.get("cleanup.policy", ""):
        return None
    return int(settings.get("delete.retention.ms", _DELETE_RETENTION_MS))
