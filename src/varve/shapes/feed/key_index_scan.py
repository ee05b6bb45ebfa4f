"""Reads the latest records of a topic in an open store, found by its key indexes.

The key indexes of closed segments show which records are the latest of their keys; only batches
with such a record are read. The active segment, segments without an index and remote segments are
read completely.

Invariant  records come in the order of their offsets. For each record that is left out, a later one
           of the same key comes.
Threads    one; the cleaner may replace segments meanwhile, which are then read completely.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.key_plan import KeyPlan, plan_keys
from varve.cleaning.key_index.key_index import NO_TOPIC_ID, SegmentKeys, Table
from varve.cleaning.key_index.segment_indexes import SegmentKeyIndexes
from varve.commit_log import Log
from varve.commit_log.names import LOG
from varve.commit_log.segment import Segment
from varve.embedded import Store
from varve.foundation.errors import Corrupt
from varve.records import Batch, RecordColumns
from varve.shapes.feed.decoders import Record
from varve.shapes.feed.initial_load import FullScan
from varve.shapes.feed.order import read_records, split_records
from varve.topics import TopicReader

_BUFFER_BYTES: Final = 32 << 20
_GAP_BYTES: Final = 256 << 10
"""Two batches with fewer bytes between them are read at once."""
_RUN_BYTES: Final = 4 << 20

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a log; `keep` flags the records of an indexed segment, None reads all."""

    start: int
    end: int
    segment: Segment | None = None
    batches: Table | None = None
    keep: Flags | None = None


class KeyIndexScan(FullScan):
    """Reads the latest records of a topic whose store is open."""

    how = "key indexes"

    def __init__(self, store: Store, reader: TopicReader) -> None:
        super().__init__(reader)
        self._store = store
        self._parts = {
            number: self._plan(number, *bounds) for number, bounds in self._bounds.items()
        }

    def read(self) -> Iterator[Sequence[Record]]:
        for number, parts in self._parts.items():
            for part in parts:
                yield from self._read_part(number, part)

    # Planning

    def _plan(self, number: int, start: int, end: int) -> list[_Part]:
        topic = self._store.topic(self._reader.topic)
        log = topic.partition(number).log
        topic_id = NO_TOPIC_ID if topic.id is None else topic.id.bytes
        indexes = SegmentKeyIndexes(
            self._store.fs, log, topic_id=topic_id, buffer_bytes=_BUFFER_BYTES
        )
        parts: list[_Part] = []
        with suppress(FileNotFoundError):  # segments were replaced meanwhile: all are read
            indexed = _find_indexed(log, indexes, end)
            plan = plan_keys([keys for _, _, keys in indexed], buffer_bytes=_BUFFER_BYTES)
            parts = [_indexed_part(*entry, plan, number) for number, entry in enumerate(indexed)]
        return _fill_gaps(parts, start, end)

    # Reading

    def _read_part(self, number: int, part: _Part) -> Iterator[Sequence[Record]]:
        if part.segment is None:
            yield from self._read_whole(number, part)
            return
        try:
            yield from _KeptReader(part, log_start=self._bounds[number][0]).read()
        except (FileNotFoundError, _Replaced):
            # Once more and completely: records that came before come again, in order.
            yield from self._read_whole(number, part)

    def _read_whole(self, number: int, part: _Part) -> Iterator[Sequence[Record]]:
        yield from read_records(self._reader, number, part.start, part.end)


class _Replaced(Exception):
    """The data file is not the one that was planned for."""


class _KeptReader:
    """Reads the kept records of one indexed segment."""

    def __init__(self, part: _Part, *, log_start: int) -> None:
        assert part.segment is not None
        assert part.batches is not None
        assert part.keep is not None
        self._segment = part.segment
        self._keep = part.keep
        self._log_start = log_start
        self._where = part.segment.path(LOG)
        counts = part.batches["count"].astype(np.int64)
        firsts = np.concatenate(([0], np.cumsum(counts)))
        sums = np.concatenate(([0], np.cumsum(part.keep)))
        has_kept_record = sums[firsts[1:]] > sums[firsts[:-1]]
        self._batches = part.batches[has_kept_record]
        self._firsts = firsts[:-1][has_kept_record]

    def read(self) -> Iterator[list[Record]]:
        file = self._segment.file()
        for start, end in self._runs():
            first, last = self._batches[start], self._batches[end - 1]
            position = int(first["position"])
            data = file.read_at(position, int(last["position"]) + int(last["size"]) - position)
            for number in range(start, end):
                yield self._records(data, position, number)

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Runs of kept batches [start, end) that are close enough to be read at once."""
        starts = self._batches["position"].astype(np.int64)
        ends = starts + self._batches["size"]
        begin = 0
        for number in range(1, len(starts) + 1):
            is_last = number == len(starts)
            if is_last or (
                starts[number] - ends[number - 1] > _GAP_BYTES
                or ends[number] - starts[begin] > _RUN_BYTES
            ):
                yield begin, number
                begin = number

    def _records(self, data: bytes, position: int, number: int) -> list[Record]:
        entry = self._batches[number]
        try:
            batch = Batch(data, self._where, position=int(entry["position"]) - position)
            is_same = batch.is_valid_crc()
        except Corrupt as error:
            raise _Replaced(str(error)) from error
        header = batch.header
        base = self._segment.base_offset + int(entry["base"])
        if not is_same or (header.base_offset, header.records_count) != (base, entry["count"]):
            raise _Replaced(self._where)
        first = int(self._firsts[number])
        flags = self._keep[first : first + header.records_count]
        columns = batch.columns()
        chosen = flags & (columns.offsets >= self._log_start)
        return split_records(RecordColumns(columns.payload, columns.table[chosen]))[2]


def _find_indexed(
    log: Log, indexes: SegmentKeyIndexes, end: int
) -> list[tuple[Segment, int, SegmentKeys]]:
    """Closed segments that end at or before an offset and have an index, with their ends."""
    view = log.view
    bases = [*(segment.base_offset for segment in view.closed), view.active.base_offset]
    indexed = []
    for segment, segment_end in zip(view.closed, bases[1:], strict=True):
        keys = indexes.find(segment, segment_end) if segment_end <= end else None
        if keys is not None:
            indexed.append((segment, segment_end, keys))
    return indexed


def _indexed_part(
    segment: Segment, end: int, keys: SegmentKeys, plan: KeyPlan, number: int
) -> _Part:
    flags = np.unpackbits(plan.bits_of(number, plan.keep), bitorder="little") != 0
    with keys.open() as index:
        batches = index.batches()
    return _Part(segment.base_offset, end, segment, batches, flags[: keys.record_count])


def _fill_gaps(parts: Sequence[_Part], start: int, end: int) -> list[_Part]:
    """The parts, and between them the offsets that no index covers."""
    filled: list[_Part] = []
    at = start
    for part in parts:
        if part.end <= at:
            continue
        if part.start > at:
            filled.append(_Part(at, part.start))
        filled.append(part)
        at = part.end
    if at < end:
        filled.append(_Part(at, end))
    return filled
