"""Filters the committed records of a fetch response or a log read; all readers use it.

Aborted transactions are dropped as in Kafka's consumer: each begins at its first offset and ends at
its producer's next abort marker. A read_uncommitted read lists no aborted transactions.

Invariant  only whole batches with a valid CRC are returned, in offset order, without control
           batches, empty batches and batches of aborted transactions.
Threads    immutable after construction; the data must not change either.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt, StoreError
from varve.kernels.batch_layout import (
    BATCH_COLUMN_COUNT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_LOG_APPEND_TIMESTAMP,
    RECORD_COLUMN_COUNT,
    RECORD_SIZE_MIN,
    TRANSACTIONAL_BIT,
    BatchColumn,
    RecordStatus,
    ScanStatus,
    status_text,
)
from varve.kernels.batch_scan import scan_batches
from varve.kernels.record_columns import BATCH_SPAN_COUNT, BatchSpan, parse_batches
from varve.kernels.record_parse import record_table
from varve.records.batch import Batch, RecordColumns
from varve.records.batch_format import BatchHeader, Buffer, Codec, codec_of, decode_header
from varve.records.building import ControlType, decode_control_record
from varve.records.columns import Bytes, Integers, frozen_bytes
from varve.records.compression import decompress

Table = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LONG_MAX = 2**63 - 1
_ROWS_MAX = 4096
_ROW_BYTES: Final = 8 * RECORD_COLUMN_COUNT

PART_BYTES_MAX: Final = 64 << 20
"""Content of compressed batches and rows of records that a reader has in memory at a time; a
larger batch is a part of its own. Batches of a fetch may unpack to a thousand times its size."""


class CommittedBatches:
    """The committed batches of `data` with records at or after `start_offset`.

    Iteration yields each as a `Batch` and raises Corrupt at the first damaged batch; all other
    methods raise if any batch is damaged. An incomplete last batch of a fetch response is ignored:
    the next fetch starts with it.
    """

    def __init__(
        self,
        data: Buffer,
        aborted: Iterable[tuple[int, int]] = (),
        *,
        start_offset: int = 0,
        end_offset: int | None = None,
        where: str = "batch",
    ) -> None:
        """`aborted` has pairs of producer id and first offset, as a fetch response lists them.

        `end_offset` is the end of the partition's committed records when it was read, if known.
        """
        self._data = data
        self._where = where
        self._start_offset = start_offset
        self._buffer = frozen_bytes(data)
        rows, position, status = scan_whole_batches(self._buffer)
        self._damage = None
        if status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
            self._damage = _explain_damage(data, position, status, where)
        self._all_rows = rows
        self.aborted = tuple(aborted)
        self._rows = rows[self._choose(rows, self.aborted)]
        self._end_offset = end_offset

    @property
    def buffer(self) -> Bytes:
        """All data, to which the positions of `rows` refer."""
        return self._buffer

    @property
    def rows(self) -> Table:
        """A row of `BatchColumn` for each committed batch."""
        self._check_undamaged()
        return self._rows

    @property
    def next_offset(self) -> int:
        """The offset after the last whole batch, committed or not; `start_offset` without one."""
        self._check_undamaged()
        if not len(self._all_rows):
            return self._start_offset
        return max(self._start_offset, int(self._all_rows[:, BatchColumn.LAST_OFFSET].max()) + 1)

    @property
    def end_offset(self) -> int:
        """The end of the partition's committed records when it was read; else `next_offset`."""
        return self.next_offset if self._end_offset is None else self._end_offset

    @property
    def last_header(self) -> BatchHeader | None:
        """The header of the last whole batch, committed or not; None without one."""
        self._check_undamaged()
        if not len(self._all_rows):
            return None
        return decode_header(self._data, int(self._all_rows[-1, BatchColumn.POSITION]))

    @property
    def size(self) -> int:
        """Bytes of the committed batches."""
        self._check_undamaged()
        return int(self._rows[:, BatchColumn.SIZE].sum())

    @property
    def batches(self) -> list[Batch]:
        return list(self)

    def __iter__(self) -> Iterator[Batch]:
        for position in self._rows[:, BatchColumn.POSITION].tolist():
            yield Batch(self._data, self._where, position=position)
        self._check_undamaged()

    def __len__(self) -> int:
        self._check_undamaged()
        return len(self._rows)

    def first_batches(self, *, max_records: int) -> "CommittedBatches":
        """The batches up to the one that reaches `max_records`, without parsing any record."""
        self._check_undamaged()
        is_enough = np.cumsum(self._rows[:, BatchColumn.RECORD_COUNT]) >= max_records
        return self._first(int(np.argmax(is_enough)) + 1) if is_enough.any() else self

    def _first(self, count: int) -> "CommittedBatches":
        if count == len(self._rows):
            return self
        position = self._rows[count - 1, BatchColumn.POSITION]
        first = copy(self)
        first._rows = self._rows[:count]
        first._all_rows = self._all_rows[self._all_rows[:, BatchColumn.POSITION] <= position]
        return first

    def columns(self, *, start: int | None = None, end: int = _LONG_MAX) -> Iterator[RecordColumns]:
        """The records with offsets [start, end), `start_offset` by default, in bounded tables."""
        self._check_undamaged()
        start = self._start_offset if start is None else start
        for columns, ends in parse_columns(self._buffer, self._rows, where=self._where):
            yield _rows_within(columns, ends, start, end)[0]

    def first_part(self) -> "BatchesPart":
        """As many of the first batches as a reader should have in memory, with their records."""
        self._check_undamaged()
        columns, ends = next(parse_columns(self._buffer, self._rows, where=self._where))
        within = _rows_within(columns, ends, self._start_offset, _LONG_MAX)
        return BatchesPart(self._first(len(ends)), *within)

    def _check_undamaged(self) -> None:
        if self._damage is not None:
            raise self._damage

    def _choose(self, rows: Table, aborted: Sequence[tuple[int, int]]) -> Flags:
        chosen: Flags = (rows[:, BatchColumn.ATTRIBUTES] & CONTROL_BIT) == 0
        chosen &= rows[:, BatchColumn.LAST_OFFSET] >= self._start_offset
        chosen &= rows[:, BatchColumn.RECORD_COUNT] != 0
        if aborted:
            chosen &= ~self._find_aborted(rows, aborted)
        return chosen

    def _find_aborted(self, rows: Table, aborted: Sequence[tuple[int, int]]) -> Flags:
        pending = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        open_producers: set[int] = set()
        is_aborted = np.zeros(len(rows), np.bool_)
        for index, row in enumerate(rows.tolist()):
            while pending and pending[-1][1] <= row[BatchColumn.LAST_OFFSET]:
                open_producers.add(pending.pop()[0])
            attributes, producer_id = row[BatchColumn.ATTRIBUTES], row[BatchColumn.PRODUCER_ID]
            if producer_id not in open_producers:
                continue
            if attributes & CONTROL_BIT:
                if _is_abort(Batch(self._data, self._where, position=row[BatchColumn.POSITION])):
                    open_producers.discard(producer_id)
            elif attributes & TRANSACTIONAL_BIT:
                is_aborted[index] = True
        return is_aborted


class BatchesPart(NamedTuple):
    """Batches with their records; those of batch i are rows [ends[i - 1], ends[i])."""

    batches: CommittedBatches
    columns: RecordColumns
    ends: Integers


def _rows_within(
    columns: RecordColumns, ends: Integers, start: int, end: int
) -> tuple[RecordColumns, Integers]:
    offsets = columns.offsets
    inside = (offsets >= start) & (offsets < end)
    if inside.all():
        return columns, ends
    kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])
    return RecordColumns(columns.payload, columns.table[inside]), kept[ends]


def parse_columns(
    buffer: Bytes, rows: Table, *, where: str
) -> Iterator[tuple[RecordColumns, Integers]]:
    """The records of the batches in `rows`, and the end of each batch's rows in their table.

    There is a table for each run of batches that fits into `PART_BYTES_MAX`, at least one.
    `rows` come from `scan_batches` over `buffer`. Raises Corrupt naming the first broken record.
    """
    for payload, spans in _locate_records(buffer, rows, where):
        yield _parse_spans(payload, spans, where)


def _parse_spans(payload: Bytes, spans: Table, where: str) -> tuple[RecordColumns, Integers]:
    _check_counts(spans, where)
    counts = spans[:, BatchSpan.RECORD_COUNT]
    table = record_table(int(counts.sum()))
    status, batch, record = parse_batches(payload, spans, table)
    if status != RecordStatus.OK:
        offset = int(spans[batch, BatchSpan.BASE_OFFSET])
        raise Corrupt(
            f"{where}: batch with offset {offset}, record {record} of {int(counts[batch])}: "
            f"{status_text(status)}"
        )
    return RecordColumns(payload, table), np.cumsum(counts)


def scan_whole_batches(buffer: Bytes, *, verify_crc: bool = True) -> tuple[Table, int, ScanStatus]:
    """A row for each whole and valid batch, the position after them, and why the scan ended."""
    tables = []
    position, status = 0, int(ScanStatus.FULL)
    while status == ScanStatus.FULL:
        capacity = min(_ROWS_MAX, (buffer.size - position) // HEADER_BYTES + 1)
        rows = np.empty((capacity, BATCH_COLUMN_COUNT), np.int64)
        count, position, status = scan_batches(buffer, position, buffer.size, verify_crc, rows)
        tables.append(rows[:count])
    table = tables[0] if len(tables) == 1 else np.concatenate(tables)
    return table, position, ScanStatus(status)


def _explain_damage(data: Buffer, position: int, status: int, where: str) -> StoreError:
    try:
        header = decode_header(data, position, where=where)
    except Corrupt as error:
        return error
    if status == ScanStatus.BAD_CRC:
        return Corrupt(
            f"{where}: the batch with offset {header.base_offset} does not match its CRC; run "
            "`varve check` on the directory to see what is broken"
        )
    return Corrupt(f"{where}: position {position}: {status_text(status)}")


def _is_abort(batch: Batch) -> bool:
    columns = batch.columns()
    if not len(columns):
        return False
    return decode_control_record(columns.key(0), columns.value(0)).type is ControlType.ABORT


def _locate_records(buffer: Bytes, rows: Table, where: str) -> Iterator[tuple[Bytes, Table]]:
    """For each part the bytes that contain the records, and the `BatchSpan` row of each batch."""
    spans = np.empty((len(rows), BATCH_SPAN_COUNT), np.int64)
    attributes = rows[:, BatchColumn.ATTRIBUTES]
    spans[:, BatchSpan.RECORDS_START] = rows[:, BatchColumn.POSITION] + HEADER_BYTES
    spans[:, BatchSpan.RECORDS_END] = rows[:, BatchColumn.POSITION] + rows[:, BatchColumn.SIZE]
    spans[:, BatchSpan.RECORD_COUNT] = rows[:, BatchColumn.RECORD_COUNT]
    spans[:, BatchSpan.BASE_OFFSET] = rows[:, BatchColumn.BASE_OFFSET]
    spans[:, BatchSpan.BASE_TIMESTAMP] = rows[:, BatchColumn.BASE_TIMESTAMP]
    is_append_time = (attributes & LOG_APPEND_TIME_BIT) != 0
    append_times = rows[:, BatchColumn.MAX_TIMESTAMP]
    spans[:, BatchSpan.LOG_APPEND_TIMESTAMP] = np.where(
        is_append_time, append_times, NO_LOG_APPEND_TIMESTAMP
    )
    codecs = attributes & CODEC_MASK
    has_codec = bool(codecs.any())
    rows_bytes = int(np.maximum(spans[:, BatchSpan.RECORD_COUNT], 0).sum()) * _ROW_BYTES
    if not has_codec and rows_bytes <= PART_BYTES_MAX:
        yield buffer, spans
        return
    pieces: list[Bytes] = []
    first = size = 0
    for row, (start, end, codec, offset, count) in enumerate(
        zip(
            spans[:, BatchSpan.RECORDS_START].tolist(),
            spans[:, BatchSpan.RECORDS_END].tolist(),
            codecs.tolist(),
            spans[:, BatchSpan.BASE_OFFSET].tolist(),
            spans[:, BatchSpan.RECORD_COUNT].tolist(),
            strict=True,
        )
    ):
        piece = _decompress(buffer[start:end], codec, f"{where}: batch with offset {offset}")
        added = piece.size + min(max(count, 0), piece.size // RECORD_SIZE_MIN) * _ROW_BYTES
        if pieces and size + added > PART_BYTES_MAX:
            yield _join(buffer, pieces, spans[first:row], is_joined=has_codec)
            pieces, first, size = [], row, 0
        pieces.append(piece)
        size += added
    yield _join(buffer, pieces, spans[first:], is_joined=has_codec)


def _join(
    buffer: Bytes, pieces: list[Bytes], spans: Table, *, is_joined: bool
) -> tuple[Bytes, Table]:
    """The pieces as one, where some had to be decompressed, and where each batch's records are."""
    if not is_joined:
        return buffer, spans
    ends = np.cumsum([piece.size for piece in pieces])
    spans[:, BatchSpan.RECORDS_END] = ends
    spans[0, BatchSpan.RECORDS_START] = 0
    spans[1:, BatchSpan.RECORDS_START] = ends[:-1]
    return frozen_bytes(pieces[0] if len(pieces) == 1 else np.concatenate(pieces)), spans


def _decompress(data: Bytes, number: int, where: str) -> Bytes:
    codec = codec_of(number, where=where)
    return data if codec is Codec.NONE else decompress(codec, data.data, where=where)


def _check_counts(spans: Table, where: str) -> None:
    """Rejects record counts that exceed the bytes, before memory is allocated for them."""
    sizes = spans[:, BatchSpan.RECORDS_END] - spans[:, BatchSpan.RECORDS_START]
    counts = spans[:, BatchSpan.RECORD_COUNT]
    is_wrong = (counts < 0) | (counts > sizes // RECORD_SIZE_MIN)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        offset = int(spans[row, BatchSpan.BASE_OFFSET])
        raise Corrupt(
            f"{where}: batch with offset {offset} has {int(counts[row])} records in "
            f"{int(sizes[row])} bytes"
        )
