"""Byte ranges of log data as blocks of parsed records: prefetched, scanned and parsed by kernels.

Invariant  a block holds whole batches with valid checksums. Control batches, batches of aborted
           transactions and batches that cannot match the filter are left out.
Threads    one thread reads the blocks; `_PREFETCH_COUNT` others fetch the next chunks.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.batch_tables import aborted_table
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.foundation.settings import LONG_MAX
from varve.kernels.batch_layout import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchColumn,
    RecordColumn,
    ScanStatus,
    status_text,
)
from varve.kernels.transaction_marks import find_aborted
from varve.records import parse_columns
from varve.records.columns import frozen_bytes
from varve.records.committed import scan_whole_batches

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

CHUNK_BYTES: Final = 4 << 20
"""Bytes of one request to the object store; a block holds the batches of one chunk."""

_PREFETCH_COUNT: Final = 2
"""Chunks that are fetched while another one is parsed."""
_REMEDY: Final = "`varve tier fsck` checks the objects"


class ByteSource(Protocol):
    """Log data by position; `name` is for messages."""

    @property
    def name(self) -> str: ...

    def read(self, start: int, end: int) -> memoryview:
        """The bytes [start, end); raises if any of them is missing."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Selects records by offset, half-open, and by timestamp, with both bounds inclusive.

    Records of the `aborted` transactions are excluded.
    """

    start_offset: int = 0
    end_offset: int = LONG_MAX
    min_ms: int = -LONG_MAX
    max_ms: int = LONG_MAX
    aborted: tuple[AbortedTransaction, ...] = ()

    def choose_batches(self, rows: Table) -> Flags:
        attributes = rows[:, BatchColumn.ATTRIBUTES]
        chosen: Flags = (attributes & CONTROL_BIT) == 0
        chosen &= rows[:, BatchColumn.LAST_OFFSET] >= self.start_offset
        chosen &= rows[:, BatchColumn.BASE_OFFSET] < self.end_offset
        chosen &= rows[:, BatchColumn.MAX_TIMESTAMP] >= self.min_ms
        chosen &= rows[:, BatchColumn.RECORD_COUNT] != 0
        if self.aborted:
            is_candidate = (chosen & ((attributes & TRANSACTIONAL_BIT) != 0)).astype(np.uint8)
            is_aborted = np.empty(len(rows), np.uint8)
            find_aborted(rows, is_candidate, aborted_table(self.aborted), is_aborted)
            chosen &= is_aborted == 0
        return chosen

    def choose_records(self, records: Table) -> Flags:
        offsets = records[:, RecordColumn.OFFSET]
        chosen: Flags = (offsets >= self.start_offset) & (offsets < self.end_offset)
        if self.min_ms > -LONG_MAX or self.max_ms < LONG_MAX:
            timestamps = records[:, RecordColumn.TIMESTAMP]
            chosen &= (timestamps >= self.min_ms) & (timestamps <= self.max_ms)
        return chosen


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The batches at positions [start, end) of a source, and the filter for their records.

    All offsets of the source are in [`base_offset`, `end_offset`).
    """

    source: ByteSource
    partition: int
    start: int
    end: int
    record_filter: RecordFilter
    base_offset: int = 0
    end_offset: int = LONG_MAX


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Parsed records of consecutive batches.

    `records` has a row for each record, with positions in `payload`; `batches` has a row for each
    batch; `owners` is the row in `batches` of each record. A block of a fetch response has no
    `batch_range`.
    """

    payload: Bytes
    records: Table
    batches: Table
    owners: npt.NDArray[np.int64]
    partition: int
    record_filter: RecordFilter
    source_name: str
    batch_range: BatchRange | None = None

    def chosen(self) -> Flags:
        return self.record_filter.choose_records(self.records)


def parse_blocks(
    buffer: Bytes, rows: Table, *, partition: int, record_filter: RecordFilter, source_name: str
) -> Iterator[RecordBlock]:
    """The batches that may match the filter, parsed; one block unless they unpack to much."""
    batches = rows[record_filter.choose_batches(rows)]
    if not len(batches):
        return
    for columns, ends in parse_columns(buffer, batches, where=source_name):
        part, batches = batches[: len(ends)], batches[len(ends) :]
        owners = np.repeat(np.arange(len(part)), np.diff(ends, prepend=0))
        yield RecordBlock(
            columns.payload, columns.table, part, owners, partition, record_filter, source_name
        )


def read_blocks(
    batch_ranges: Iterable[BatchRange], *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[RecordBlock]:
    """The records of all batch ranges in order."""
    for buffer, rows, batch_range in read_batches(batch_ranges, chunk_bytes=chunk_bytes):
        try:
            for block in parse_blocks(
                buffer,
                rows,
                partition=batch_range.partition,
                record_filter=batch_range.record_filter,
                source_name=batch_range.source.name,
            ):
                yield replace(block, batch_range=batch_range)
        except Corrupt as error:
            raise Corrupt(f"{error}; {_REMEDY}") from error


def read_batches(
    batch_ranges: Iterable[BatchRange], *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[Bytes, Table, BatchRange]]:
    """The data of all ranges in order, and a row for each batch, whether it matches or not."""
    tail = np.empty(0, np.uint8)
    order_check = _OrderCheck()
    for batch_range, end, data in _prefetch(_chunks(batch_ranges, chunk_bytes)):
        fetched = np.frombuffer(data, np.uint8)
        buffer = frozen_bytes(np.concatenate([tail, fetched]) if tail.size else fetched)
        rows, position, status = scan_whole_batches(buffer)
        where = f"{batch_range.source.name}: position {end - buffer.size + position}"
        if status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
            kind = UnsupportedFormat if status == ScanStatus.OLD_MAGIC else Corrupt
            raise kind(f"{where}: {status_text(status)}; {_REMEDY}")
        tail = buffer[position:]
        order_check.check(rows, batch_range)
        yield buffer, rows, batch_range
        if end == batch_range.end and tail.size:
            raise Corrupt(
                f"{where}: the batch that starts here continues after position {end}, where the "
                f"last batch should end; {_REMEDY}"
            )


class _OrderCheck:
    """Checks that batches ascend within and across ranges: no checksum covers base offsets."""

    def __init__(self) -> None:
        self._batch_range: BatchRange | None = None
        self._first_base: int | None = None
        self._min_offset, self._end_offset = 0, LONG_MAX

    def check(self, rows: Table, batch_range: BatchRange) -> None:
        """Checks the next batches of a batch range; raises Corrupt."""
        if batch_range is not self._batch_range:
            self._begin(batch_range)
        if not len(rows):
            return
        bases, lasts = rows[:, BatchColumn.BASE_OFFSET], rows[:, BatchColumn.LAST_OFFSET]
        is_wrong = (lasts < bases) | (lasts >= self._end_offset)
        is_wrong[0] |= bases[0] < self._min_offset
        is_wrong[1:] |= bases[1:] <= lasts[:-1]
        if is_wrong.any():
            row = int(is_wrong.argmax())
            low = self._min_offset if row == 0 else int(lasts[row - 1]) + 1
            raise Corrupt(
                f"{batch_range.source.name}: batch with offsets {int(bases[row])} to "
                f"{int(lasts[row])}, where offsets from {low} to {self._end_offset - 1} should be; "
                f"{_REMEDY}"
            )
        if self._first_base is None:
            self._first_base = int(bases[0])
        self._min_offset = int(lasts[-1]) + 1

    def _begin(self, batch_range: BatchRange) -> None:
        previous = self._batch_range
        low, high = batch_range.base_offset, batch_range.end_offset
        if previous is not None and previous.source == batch_range.source:
            if previous.end <= batch_range.start:
                low = max(low, self._min_offset)
            elif batch_range.end <= previous.start and self._first_base is not None:
                high = min(high, self._first_base)
        self._batch_range, self._first_base = batch_range, None
        self._min_offset, self._end_offset = low, high


def _chunks(
    batch_ranges: Iterable[BatchRange], chunk_bytes: int
) -> Iterator[tuple[BatchRange, int, int]]:
    for batch_range in batch_ranges:
        for start in range(batch_range.start, batch_range.end, chunk_bytes):
            yield batch_range, start, min(start + chunk_bytes, batch_range.end)


def _prefetch(
    chunks: Iterator[tuple[BatchRange, int, int]],
) -> Iterator[tuple[BatchRange, int, memoryview]]:
    """The range, end position and bytes of each chunk; fetches the next chunks meanwhile."""
    with ThreadPoolExecutor(_PREFETCH_COUNT, thread_name_prefix="varve-fetch") as pool:
        pending: deque[tuple[BatchRange, int, Future[memoryview]]] = deque()
        try:
            for batch_range, start, end in chunks:
                pending.append((batch_range, end, pool.submit(batch_range.source.read, start, end)))
                if len(pending) > _PREFETCH_COUNT:
                    first, first_end, fetch = pending.popleft()
                    yield first, first_end, fetch.result()
            while pending:
                first, first_end, fetch = pending.popleft()
                yield first, first_end, fetch.result()
        finally:
            for _, _, fetch in pending:
                fetch.cancel()


def aborted_within(
    aborted: Sequence[AbortedTransaction], *, start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """The transactions that overlap the offsets [start, end)."""
    return tuple(
        transaction
        for transaction in aborted
        if transaction.last_offset >= start_offset and transaction.first_offset < end_offset
    )
