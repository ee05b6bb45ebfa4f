"""The state of a topic up to where the source transaction of its last record begins.

What is read of a transaction that is still being written would be half of it: its records come by
the feed, which keeps them together.

Invariant  no transaction lies across the end, unless it has more records than are kept together.
"""

from typing import Final

from varve.shapes.feed.decoder import Decoder, transaction_ids
from varve.shapes.feed.partition_buffer import Entry, decode_entries
from varve.shapes.feed.replay_state import ReplayState
from varve.shapes.feed.source import TopicSource
from varve.shapes.feed.transactions import RECORDS_MAX

_TAIL_OFFSETS: Final = 1_000
_TAIL_GROWTH: Final = 10
_READ_BYTES: Final = 1 << 20
_WAIT_MS: Final = 500


class WholeState(ReplayState):
    """Reads a topic of source transactions from its beginning."""

    def __init__(self, source: TopicSource, decoder: Decoder) -> None:
        super().__init__(source)
        self._bounds = {
            number: (start, find_boundary(source, decoder, number, start, end))
            for number, (start, end) in self._bounds.items()
        }


def find_boundary(
    source: TopicSource, decoder: Decoder, partition: int, start: int, end: int
) -> int:
    """Where the transaction of the last record in [start, end) begins; `end` without one."""
    tail = _TAIL_OFFSETS
    while True:
        begin = max(start, end - tail)
        entries = _read(source, decoder, partition, begin, end)
        ids = list(transaction_ids([one[3] for one in entries]))
        if ids and ids[-1] is None:
            return end
        first = len(ids)
        while first and ids[first - 1] == ids[-1]:
            first -= 1
        if first or (begin == start and entries):
            return entries[first][0]
        if begin == start or tail >= RECORDS_MAX:
            return end
        tail *= _TAIL_GROWTH


def _read(
    source: TopicSource, decoder: Decoder, partition: int, start: int, end: int
) -> list[Entry]:
    """Records in [start, end), as far as they come without delay."""
    entries: list[Entry] = []
    while start < end:
        found = source.read({partition: start}, max_bytes=_READ_BYTES, wait_ms=_WAIT_MS)
        read = found.get(partition)
        if read is None:
            break
        for part in decode_entries(read.columns, decoder):
            entries += [one for one in part if one[0] < end]
        start = read.next_offset
    return entries
