"""The dump of a segment's indexes, with a comparison of offset and time index with the data.

Layout     docs/reference/formats/segment-and-indexes.md, docs/reference/formats/keys.md
Invariant  entries are listed up to the first, but for the very first, that has the base offset:
           the rest are the zeros of a preallocated file, as Kafka's tool takes it.
"""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.batch_tables import CONTROL_UNKNOWN
from varve.cleaning.key_index.key_index import (
    BATCH_ABORTED,
    CONTROL_EMPTY,
    CONTROL_NONE,
    ENTRY,
    NO_HORIZON,
    KeyIndex,
    KeyIndexHeader,
)
from varve.cli.dump.records import DumpEntry, DumpOptions, DumpSource, problem
from varve.commit_log import SegmentFiles
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import INDEX, LOG, log_name
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.key_entries import ENTRY_WORDS, FLAG_TOMBSTONE
from varve.records import HEADER_BYTES, Batch, decode_header

_NO_TIMESTAMP = -1
_TXN_ENTRY_BYTES = 34
_BLOCK_ENTRIES: Final = 4096
_CONTROL_NAMES: Final[dict[int, object]] = {
    CONTROL_NONE: None,
    CONTROL_EMPTY: "EMPTY",
    CONTROL_UNKNOWN: "UNKNOWN",
    0: "ABORT",
    1: "COMMIT",
}


def dump_offset_index(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The entries, and those that do not name the last offset of the batch they point to."""
    data = source.fs.read(source.path)
    index = OffsetIndex.decode(data, source.offset, max(len(data), 1))
    if not index.count:
        yield DumpEntry("emptyIndex", {})
    if options.sanity_check:
        index.check(source.path)
        yield DumpEntry("saneIndex", {})
        return
    yield from _torn_entry(len(data), OffsetIndex.layout.itemsize)
    entries = index.entries()
    entries = entries[: _used_count(entries[:, 0], source.offset)]
    if not len(entries):
        return
    with source.fs.open(source.sibling(log_name(source.offset, LOG))) as log:
        for offset, position in entries.tolist():
            if not options.verify_index:
                yield DumpEntry("offsetIndexEntry", {"offset": offset, "position": position})
            yield from _check_offset_entry(log, offset, position)


def _check_offset_entry(log: File, offset: int, position: int) -> Iterator[DumpEntry]:
    try:
        header = decode_header(log.read_at(max(position, 0), HEADER_BYTES), where=log.path)
    except Corrupt:
        yield problem(f"entry for offset {offset}: no batch begins there in {log.path}", position)
        return
    if header.last_offset != offset:
        mismatch = {"indexOffset": offset, "logOffset": header.last_offset}
        yield DumpEntry("indexMismatch", mismatch)


def dump_time_index(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The entries, and those that the batches do not bear out."""
    data = source.fs.read(source.path)
    index = TimeIndex.decode(data, source.offset, max(len(data), 1))
    if options.sanity_check:
        index.check(source.path)
        yield DumpEntry("saneIndex", {})
        return
    yield from _torn_entry(len(data), TimeIndex.layout.itemsize)
    entries = index.entries()
    entries = entries[: _used_count(entries[:, 1], source.offset)]
    if not len(entries):
        return
    offsets = _offset_index_beside(source)
    previous = _NO_TIMESTAMP
    with source.fs.open(source.sibling(log_name(source.offset, LOG))) as log:
        for timestamp, offset in entries.tolist():
            if not options.verify_index:
                yield DumpEntry("timeIndexEntry", {"timestamp": timestamp, "offset": offset})
            start = offsets.lookup(offset)[1]
            yield from _check_time_entry(log, start, timestamp, offset, previous)
            previous = timestamp


def _offset_index_beside(source: DumpSource) -> OffsetIndex:
    path = source.sibling(log_name(source.offset, INDEX))
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
) -> Iterator[DumpEntry]:
    last_offset, largest = _largest_timestamp_at(log, start, offset)
    if last_offset != offset:
        yield DumpEntry("offsetNotFound", {"indexedOffset": offset, "logOffset": last_offset})
        return
    if largest != timestamp:
        yield DumpEntry("timestampMismatch", {"indexTimestamp": timestamp, "logTimestamp": largest})
    if previous >= timestamp:
        order = {"indexTimestamp": timestamp, "previousTimestamp": previous}
        yield DumpEntry("timestampOutOfOrder", order)


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


def _torn_entry(size: int, entry_size: int) -> Iterator[DumpEntry]:
    if size % entry_size:
        position = size - size % entry_size
        yield problem(f"{size} bytes are not a multiple of the entry size {entry_size}", position)


def dump_txn_index(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The aborted transactions; a torn last entry is named after the whole ones."""
    data = source.fs.read(source.path)
    whole = len(data) - len(data) % _TXN_ENTRY_BYTES
    index = TransactionIndex.decode(data[:whole], source.offset, source.path)
    if options.sanity_check:
        index.check(source.path)
        yield DumpEntry("saneIndex", {})
        return
    for aborted in index.entries():
        yield DumpEntry(
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


# Key index


def dump_key_index(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The header and all that follows; content whose CRC is wrong is named, not listed."""
    with source.fs.open(source.path) as file:
        index = KeyIndex(file)
        lists_all = not (options.verify_index or options.sanity_check)
        if lists_all:
            yield DumpEntry("keyIndex", _header_fields(index.header))
        index.verify()
        if options.sanity_check:
            yield DumpEntry("saneIndex", {})
            return
        if lists_all:
            yield from _list_entries(index)
            yield from _list_batches(index)
            yield from _list_marks(index)
        if not _is_current(source, index):
            yield DumpEntry("staleKeyIndex", {})


def _header_fields(header: KeyIndexHeader) -> dict[str, object]:
    horizon = header.earliest_horizon
    return {
        "topicId": encode_topic_id(UUID(bytes=header.topic_id)),
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "logSize": header.log_size,
        "lastBatchCrc": header.last_batch_crc,
        "entries": header.entry_count,
        "batches": header.batch_count,
        "marks": header.mark_count,
        "records": header.record_count,
        "nullKeys": header.null_key_count,
        "tombstones": header.tombstone_count,
        "recordBytes": header.record_bytes,
        "earliestDeleteHorizonMs": None if horizon == NO_HORIZON else horizon,
    }


def _list_entries(index: KeyIndex) -> Iterator[DumpEntry]:
    count, base_offset = index.header.entry_count, index.header.base_offset
    block = np.empty((_BLOCK_ENTRIES, ENTRY_WORDS), np.uint64)
    for start in range(0, count, _BLOCK_ENTRIES):
        end = min(start + _BLOCK_ENTRIES, count)
        index.read_entries(start, end, block)
        for high, low, offset, record, size, flags in (
            block[: end - start].view(ENTRY)[:, 0].tolist()
        ):
            yield DumpEntry(
                "keyEntry",
                {
                    "keyHash": f"{high:016x}{low:016x}",
                    "offset": base_offset + offset,
                    "record": record,
                    "size": size,
                    "isTombstone": flags & FLAG_TOMBSTONE != 0,
                },
            )


def _list_batches(index: KeyIndex) -> Iterator[DumpEntry]:
    base_offset = index.header.base_offset
    for position, size, base, last, count, attributes, flags, horizon in index.batches().tolist():
        yield DumpEntry(
            "keyBatch",
            {
                "baseOffset": base_offset + base,
                "lastOffset": base_offset + last,
                "count": count,
                "position": position,
                "size": size,
                "attributes": attributes,
                "isAborted": flags & BATCH_ABORTED != 0,
                "deleteHorizonMs": None if horizon == NO_HORIZON else horizon,
            },
        )


def _list_marks(index: KeyIndex) -> Iterator[DumpEntry]:
    for batch, epoch, control, producer_id in index.marks().tolist():
        yield DumpEntry(
            "keyMark",
            {
                "batch": batch,
                "producerId": producer_id,
                "producerEpoch": epoch,
                "control": _CONTROL_NAMES.get(control, control),
            },
        )


def _is_current(source: DumpSource, index: KeyIndex) -> bool:
    """Whether it is the index of the data file beside it, if there is one."""
    base_offset = index.header.base_offset
    path = source.sibling(log_name(base_offset, LOG))
    if not source.fs.exists(path):
        return True
    segment = Segment(
        SegmentFiles(source.fs),
        path.rpartition("/")[0] or ".",
        base_offset=base_offset,
        size=source.fs.info(path).size,
    )
    return index.is_of(segment, index.header.topic_id)
