"""Whether a table can go on where it is.

Invariant  a table goes on only if every record behind its positions can still be read, in the order
           in which it was given before.
"""

import logging
from collections.abc import Mapping, Sequence

from varve.foundation.errors import Corrupt
from varve.shapes.feed.journal import Range
from varve.shapes.feed.source import TopicSource
from varve.shapes.feed.table_store import TableState, TableStore, remove_table

logger = logging.getLogger(__name__)

Bounds = Mapping[int, tuple[int, int]]
"""First offset and the one behind the last committed record, by partition."""


def look_at_bounds(source: TopicSource) -> Bounds:
    return {number: source.bounds(number) for number in range(source.partition_count())}


def open_store(path: str) -> tuple[TableStore, TableState | None, str | None]:
    """The table with its state, if it has one; a damaged one is removed, and the third says so."""
    store: TableStore | None = None
    try:
        store = TableStore(path)
        return store, store.read_state(), None
    except Corrupt as error:
        if store is not None:
            store.close()
        logger.warning("table removed", extra={"path": path, "error": str(error)})
        remove_table(path)
        return TableStore(path), None, f"the table was damaged: {error}"


def find_break(
    state: TableState,
    source: TopicSource,
    bounds: Bounds,
    ranges: Sequence[Range],
    *,
    signature: str,
) -> str | None:
    """Why a table cannot go on; None where it can."""
    topic_id = source.topic_id()
    if state.signature != signature:
        return f"rows were made by {state.signature!r}, now by {signature!r}"
    if state.topic_id and topic_id and state.topic_id != topic_id:
        return f"topic {source.topic} was made anew: its id is {topic_id}, it was {state.topic_id}"
    if len(bounds) < len(state.positions):
        return f"topic {source.topic} has {len(bounds)} partitions, it had {len(state.positions)}"
    for number, position in state.positions.items():
        start, end = bounds[number]
        if position < start:
            return f"partition {number} begins at {start}: it was read up to {position}"
        if position > end:
            return f"partition {number} ends at {end}: it was read up to {position}"
    return _find_broken_order(state, bounds, [one for one in ranges if one.next_tx > state.next_tx])


def _find_broken_order(state: TableState, bounds: Bounds, ranges: Sequence[Range]) -> str | None:
    if ranges and ranges[0].first_tx > state.next_tx and len(state.positions) > 1:
        return f"the journal begins at {ranges[0].first_tx}, the table ends at {state.next_tx}"
    for one in ranges:
        if one.partition not in bounds or one.end > bounds[one.partition][1]:
            return f"partition {one.partition} was read up to {one.end} and does not reach so far"
    return None
