"""Checks the batches of one data file.

Invariant  continues after a batch with a wrong checksum, so that all of them are reported; stops at
           any fault that leaves the position of the next batch unknown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.check.findings import FindingList
from varve.commit_log.producer_snapshots import count_before_bad_marker
from varve.commit_log.segment_reader import BatchTable, BatchWalk, is_zeros, read_batch_size
from varve.commit_log.segment_recovery import is_old_message
from varve.commit_log.sparse_index import RELATIVE_OFFSET_MAX
from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn, ScanStatus, status_text
from varve.records import Batch, TimestampType

_BAD_CHECKSUMS_MAX: Final = 16  # reported per file; the check of the file stops there

_RULES: Final = {
    ScanStatus.INCOMPLETE: "torn-tail",
    ScanStatus.CORRUPT_SIZE: "batch-size",
    ScanStatus.BAD_MAGIC: "batch-magic",
    ScanStatus.OLD_MAGIC: "old-format",
    ScanStatus.BAD_CRC: "batch-crc",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a data file; recovery would truncate the file at the first one."""

    position: int
    rule: str
    message: str
    is_zeros: bool = False


class BatchCheck:
    """Walks a data file once; afterwards `good_end` is the end of its valid batches."""

    def __init__(
        self,
        finding_list: FindingList,
        path: str,
        *,
        base_offset: int,
        deep: bool,
        advance: Callable[[int], None],
    ) -> None:
        self._findings = finding_list
        self._path = path
        self._base_offset = base_offset
        self._deep = deep
        self._advance = advance
        self._last_offset = base_offset - 1
        self.faults: list[Fault] = []
        self.good_end = 0
        self.next_offset = base_offset
        self.seen_end = 0

    def tables(self, file: File, size: int) -> Iterator[tuple[BatchTable, bool]]:
        """Every table of batches, and whether it lies before the first fault."""
        position = 0
        while position < size:
            walk = BatchWalk(file, start=position, end=size, verify_crc=True)
            for table in walk:
                good = self._check_table(table)
                if len(good.rows):
                    self.seen_end = good.end
                    yield good, self._record_valid(good)
                if len(good.rows) < len(table.rows):
                    return
            position = self._record_end(walk, file, size)

    def _check_table(self, table: BatchTable) -> BatchTable:
        """The table up to the first batch at which recovery would truncate."""
        good = table.first(count_before_bad_marker(table, where=self._path))
        if len(good.rows) < len(table.rows):
            self.faults.append(Fault(good.end, "control-batch", "the control record is malformed"))
        rows = good.rows
        bases, lasts = rows[:, BatchColumn.BASE_OFFSET], rows[:, BatchColumn.LAST_OFFSET]
        previous = np.concatenate([[self._last_offset], lasts])[:-1]
        falls = np.flatnonzero((bases <= previous) | (lasts < bases))
        if falls.size:
            row = int(falls[0])
            message = f"offsets {bases[row]}..{lasts[row]} do not ascend from {previous[row]}"
            good = good.first(row)
            self.faults.append(Fault(good.end, "offsets-ascend", message))
        if len(good.rows):
            self._check_rows(good)
            self._last_offset = int(good.rows[-1, BatchColumn.LAST_OFFSET])
        self._advance(good.end - good.start)
        return good

    def _check_rows(self, table: BatchTable) -> None:
        rows = table.rows
        bases, lasts = rows[:, BatchColumn.BASE_OFFSET], rows[:, BatchColumn.LAST_OFFSET]
        self._add(
            table,
            lasts - self._base_offset > RELATIVE_OFFSET_MAX,
            "offset-overflow",
            "offset beyond the 32-bit range of the segment",
            repair="split the segment",
        )
        counts = rows[:, BatchColumn.RECORD_COUNT]
        wrong = (counts < 0) | (counts > lasts - bases + 1)
        self._add(table, wrong, "batch-count", "more records than offsets, or a negative count")
        if self._deep:
            for row in range(len(rows)):
                self._check_records(table, row)

    def _add(
        self,
        table: BatchTable,
        is_wrong: npt.NDArray[np.bool_],
        rule: str,
        message: str,
        repair: str | None = None,
    ) -> None:
        for row in np.flatnonzero(is_wrong).tolist():
            fields = table.rows[row]
            offsets = (
                f"offsets {fields[BatchColumn.BASE_OFFSET]}..{fields[BatchColumn.LAST_OFFSET]}"
            )
            text = f"batch with {offsets}: {message}"
            position = int(fields[BatchColumn.POSITION])
            self._findings.error(self._path, rule, text, position=position, repair=repair)

    def _check_records(self, table: BatchTable, row: int) -> None:
        position = int(table.rows[row, BatchColumn.POSITION])
        batch = Batch(table.bytes_of(row), where=self._path)
        try:
            columns = batch.columns()
        except Corrupt as error:
            message = str(error).removeprefix(f"{self._path}: ")
            self._findings.error(self._path, "records-corrupt", message, position=position)
            return
        header, offsets = batch.header, columns.offsets
        if not len(offsets):
            return
        is_inside = header.base_offset <= offsets[0] and offsets[-1] <= header.last_offset
        if not is_inside or (np.diff(offsets) <= 0).any():
            message = f"record offsets do not ascend within {header.base_offset}.."
            message += str(header.last_offset)
            self._findings.error(self._path, "records-offsets", message, position=position)
        largest = int(columns.timestamps.max())
        if header.timestamp_type is TimestampType.CREATE_TIME and largest != header.max_timestamp:
            message = f"largest timestamp is {largest}, the header says {header.max_timestamp}"
            self._findings.warning(self._path, "records-timestamp", message, position=position)

    def _record_valid(self, table: BatchTable) -> bool:
        if self.faults and self.faults[0].position < table.end:
            return False
        self.good_end = table.end
        self.next_offset = int(table.rows[-1, BatchColumn.LAST_OFFSET]) + 1
        return True

    def _record_end(self, walk: BatchWalk, file: File, size: int) -> int:
        """Records why a walk ended; returns the position where the next one starts."""
        position, status = walk.position, walk.status
        if position >= size:
            return size
        has_zeros = status != ScanStatus.BAD_CRC and is_zeros(file, position, size)
        if status == ScanStatus.OLD_MAGIC and not is_old_message(file, position, size):
            status = ScanStatus.BAD_MAGIC
        rule = "zero-tail" if has_zeros else _RULES[status]
        self.faults.append(Fault(position, rule, status_text(status), has_zeros))
        if status != ScanStatus.BAD_CRC:
            return size
        if sum(fault.rule == rule for fault in self.faults) >= _BAD_CHECKSUMS_MAX:
            return size
        return position + read_batch_size(file, position)
