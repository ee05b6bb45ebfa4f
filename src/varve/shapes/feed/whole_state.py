"""The state of a topic up to where the source transaction of its last record begins.

What is read of a transaction that is still being written would be half of it: its records come by
the feed, which keeps them together.

Invariant  no transaction lies across the end, unless it has more records than are kept together.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from varve.shapes.feed.decoder import Decoder
from varve.shapes.feed.partition_buffer import Entry, read_entries
from varve.shapes.feed.replay_state import ReplayState
from varve.shapes.feed.transactions import RECORDS_MAX
from varve.topics import OffsetRange, TopicReader

_TAIL_OFFSETS: Final = 1_000
_TAIL_GROWTH: Final = 10


class WholeState(ReplayState):
    """Reads a topic of source transactions from its beginning."""

    def __init__(self, reader: TopicReader, decoder: Decoder) -> None:
        super().__init__(reader)
        self._bounds = {
            number: OffsetRange(start, find_boundary(reader, decoder, number, start, end))
            for number, (start, end) in self._bounds.items()
        }


def find_boundary(
    reader: TopicReader, decoder: Decoder, partition: int, start: int, end: int
) -> int:
    """Where the transaction of the last record in [start, end) begins; `end` without one."""
    tail = _TAIL_OFFSETS
    while True:
        begin = max(start, end - tail)
        found = read_entries(reader, partition, begin, end, decoder)
        last = _find_last(chain.from_iterable(found), is_whole=begin == start)
        if last is not None and last.transaction is None:
            return end
        if last is not None and (last.is_behind_another or begin == start):
            return last.start
        if begin == start or tail >= RECORDS_MAX:
            return end
        tail *= _TAIL_GROWTH


class _Last(NamedTuple):
    """The transaction of the last record, if it has one, and where that begins."""

    transaction: str | None
    start: int
    is_behind_another: bool


def _find_last(entries: Iterable[Entry], *, is_whole: bool) -> _Last | None:
    """What entries end with. Unless they are `is_whole`, others stand before them."""
    last: _Last | None = None
    for offset, _, _, decoded in entries:
        if decoded.is_tombstone and (last is not None or not is_whole):
            continue  # of the delete before it, which may not be among these
        told = decoded.transaction
        name = None if told is None else told.id
        if last is None or name is None or name != last.transaction:
            last = _Last(name, offset, last is not None)
    return last
