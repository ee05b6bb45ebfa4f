"""Walks the batches of a data file in large chunks, as tables rather than objects.

Invariant  every listed batch lies wholly within the given range; positions count from the file's
           start.
Crash      a torn or damaged tail ends the walk with a status; nothing is raised for it here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.time_index import TimeIndex
from varve.disk import File
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_layout import BATCH_COLUMN_COUNT, BatchColumn, ScanStatus, status_text
from varve.kernels.batch_scan import scan_batches

CHUNK_BYTES: Final = 4 << 20
_TABLE_ROWS: Final = 8192
_PREFIX_BYTES: Final = 12
_REPAIR: Final = "`varve check --repair` cuts or rebuilds what can be mended"


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Some consecutive batches: a row each, columns by `Field`.

    `buffer[row position - start]` begins the batch.

    The buffer is reused by the walk: copy what must outlive the next step.
    """

    rows: npt.NDArray[np.int64]
    buffer: memoryview
    start: int
    end: int

    def first(self, count: int) -> "BatchTable":
        """The table of its first batches."""
        if count == len(self.rows):
            return self
        end = int(self.rows[count, BatchColumn.POSITION])
        return BatchTable(self.rows[:count], self.buffer, self.start, end)

    def bytes_of(self, row: int) -> memoryview:
        position = int(self.rows[row, BatchColumn.POSITION]) - self.start
        return self.buffer[position : position + int(self.rows[row, BatchColumn.SIZE])]


class BatchWalk:
    """One walk over `[start, end)` of a data file.

    After it, `position` and `status` say where and why it ended.
    """

    def __init__(self, file: File, *, start: int, end: int, verify_crc: bool) -> None:
        self._file = file
        self._end = end
        self._verify_crc = verify_crc
        self._table = np.empty((_TABLE_ROWS, BATCH_COLUMN_COUNT), np.int64)
        self.position = start
        self.status = ScanStatus.END

    def __iter__(self) -> Iterator[BatchTable]:
        chunk = np.empty(min(CHUNK_BYTES, max(self._end - self.position, 1)), np.uint8)
        while self.position < self._end:
            base = self.position
            filled = self._file.read_into(base, memoryview(chunk)[: self._end - base])
            progressed = False
            for table in self._tables(chunk, base, filled):
                progressed = True
                yield table
            stopped = self.status not in (ScanStatus.END, ScanStatus.INCOMPLETE)
            # A file that is shorter than it should be ends the walk there.
            is_last = filled < chunk.size or base + filled >= self._end
            if stopped or is_last:
                return
            if not progressed:
                chunk = self._grown(chunk, base)
                if chunk.size == 0:
                    return

    def _tables(self, chunk: npt.NDArray[np.uint8], base: int, filled: int) -> Iterator[BatchTable]:
        view = memoryview(chunk)
        start = 0
        while True:
            count, start, status = scan_batches(chunk, start, filled, self._verify_crc, self._table)
            self.status = ScanStatus(status)
            self.position = base + start
            if count:
                rows = self._table[:count]
                rows[:, BatchColumn.POSITION] += base
                yield BatchTable(rows, view, base, self.position)
            if self.status != ScanStatus.FULL:
                return

    def _grown(self, chunk: npt.NDArray[np.uint8], base: int) -> npt.NDArray[np.uint8]:
        """A buffer that holds the batch at `base` whole.

        Or an empty one when the file ends before it does.
        """
        prefix = self._file.read_at(base, _PREFIX_BYTES)
        size = int.from_bytes(prefix[8:12], "big", signed=True) + _PREFIX_BYTES
        if size > self._end - base:
            return chunk[:0]
        return np.empty(max(size, 2 * chunk.size), np.uint8)

    def check_ended(self, where: str, *, remedy: str | None = _REPAIR) -> None:
        """Raises what stopped the walk early.

        Unless it came to the end of whole batches or a torn tail. `remedy` is what to do about
        damage, None where the caller says it.
        """
        if self.status in (ScanStatus.END, ScanStatus.INCOMPLETE, ScanStatus.FULL):
            return
        message = f"{where}: position {self.position}: {status_text(self.status)}"
        if self.status == ScanStatus.OLD_MAGIC:
            raise UnsupportedFormat(
                f"{message}; rewrite the topic with a Kafka release that converts message "
                "formats 0 and 1"
            )
        raise Corrupt(message if remedy is None else f"{message}; {remedy}")


def find_largest_timestamp(
    file: File, time_index: TimeIndex, offset_index: OffsetIndex, *, size: int
) -> tuple[int, int]:
    """Largest timestamp and the last offset of the earliest batch that holds it.

    The time index knows it up to its last entry; the batches behind that are walked.
    """
    largest, offset = time_index.last
    position = offset_index.lookup(offset)[1]
    for table in BatchWalk(file, start=position, end=size, verify_crc=False):
        timestamps = table.rows[:, BatchColumn.MAX_TIMESTAMP]
        row = int(timestamps.argmax())
        if timestamps[row] > largest:
            largest = int(timestamps[row])
            offset = int(table.rows[row, BatchColumn.LAST_OFFSET])
    return largest, offset
