"""Turns scanned batches into the batch and mark tables of a key index, and checks their order.

Invariant  batches follow each other without a gap from position 0, their offsets ascend from the
           base offset and fit 32 bits, and none counts more records than it spans offsets: so the
           records of a segment fit 32 bits too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import (
    BATCH,
    BATCH_ABORTED,
    CONTROL_EMPTY,
    CONTROL_NONE,
    MARK,
    NO_HORIZON,
    Table,
)
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, OffsetOverflow
from varve.kernels.batch_layout import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
    BatchColumn,
    RecordStatus,
    status_text,
)
from varve.kernels.transaction_marks import ABORTED_COLUMNS, find_aborted, read_control_types
from varve.records import Batch
from varve.records.building import ControlType, decode_control_record

Integers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

CONTROL_UNKNOWN: Final = 2**15 - 1
"""Stands for a control type below 0, which Kafka reads as unknown."""
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TableFindings:
    """The rows of the key index for some batches, and which of them to scan for keys."""

    batches: Table
    marks: Table
    skip: npt.NDArray[np.uint8]
    """1 for batches that are not scanned in place: compressed, control and aborted ones."""
    compressed: Integers
    """Row numbers of the batches to decompress and scan."""


class BatchReader:
    """Reads the batches of one segment in file order."""

    def __init__(self, where: str, base_offset: int, aborted: Sequence[AbortedTransaction]) -> None:
        self._where = where
        self._base_offset = base_offset
        self._aborted = aborted_table(aborted)
        self._batch_count = 0
        self.log_size = 0
        self.next_offset = base_offset
        self.last_crc = 0

    def read(self, table: BatchTable) -> TableFindings:
        """The rows of the next batches; `table` has at least one."""
        rows = table.rows
        self._check_order(rows)
        attributes = rows[:, BatchColumn.ATTRIBUTES]
        control = attributes & CONTROL_BIT != 0
        transactional = attributes & TRANSACTIONAL_BIT != 0
        aborted = np.zeros(len(rows), np.uint8)
        if len(self._aborted):
            candidates = (transactional & ~control).view(np.uint8)
            find_aborted(rows, candidates, self._aborted, aborted)
        compressed = attributes & CODEC_MASK != 0
        skipped = control | aborted.view(np.bool_)
        marked = np.flatnonzero(control | transactional)
        findings = TableFindings(
            _batch_rows(rows, self._base_offset, aborted),
            self._mark_rows(table, marked, control),
            (skipped | compressed).view(np.uint8),
            np.flatnonzero(compressed & ~skipped & (rows[:, BatchColumn.RECORD_COUNT] != 0)),
        )
        self._batch_count += len(rows)
        self.log_size = int(rows[-1, BatchColumn.POSITION] + rows[-1, BatchColumn.SIZE])
        self.next_offset = int(rows[-1, BatchColumn.LAST_OFFSET]) + 1
        self.last_crc = int(rows[-1, BatchColumn.CRC])
        return findings

    def _check_order(self, rows: Integers) -> None:
        ends = rows[:, BatchColumn.POSITION] + rows[:, BatchColumn.SIZE]
        self._check_rows(
            rows, rows[:, BatchColumn.POSITION] != _shifted(ends, self.log_size), "a gap before"
        )
        base, last = rows[:, BatchColumn.BASE_OFFSET], rows[:, BatchColumn.LAST_OFFSET]
        self._check_rows(
            rows, base < _shifted(last + 1, self.next_offset), "an offset that repeats in"
        )
        self._check_rows(rows, last < base, "a last offset below the base offset of")
        counts = rows[:, BatchColumn.RECORD_COUNT]
        wrong = (counts < 0) | (counts > last - base + 1)
        self._check_rows(rows, wrong, "a record count that its offsets cannot hold in")
        far = np.flatnonzero((last - self._base_offset > _INT_MAX) | (ends > _INT_MAX))
        if far.size:
            row = rows[far[0]]
            raise OffsetOverflow(
                f"{self._name(row)} has last offset {int(row[BatchColumn.LAST_OFFSET])}, a "
                "segment from"
                f" {self._base_offset} on spans {_INT_MAX} offsets and bytes at most: split it"
            )

    def _check_rows(self, rows: Integers, wrong: Truths, what: str) -> None:
        if wrong.any():
            row = rows[int(wrong.argmax())]
            raise Corrupt(
                f"{self._name(row)}: {what} it; offsets {int(row[BatchColumn.BASE_OFFSET])} to"
                f" {int(row[BatchColumn.LAST_OFFSET])}, {int(row[BatchColumn.RECORD_COUNT])} "
                "records, expected"
                f" from position {self.log_size} and offset {self.next_offset} on"
            )

    def _name(self, row: Integers) -> str:
        return batch_name(self._where, int(row[BatchColumn.POSITION]))

    def _mark_rows(self, table: BatchTable, marked: Integers, control: Truths) -> Table:
        rows = table.rows
        marks = np.empty(len(marked), MARK)
        if not len(marked):
            return marks
        marks["batch"] = marked + self._batch_count
        marks["epoch"] = rows[marked, BatchColumn.PRODUCER_EPOCH]
        marks["producer_id"] = rows[marked, BatchColumn.PRODUCER_ID]
        marks["control"] = CONTROL_NONE
        controls = np.flatnonzero(control[marked])
        marks["control"][controls] = self._control_types(table, marked[controls])
        return marks

    def _control_types(self, table: BatchTable, numbers: Integers) -> Integers:
        rows = table.rows
        types = np.full(len(numbers), CONTROL_EMPTY, np.int64)
        counts = rows[numbers, BatchColumn.RECORD_COUNT]
        is_plain = (counts == 1) & (rows[numbers, BatchColumn.ATTRIBUTES] & CODEC_MASK == 0)
        plain = np.flatnonzero(is_plain)
        if plain.size:
            read_types = np.empty(plain.size, np.int64)
            buffer = np.frombuffer(table.buffer, np.uint8)
            status, row = read_control_types(buffer, table.start, rows, numbers[plain], read_types)
            if status != RecordStatus.OK:
                raise Corrupt(f"{self._name(rows[row])}: control record: {status_text(status)}")
            types[plain] = np.where(read_types < 0, CONTROL_UNKNOWN, read_types)
        for index in np.flatnonzero(~is_plain & (counts != 0)).tolist():
            types[index] = self._read_control_type(table, int(numbers[index]))
        return types

    def _read_control_type(self, table: BatchTable, row: int) -> int:
        """The type of a batch that no broker writes: compressed, or with several records."""
        columns = Batch(table.bytes_of(row), where=self._name(table.rows[row])).columns()
        kind = decode_control_record(columns.key(0), columns.value(0)).type
        return CONTROL_UNKNOWN if kind is ControlType.UNKNOWN else int(kind)


def batch_name(where: str, position: int) -> str:
    return f"data file of {where}: batch at position {position}"


def _shifted(values: Integers, first: int) -> Integers:
    """The value of each row's predecessor; `first` for the first row."""
    return np.concatenate((np.array([first], np.int64), values[:-1]))


def _batch_rows(rows: Integers, base_offset: int, aborted: npt.NDArray[np.uint8]) -> Table:
    batches = np.empty(len(rows), BATCH)
    attributes = rows[:, BatchColumn.ATTRIBUTES]
    has_horizon = attributes & DELETE_HORIZON_BIT != 0
    batches["position"] = rows[:, BatchColumn.POSITION]
    batches["size"] = rows[:, BatchColumn.SIZE]
    batches["base"] = rows[:, BatchColumn.BASE_OFFSET] - base_offset
    batches["last"] = rows[:, BatchColumn.LAST_OFFSET] - base_offset
    batches["count"] = rows[:, BatchColumn.RECORD_COUNT]
    batches["attributes"] = attributes & 0xFFFF
    batches["flags"] = aborted * np.uint8(BATCH_ABORTED)
    # A horizon before 1970 has passed just as 1970 has; clamped, it does not read as NO_HORIZON.
    horizons = np.maximum(rows[:, BatchColumn.BASE_TIMESTAMP], 0)
    batches["horizon"] = np.where(has_horizon, horizons, NO_HORIZON)
    return batches


def aborted_table(aborted: Sequence[AbortedTransaction]) -> Integers:
    """Rows for `find_aborted`, by producer; the ranges of a producer may overlap."""
    ranges = sorted((t.producer_id, t.first_offset, t.last_offset) for t in aborted)
    table = np.array(ranges, np.int64).reshape(-1, ABORTED_COLUMNS)
    for row in range(1, len(table)):
        if table[row, 0] == table[row - 1, 0]:
            table[row, 2] = max(table[row, 2], table[row - 1, 2])
    return table
