"""Stretches of log data as blocks of parsed records: fetched ahead, scanned and cut by kernels.

Invariant  a block holds whole batches that passed their checksum; control batches and those of
           aborted transactions are left out, and so are batches that cannot hold a wanted record.
Threads    one reads; another fetches the next chunks meanwhile.
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
"""One request to the store; also about what one Arrow batch holds."""

_AHEAD_COUNT: Final = 2
_REMEDY: Final = "`varve tier fsck` checks the objects"


class ByteSource(Protocol):
    """Log data by position; `name` is for messages."""

    @property
    def name(self) -> str: ...

    def read(self, start: int, end: int) -> memoryview:
        """All bytes [start, end), or it raises."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records are wanted: by offset, by time (both inclusive), and without these.

    Times are milliseconds. `aborted` are the transactions whose data is left out.
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
    """Batches [start, end) of a partition's data, from which records are wanted.

    All offsets of the data lie in [`base_offset`, `end_offset`).
    """

    source: ByteSource
    partition: int
    start: int
    end: int
    wanted: RecordFilter
    base_offset: int = 0
    end_offset: int = LONG_MAX


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Records of consecutive batches: a row each in `records`, whose starts lie in `payload`.

    `batches` are the rows of their batches, `owners` names the batch of each record. Blocks that
    were read from one batch range have it; those of a fetch response have none.
    """

    payload: Bytes
    records: Table
    batches: Table
    owners: npt.NDArray[np.int64]
    partition: int
    wanted: RecordFilter
    source_name: str
    batch_range: BatchRange | None = None

    def chosen(self) -> Flags:
        return self.wanted.choose_records(self.records)


def parse_block(
    buffer: Bytes, rows: Table, *, partition: int, wanted: RecordFilter, source_name: str
) -> RecordBlock | None:
    """The records of the batches that may hold wanted ones; None where no batch does."""
    batches = rows[wanted.choose_batches(rows)]
    if not len(batches):
        return None
    columns, ends = parse_columns(buffer, batches, where=source_name)
    owners = np.repeat(np.arange(len(batches)), np.diff(ends, prepend=0))
    return RecordBlock(
        columns.payload, columns.table, batches, owners, partition, wanted, source_name
    )


def read_blocks(
    batch_ranges: Iterable[BatchRange], *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[RecordBlock]:
    """The records of all batch ranges in order, at most one block per chunk."""
    for buffer, rows, batch_range in read_batches(batch_ranges, chunk_bytes=chunk_bytes):
        try:
            block = parse_block(
                buffer,
                rows,
                partition=batch_range.partition,
                wanted=batch_range.wanted,
                source_name=batch_range.source.name,
            )
        except Corrupt as error:
            raise Corrupt(f"{error}; {_REMEDY}") from error
        if block is not None:
            yield replace(block, batch_range=batch_range)


def read_batches(
    batch_ranges: Iterable[BatchRange], *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[Bytes, Table, BatchRange]]:
    """A row for each batch of all ranges in order, wanted or not, and the bytes that hold it."""
    tail = np.empty(0, np.uint8)
    order = _Order()
    for batch_range, end, data in _fetch_ahead(_chunks(batch_ranges, chunk_bytes)):
        fetched = np.frombuffer(data, np.uint8)
        buffer = frozen_bytes(np.concatenate([tail, fetched]) if tail.size else fetched)
        rows, position, status = scan_whole_batches(buffer)
        where = f"{batch_range.source.name}: position {end - buffer.size + position}"
        if status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
            kind = UnsupportedFormat if status == ScanStatus.OLD_MAGIC else Corrupt
            raise kind(f"{where}: {status_text(status)}; {_REMEDY}")
        tail = buffer[position:]
        order.check(rows, batch_range)
        yield buffer, rows, batch_range
        if end == batch_range.end and tail.size:
            raise Corrupt(
                f"{where}: the batch that starts here continues after position {end}, where the "
                f"last batch should end; {_REMEDY}"
            )


class _Order:
    """Checks that batches ascend, which no checksum covers, as far as the batch_ranges adjoin."""

    def __init__(self) -> None:
        self._batch_range: BatchRange | None = None
        self._base: int | None = None
        self._low, self._high = 0, LONG_MAX

    def check(self, rows: Table, batch_range: BatchRange) -> None:
        """Takes the next batches of a batch_range; raises Corrupt."""
        if batch_range is not self._batch_range:
            self._begin(batch_range)
        if not len(rows):
            return
        bases, lasts = rows[:, BatchColumn.BASE_OFFSET], rows[:, BatchColumn.LAST_OFFSET]
        is_wrong = (lasts < bases) | (lasts >= self._high)
        is_wrong[0] |= bases[0] < self._low
        is_wrong[1:] |= bases[1:] <= lasts[:-1]
        if is_wrong.any():
            row = int(is_wrong.argmax())
            low = self._low if row == 0 else int(lasts[row - 1]) + 1
            raise Corrupt(
                f"{batch_range.source.name}: batch with offsets {int(bases[row])} to "
                f"{int(lasts[row])}, where offsets from {low} to {self._high - 1} should be; "
                f"{_REMEDY}"
            )
        if self._base is None:
            self._base = int(bases[0])
        self._low = int(lasts[-1]) + 1

    def _begin(self, batch_range: BatchRange) -> None:
        before = self._batch_range
        low, high = batch_range.base_offset, batch_range.end_offset
        if before is not None and before.source == batch_range.source:
            if before.end <= batch_range.start:
                low = max(low, self._low)
            elif batch_range.end <= before.start and self._base is not None:
                high = min(high, self._base)
        self._batch_range, self._base = batch_range, None
        self._low, self._high = low, high


def _chunks(
    batch_ranges: Iterable[BatchRange], chunk_bytes: int
) -> Iterator[tuple[BatchRange, int, int]]:
    for batch_range in batch_ranges:
        for start in range(batch_range.start, batch_range.end, chunk_bytes):
            yield batch_range, start, min(start + chunk_bytes, batch_range.end)


def _fetch_ahead(
    chunks: Iterator[tuple[BatchRange, int, int]],
) -> Iterator[tuple[BatchRange, int, memoryview]]:
    """Each chunk's bytes, with its end; the next ones are on their way meanwhile."""
    with ThreadPoolExecutor(_AHEAD_COUNT, thread_name_prefix="varve-fetch") as pool:
        flights: deque[tuple[BatchRange, int, Future[memoryview]]] = deque()
        try:
            for batch_range, start, end in chunks:
                flights.append((batch_range, end, pool.submit(batch_range.source.read, start, end)))
                if len(flights) > _AHEAD_COUNT:
                    first, first_end, flight = flights.popleft()
                    yield first, first_end, flight.result()
            while flights:
                first, first_end, flight = flights.popleft()
                yield first, first_end, flight.result()
        finally:
            for _, _, flight in flights:
                flight.cancel()


def aborted_within(
    aborted: Sequence[AbortedTransaction], *, start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Those that touch [start, end)."""
    return tuple(
        transaction
        for transaction in aborted
        if transaction.last_offset >= start_offset and transaction.first_offset < end_offset
    )
