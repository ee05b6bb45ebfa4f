"""Whether a table can be resumed.

Invariant  a table is resumed only if every record behind its positions can still be read, in the
           order in which it was read before, and the log still has the last batch that was read.
"""

import logging
from collections.abc import Mapping, Sequence

from varve.foundation.errors import Corrupt
from varve.rocks.database import MemoryBudget
from varve.shapes.feed.journal import Journal, OffsetSpan
from varve.shapes.feed.table_store import TableState, TableStore, remove_table
from varve.topics import HistoryMark, OffsetRange, Position, TopicInfo, TopicReader
from varve.topics import find_break as find_other_history

logger = logging.getLogger(__name__)

Offsets = Mapping[int, OffsetRange]
"""The committed records that can be read, by partition."""


def find_offsets(reader: TopicReader) -> Offsets:
    return {number: reader.offsets(number) for number in range(reader.info().partition_count)}


def find_marks(reader: TopicReader, positions: Mapping[int, int]) -> dict[int, HistoryMark]:
    """The batches in front of positions, where the log has them."""
    marks = {}
    for number, offset in positions.items():
        header = reader.find_batch_before(number, offset)
        if header is not None:
            marks[number] = HistoryMark.of(header)
    return marks


def open_store(
    path: str, budget: MemoryBudget | None
) -> tuple[TableStore, TableState | None, str | None]:
    """The table and its state, if it has one; a damaged table is removed, and the third says so."""
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
    bounds: Offsets,
    journal: Journal,
    *,
    signature: str,
) -> str | None:
    """Why a table cannot be resumed; None where it can."""
    if state.signature != signature:
        return f"rows were made by {state.signature!r}, now by {signature!r}"
    reason = find_other_topic(state.topic_id, reader.info())
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
    """Says that the topic has another id than it had; None where that is not known."""
    if not topic_id or not info.id_text or topic_id == info.id_text:
        return None
    return (
        f"topic {info.name} was deleted and created again: its id is {info.id_text}, it was "
        f"{topic_id}"
    )


def _find_lost_end(reader: TopicReader, marks: Mapping[int, HistoryMark]) -> str | None:
    for number, mark in marks.items():
        position = Position(mark.last_offset + 1, mark)
        reason = find_other_history(reader, number, position)
        if reason is not None:
            return f"partition {number} lost records that were read: {reason}"
    return None


def _find_broken_order(
    state: TableState, bounds: Offsets, spans: Sequence[OffsetSpan]
) -> str | None:
    if spans and spans[0].first_tx > state.next_tx and len(state.positions) > 1:
        return f"the journal begins at {spans[0].first_tx}, the table ends at {state.next_tx}"
    for span in spans:
        if span.partition not in bounds or span.end > bounds[span.partition].end:
            return f"partition {span.partition} was read up to {span.end} and ends before it"
    return None
