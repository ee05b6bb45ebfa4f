"""Dumps the index files of a segment, and compares offset and time index with its data.

Layout     docs/formats/segment-and-indexes.md
Invariant  entries are listed up to the first, but for the very first, that has the base offset:
           the rest are the zeros of a preallocated file, as Kafka's tool takes it.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from varve.cli.dump_entry import DumpOptions, Entry, Source, problem
from varve.commit_log.names import INDEX, LOG, log_name
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn
from varve.records import HEADER_BYTES, Batch, decode_header

_NO_TIMESTAMP = -1
_TXN_ENTRY_BYTES = 34


def dump_offset_index(source: Source, options: DumpOptions) -> Iterator[Entry]:
    """The entries, and those that do not name the last offset of the batch they point to."""
    data = source.fs.read(source.path)
    index = OffsetIndex.decode(data, source.offset, max(len(data), 1))
    if not index.count:
        yield Entry("emptyIndex", {})
    if options.index_sanity_check:
        index.check(source.path)
        yield Entry("saneIndex", {})
        return
    yield from _torn_entry(len(data), OffsetIndex.layout.itemsize)
    entries = index.entries()
    entries = entries[: _used_count(entries[:, 0], source.offset)]
    if not len(entries):
        return
    with source.fs.open(source.beside(log_name(source.offset, LOG))) as log:
        for offset, position in entries.tolist():
            if not options.verify_index_only:
                yield Entry("offsetIndexEntry", {"offset": offset, "position": position})
            yield from _check_offset_entry(log, offset, position)


def _check_offset_entry(log: File, offset: int, position: int) -> Iterator[Entry]:
    try:
        header = decode_header(log.read_at(max(position, 0), HEADER_BYTES), where=log.path)
    except Corrupt:
        yield problem(f"entry for offset {offset}: no batch begins there in {log.path}", position)
        return
    if header.last_offset != offset:
        mismatch = {"indexOffset": offset, "logOffset": header.last_offset}
        yield Entry("indexMismatch", mismatch)


def dump_time_index(source: Source, options: DumpOptions) -> Iterator[Entry]:
    """The entries, and those that the batches do not bear out."""
    data = source.fs.read(source.path)
    index = TimeIndex.decode(data, source.offset, max(len(data), 1))
    if options.index_sanity_check:
        index.check(source.path)
        yield Entry("saneIndex", {})
        return
    yield from _torn_entry(len(data), TimeIndex.layout.itemsize)
    entries = index.entries()
    entries = entries[: _used_count(entries[:, 1], source.offset)]
    if not len(entries):
        return
    offsets = _offset_index_beside(source)
    previous = _NO_TIMESTAMP
    with source.fs.open(source.beside(log_name(source.offset, LOG))) as log:
        for timestamp, offset in entries.tolist():
            if not options.verify_index_only:
                yield Entry("timeIndexEntry", {"timestamp": timestamp, "offset": offset})
            start = offsets.lookup(offset)[1]
            yield from _check_time_entry(log, start, timestamp, offset, previous)
            previous = timestamp


def _offset_index_beside(source: Source) -> OffsetIndex:
    path = source.beside(log_name(source.offset, INDEX))
    try:
        data = source.fs.read(path)
    except FileNotFoundError:
        return OffsetIndex(source.offset, OffsetIndex.layout.itemsize)
    index = OffsetIndex.decode(data, source.offset, max(len(data), 1))
    entries = index.entries()
    used = _used_count(entries[:, 0], source.offset)
    packed = data[: used * OffsetIndex.layout.itemsize]
    return OffsetIndex.decode(packed, source.offset, max(len(data), 1))


def _check_time_entry(
    log: File, start: int, timestamp: int, offset: int, previous: int
) -> Iterator[Entry]:
    found, largest = _largest_timestamp_at(log, start, offset)
    if found != offset:
        yield Entry("offsetNotFound", {"indexedOffset": offset, "logOffset": found})
        return
    if largest != timestamp:
        yield Entry("timestampMismatch", {"indexTimestamp": timestamp, "logTimestamp": largest})
    if previous >= timestamp:
        order = {"indexTimestamp": timestamp, "previousTimestamp": previous}
        yield Entry("timestampOutOfOrder", order)


def _largest_timestamp_at(log: File, start: int, offset: int) -> tuple[int, int]:
    """The last offset of the first batch that reaches the offset, and its records' largest time."""
    for table in BatchWalk(log, start=max(start, 0), end=log.size(), verify_crc=False):
        rows = np.flatnonzero(table.rows[:, BatchColumn.LAST_OFFSET] >= offset)
        if not rows.size:
            continue
        row = int(rows[0])
        last_offset = int(table.rows[row, BatchColumn.LAST_OFFSET])
        if last_offset != offset:
            return last_offset, _NO_TIMESTAMP
        timestamps = Batch(table.bytes_of(row), where=log.path).columns().timestamps
        return last_offset, int(timestamps.max(initial=_NO_TIMESTAMP))
    return -1, _NO_TIMESTAMP


def _used_count(offsets: npt.NDArray[np.int64], base_offset: int) -> int:
    unused = np.flatnonzero(offsets[1:] == base_offset)
    return int(unused[0]) + 1 if unused.size else len(offsets)


def _torn_entry(size: int, entry_size: int) -> Iterator[Entry]:
    if size % entry_size:
        position = size - size % entry_size
        yield problem(f"{size} bytes are not a multiple of the entry size {entry_size}", position)


def dump_txn_index(source: Source, options: DumpOptions) -> Iterator[Entry]:
    """The aborted transactions; a torn last entry is named after the whole ones."""
    data = source.fs.read(source.path)
    whole = len(data) - len(data) % _TXN_ENTRY_BYTES
    index = TransactionIndex.decode(data[:whole], source.offset, source.path)
    if options.index_sanity_check:
        index.check(source.path)
        yield Entry("saneIndex", {})
        return
    for aborted in index.entries():
        yield Entry(
            "abortedTransaction",
            {
                "version": 0,
                "producerId": aborted.producer_id,
                "firstOffset": aborted.first_offset,
                "lastOffset": aborted.last_offset,
                "lastStableOffset": aborted.last_stable_offset,
            },
        )
    yield from _torn_entry(len(data), _TXN_ENTRY_BYTES)
