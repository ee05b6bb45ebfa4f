"""What the offset-map cleaner reads and writes: runs of batches, and new segments.

Layout     a new segment is `.cleaned` files with both indexes, by the rules of an append.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from varve.commit_log import LogSettings
from varve.commit_log.names import CLEANED, INDEX, LOG, TIME_INDEX
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.sparse_index import SegmentIndexer
from varve.disk import FileSystem
from varve.kernels.batch_layout import BATCH_COLUMN_COUNT, CODEC_MASK, HEADER_BYTES, BatchColumn
from varve.kernels.batch_scan import scan_batches
from varve.records import Codec
from varve.records.compression import decompress

Bytes = npt.NDArray[np.uint8]

_OUT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive uncompressed batches, or one compressed batch with its content.

    `payload[row position - payload_start]` begins an uncompressed batch; a compressed one's
    records are the whole payload.
    """

    rows: npt.NDArray[np.int64]
    payload: Bytes
    payload_start: int
    base_offset: int
    """The segment's."""
    is_compressed: bool
    table: BatchTable

    @property
    def record_count(self) -> int:
        return int(self.rows[:, BatchColumn.RECORD_COUNT].sum())

    @property
    def last_offset(self) -> int:
        return int(self.rows[-1, BatchColumn.LAST_OFFSET])

    def batch(self, row: int) -> Bytes:
        """The stored bytes of a batch."""
        return _bytes_of(self.table, self.rows[row])


def split_runs(table: BatchTable, base_offset: int) -> Iterator[Run]:
    rows = table.rows
    codecs = rows[:, BatchColumn.ATTRIBUTES] & CODEC_MASK
    first = 0
    while first < len(rows):
        if codecs[first]:
            last = first + 1
            stored = _bytes_of(table, rows[first])
            payload = decompress(Codec(int(codecs[first])), stored.data[HEADER_BYTES:])
            start = 0
        else:
            compressed = np.flatnonzero(codecs[first:])
            last = first + int(compressed[0]) if len(compressed) else len(rows)
            payload, start = np.frombuffer(table.buffer, np.uint8), table.start
        yield Run(rows[first:last], payload, start, base_offset, bool(codecs[first]), table)
        first = last


class SegmentWriter:
    """The `.cleaned` files of one new segment."""

    def __init__(self, fs: FileSystem, path: str, base_offset: int, settings: LogSettings) -> None:
        self._fs = fs
        self._path = path
        self._file = fs.open_writable(path + CLEANED)
        self._indexer = SegmentIndexer(base_offset, settings, path)
        self._size = 0
        self.out: Bytes = np.empty(_OUT_BYTES, np.uint8)
        self.filled = 0

    def make_room(self, size: int) -> None:
        self._write_out()
        if size > len(self.out):
            self.out = np.empty(size, np.uint8)

    def add(self, batch: Bytes) -> None:
        if len(batch) > len(self.out) - self.filled:
            self.make_room(len(batch))
        self.out[self.filled : self.filled + len(batch)] = batch
        self.filled += len(batch)

    def _write_out(self) -> None:
        rows = np.empty((self.filled // HEADER_BYTES, BATCH_COLUMN_COUNT), np.int64)
        count, _, _ = scan_batches(self.out, 0, self.filled, False, rows)
        rows[:count, BatchColumn.POSITION] += self._size
        end = self._size + self.filled
        self._indexer.add(rows[:count])
        self._file.write_at(self._size, self.out.data[: self.filled])
        self._size, self.filled = end, 0

    def finish(self, modified_ms: int) -> int:
        """Writes and syncs data and indexes; gives the size of the data file."""
        self._write_out()
        self._file.sync()
        self._file.close()
        self._fs.set_modified_ms(self._path + CLEANED, modified_ms)
        contents = {
            INDEX: self._indexer.offset_index().encode(),
            TIME_INDEX: self._indexer.time_index().encode(),
        }
        for kind, data in contents.items():
            path = self._path.removesuffix(LOG) + kind + CLEANED
            with self._fs.open_writable(path) as file:
                file.write_at(0, data)
                file.sync()
        return self._size


def _bytes_of(table: BatchTable, row: npt.NDArray[np.int64]) -> Bytes:
    position = int(row[BatchColumn.POSITION]) - table.start
    return np.frombuffer(table.buffer[position : position + int(row[BatchColumn.SIZE])], np.uint8)
