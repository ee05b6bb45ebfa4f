"""Writes the segment that replaces a group of segments: the surviving records and all indexes.

Layout     `<base offset>.{log,index,timeindex,txnindex,keys}.cleaned`, with the base offset of the
           group's first segment.
Invariant  only batches that keep a record, or stay as an empty batch, are read; each is checked
           against its CRC and against its key index before it is copied. A compressed batch is
           decompressed, filtered and compressed by the same codec.
Crash      the log does not change here: the new files are synced, and the log swaps them in.
"""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.segment_plan import BatchDecisions, SegmentPlan
from varve.cleaning.key_index.builder import KeyIndexBuilder
from varve.cleaning.key_index.key_index import KeyIndexHeader
from varve.cleaning.key_index.segment_indexes import HELD_REMEDY
from varve.cleaning.removals.removal import SegmentSummary, SegmentSummaryBuilder
from varve.cleaning.work_budget import WorkBudget
from varve.commit_log import LogSettings
from varve.commit_log.names import (
    CLEANED,
    INDEX,
    KEYS,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    is_unfinished_key_index,
    log_name,
    parse_file_name,
)
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.settings import INT_MAX
from varve.commit_log.sparse_index import SegmentIndexer
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_filter import (
    KEEP_TIMESTAMP,
    RECORD_GROWTH_MAX,
    Action,
    FilterStatus,
    filter_records,
    rewrite_batches,
    seal_batch,
)
from varve.kernels.batch_layout import (
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    RECORD_SIZE_MIN,
    BatchColumn,
    ScanStatus,
)
from varve.kernels.batch_scan import batch_table, scan_batches
from varve.records import compress
from varve.records.batch_format import codec_of
from varve.records.compression import decompress

Bytes = npt.NDArray[np.uint8]

# Attributes, base and max timestamp, record count: all that filtering needs of a header.
_FIELDS: Final = struct.Struct(">21xh4xqq14xi")


class FilteredBatch(NamedTuple):
    """A compressed batch about to be written.

    `records` are the surviving records uncompressed, `packed` the same compressed. A tuple, because
    it is created for every compressed batch.
    """

    source: Bytes
    records: Bytes
    packed: bytes
    attributes: int
    base_timestamp: int
    max_timestamp: int
    record_count: int

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.packed)

    def write(self, out: Bytes, start: int) -> None:
        """Writes the whole batch to `out` from `start` on; the caller makes room."""
        source, _, packed, attributes, base_timestamp, max_timestamp, count = self
        end = start + HEADER_BYTES + len(packed)
        out.data[start + HEADER_BYTES : end] = packed
        seal_batch(source, 0, out, start, end, attributes, base_timestamp, max_timestamp, count)


def filter_compressed(
    source: Bytes, *, horizon: int, keep: Bytes, first_bit: int, where: str
) -> FilteredBatch:
    """Removes the records without a bit in `keep`; raises Corrupt when the batch is damaged.

    `horizon` is the new delete horizon of the batch, or KEEP_TIMESTAMP.
    """
    data = source.data
    attributes, base_timestamp, max_timestamp, count = _FIELDS.unpack_from(data)
    codec = codec_of(attributes, where=where)
    payload = decompress(codec, data[HEADER_BYTES:], where=where)
    if not 0 <= count <= payload.size // RECORD_SIZE_MIN:
        raise Corrupt(f"{where}: the batch has {count} records in {payload.size} bytes")
    if horizon != KEEP_TIMESTAMP:
        attributes |= DELETE_HORIZON_BIT
    elif attributes & DELETE_HORIZON_BIT:
        horizon = base_timestamp
    is_append_time = attributes & LOG_APPEND_TIME_BIT != 0
    records = np.empty(payload.size + count * RECORD_GROWTH_MAX, np.uint8)
    status, end, kept, base_timestamp, largest = filter_records(
        payload,
        0,
        payload.size,
        count,
        base_timestamp,
        max_timestamp,
        is_append_time,
        horizon,
        keep,
        first_bit,
        records,
        0,
    )
    if status != FilterStatus.DONE:
        raise Corrupt(f"{where}: the records cannot be read")
    survivors = records[:end]
    return FilteredBatch(
        source,
        survivors,
        compress(codec, survivors.data),
        attributes,
        base_timestamp,
        max_timestamp if is_append_time else largest,
        kept,
    )


CHUNK_BYTES: Final = 4 << 20
"""The size of one read and of one write, so that seeks cost little on any disk."""
GAP_BYTES: Final = 64 << 10
"""A gap of skipped batches up to this size is read too: one long read is cheaper than two."""
_TABLE_ROWS: Final = 8192
_PAYLOAD_BYTES_MAX: Final = 32 << 20
"""Uncompressed records that wait in memory for the key index; decompressing them again costs more.
"""
_FAULTS: Final = {
    FilterStatus.MISMATCH: "the batch is not the one in the key index",
    FilterStatus.BAD_CRC: "the batch's CRC is wrong",
    FilterStatus.BAD_RECORDS: "the batch's records cannot be read",
}


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """A segment written to `.cleaned` files, ready to be swapped in."""

    summary: SegmentSummary
    has_txn_index: bool
    header: KeyIndexHeader
    digest: tuple[int, int]
    bytes_read: int
    max_timestamp: int

    @property
    def base_offset(self) -> int:
        return self.summary.base_offset

    @property
    def size(self) -> int:
        return self.summary.size

    def discard(self, fs: FileSystem, directory: str) -> None:
        """Removes the files of a segment that is not swapped in after all."""
        _remove_files(fs, directory, self.base_offset)


class DamagedSegment(Corrupt):
    """A batch of this segment cannot be copied, or the copy would be too large."""

    def __init__(self, message: str, base_offset: int) -> None:
        super().__init__(message)
        self.base_offset = base_offset


def write_group(
    fs: FileSystem,
    directory: str,
    plans: Sequence[SegmentPlan],
    *,
    settings: LogSettings,
    topic_id: bytes,
    buffer_bytes: int,
    modified_ms: int,
    budget: WorkBudget,
    aborted: Sequence[AbortedTransaction] | None = None,
) -> WrittenSegment:
    """Writes the surviving records of consecutive segments as one segment, durably.

    `aborted` are the transactions whose records the new key index leaves out; by default those
    that stay in the transaction index, because a compaction removes the records of all others.
    `modified_ms` is the modification time of the last segment's data file, which the new one gets.
    `budget` is charged for all bytes read and written and may raise to stop; the new files are
    then removed. Raises DamagedSegment when a batch is not the one that its key index describes.
    """
    base_offset = plans[0].segment.base_offset
    listed = [transaction for plan in plans for transaction in plan.aborted_kept]
    left_out = listed if aborted is None else aborted
    output = _Output(
        fs, directory, base_offset, settings, topic_id, buffer_bytes, listed, left_out, budget
    )
    try:
        for plan in plans:
            with plan.keys.open() as index:
                decisions = plan.decide(index.batches(), index.marks())
            _SegmentCopy(plan, decisions, output, budget).run()
        return output.finish(modified_ms)
    except BaseException:
        output.discard()
        raise


class _Output:
    """The files being written; batches are gathered in a buffer and leave it in large writes."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        settings: LogSettings,
        topic_id: bytes,
        buffer_bytes: int,
        aborted: Sequence[AbortedTransaction],
        left_out: Sequence[AbortedTransaction],
        budget: WorkBudget,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._base_offset = base_offset
        self._budget = budget
        self._aborted = aborted
        self._table = batch_table(_TABLE_ROWS)
        self._indexer = SegmentIndexer(base_offset, settings, self._path(LOG))
        self._summary = SegmentSummaryBuilder(base_offset)
        self._keys = KeyIndexBuilder(
            fs,
            self._path(KEYS),
            base_offset=base_offset,
            topic_id=topic_id,
            buffer_bytes=buffer_bytes,
            aborted=left_out,
        )
        self._payloads: dict[int, Bytes] = {}
        self._payload_bytes = 0
        self._written = 0
        self.bytes_read = 0
        self.buffer: Bytes = np.empty(CHUNK_BYTES, np.uint8)
        self.filled = 0
        # Last, so that a failure above leaves neither a file nor an open descriptor.
        self._file: File = fs.open_writable(self._path(LOG))

    def _path(self, kind: str) -> str:
        return f"{self._directory}/{log_name(self._base_offset, kind)}{CLEANED}"

    def make_room(self, size: int) -> None:
        """Flushes the buffer, and enlarges it to hold at least `size` bytes."""
        self.flush()
        if size > self.buffer.size:
            self.buffer = np.empty(size, np.uint8)

    def add_batch(self, batch: FilteredBatch) -> None:
        """Adds a batch, and keeps its uncompressed records for the key index."""
        if (
            batch.size > self.buffer.size - self.filled
            or self._payload_bytes + batch.records.size > _PAYLOAD_BYTES_MAX
        ):
            self.make_room(batch.size)
        batch.write(self.buffer, self.filled)
        self._payloads[self._written + self.filled] = batch.records
        self._payload_bytes += batch.records.size
        self.filled += batch.size

    def flush(self) -> None:
        if self._written + self.filled > INT_MAX:
            raise DamagedSegment(
                f"{self._path(LOG)}: delete horizons would make the segment larger than the "
                f"{INT_MAX} bytes that an index can address; it stays as it is",
                self._base_offset,
            )
        start = 0
        view = memoryview(self.buffer)
        while start < self.filled:
            count, end, status = scan_batches(self.buffer, start, self.filled, False, self._table)
            assert status in (ScanStatus.END, ScanStatus.FULL), "only whole batches are gathered"
            rows = self._table[:count]
            table = BatchTable(rows, view, self._written, self._written + end)
            rows[:, BatchColumn.POSITION] += self._written
            indexed = self._indexer.add(table.rows)
            assert indexed == count, "batches are copied in the order of their offsets"
            self._summary.add(table)
            self._keys.add(table, self._payloads)
            start = end
        if self.filled:
            self._file.write_at(self._written, view[: self.filled])
            self._budget.spend(self.filled)
        self._written += self.filled
        self.filled = 0
        self._payloads.clear()
        self._payload_bytes = 0

    def finish(self, modified_ms: int) -> WrittenSegment:
        self.flush()
        self._file.sync()
        self._file.close()
        self._fs.set_modified_ms(self._path(LOG), modified_ms)
        self._write_index(INDEX, self._indexer.offset_index().encode())
        times = self._indexer.time_index()
        self._write_index(TIME_INDEX, times.encode())
        if self._aborted:
            index = TransactionIndex(self._base_offset)
            for transaction in self._aborted:
                index.append(transaction)
            self._write_index(TXN_INDEX, index.encode())
        header = self._keys.finish(self._written)
        return WrittenSegment(
            self._summary.summary(),
            bool(self._aborted),
            header,
            self._keys.digest,
            self.bytes_read,
            times.last[0],
        )

    def _write_index(self, kind: str, data: bytes) -> None:
        with self._fs.open_writable(self._path(kind)) as file:
            file.truncate(0)
            file.write_at(0, data)
            file.sync()

    def discard(self) -> None:
        self._file.close()
        self._keys.discard()
        _remove_files(self._fs, self._directory, self._base_offset)


def remove_unfinished(fs: FileSystem, directory: str) -> None:
    """Removes the files that a failed run left.

    Recovery would conclude from them that later swaps were not committed.
    """
    for name in fs.names(directory):
        file = parse_file_name(name)
        is_cleaned = file is not None and file.state == CLEANED
        if is_cleaned or is_unfinished_key_index(name):
            fs.remove(f"{directory}/{name}")


def _remove_files(fs: FileSystem, directory: str, base_offset: int) -> None:
    for kind in (LOG, INDEX, TIME_INDEX, TXN_INDEX, KEYS):
        with contextlib.suppress(FileNotFoundError):
            fs.remove(f"{directory}/{log_name(base_offset, kind)}{CLEANED}")


@dataclass(slots=True)
class _SegmentCopy:
    """Copies the surviving records of one segment to the output."""

    plan: SegmentPlan
    decisions: BatchDecisions
    output: _Output
    budget: WorkBudget
    chunk: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    file: File = field(init=False)

    def __post_init__(self) -> None:
        self.file = self.plan.segment.file()

    def run(self) -> None:
        for first, last, start, end in find_windows(self.decisions):
            self._copy(first, last, start, self._read(start, end))

    def _read(self, start: int, end: int) -> Bytes:
        size = self.plan.segment.size
        if end > size:
            raise self._damaged(size, "the data file ends before its last batch")
        if self.chunk.size < end - start:
            self.chunk = np.empty(max(end - start, CHUNK_BYTES), np.uint8)
        chunk = self.chunk[: end - start]
        filled = self.file.read_into(start, memoryview(chunk))
        if filled < end - start:
            raise self._damaged(start + filled, "the data file ends before its last batch")
        self.output.bytes_read += filled
        self.budget.spend(filled)
        return chunk

    def _copy(self, first: int, last: int, start: int, chunk: Bytes) -> None:
        decisions, output = self.decisions, self.output
        while first < last:
            status, first, output.filled = rewrite_batches(
                chunk,
                start,
                decisions.positions,
                decisions.sizes,
                decisions.base_offsets,
                decisions.counts,
                decisions.first_records,
                decisions.actions,
                decisions.horizons,
                self.plan.keep,
                first,
                last,
                output.buffer,
                output.filled,
            )
            if status == FilterStatus.FULL:
                output.make_room(self._room_for(first))
            elif status == FilterStatus.COMPRESSED:
                self._filter_compressed(first, start, chunk)
                first += 1
            elif status != FilterStatus.DONE:
                position = int(decisions.positions[first])
                raise self._damaged(position, _FAULTS[FilterStatus(status)])

    def _room_for(self, batch: int) -> int:
        decisions = self.decisions
        growth = int(decisions.counts[batch]) * RECORD_GROWTH_MAX
        return int(decisions.sizes[batch]) + growth + HEADER_BYTES

    def _filter_compressed(self, batch: int, start: int, chunk: Bytes) -> None:
        decisions = self.decisions
        position, size = int(decisions.positions[batch]), int(decisions.sizes[batch])
        try:
            filtered = filter_compressed(
                chunk[position - start : position - start + size],
                horizon=int(decisions.horizons[batch]),
                keep=self.plan.keep,
                first_bit=int(decisions.first_records[batch]),
                where=f"{self.plan.segment.path(LOG)}: position {position}",
            )
        except Corrupt as error:
            raise self._damaged(position, str(error)) from error
        self.output.add_batch(filtered)

    def _damaged(self, position: int, fault: str) -> DamagedSegment:
        segment = self.plan.segment
        return DamagedSegment(
            f"{segment.path(LOG)}: position {position}: {fault}; {HELD_REMEDY}",
            segment.base_offset,
        )


def find_windows(decisions: BatchDecisions) -> Iterator[tuple[int, int, int, int]]:
    """The reads of a copy: each the batches [first, last) and their bytes [start, end).

    A read ends before a gap wider than GAP_BYTES, and at CHUNK_BYTES unless one batch is larger.
    """
    numbers = np.flatnonzero(decisions.actions != Action.SKIP)
    starts = decisions.positions[numbers]
    ends = starts + decisions.sizes[numbers]
    after_gaps = np.flatnonzero(starts[1:] - ends[:-1] > GAP_BYTES) + 1
    first = 0
    for stop in [*after_gaps.tolist(), len(numbers)]:
        while first < stop:
            start = int(starts[first])
            fitting = int(np.searchsorted(ends[first:stop], start + CHUNK_BYTES, side="right"))
            last = first + max(fitting, 1)
            yield int(numbers[first]), int(numbers[last - 1]) + 1, start, int(ends[last - 1])
            first = last
