"""Objects of remote segments as read-only files.

Invariant  an object never changes and has the size its manifest says; one that ends before is
           Corrupt.
Threads    any; nothing is held open.
"""

from struct import Struct
from typing import Final, NamedTuple, NoReturn

import numpy as np

from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import Buffer
from varve.foundation.closing import Closing
from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.records.committed import scan_whole_batches
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.read.extent_cache import Extent, ExtentSource
from varve.tiering.read.index_cache import IndexCache

# Base offset, batch length, magic and last offset delta: all that finding a batch needs.
_BOUNDS: Final = Struct(">qi4xb6xi")
_LENGTH_FIELD_END: Final = 12
_BATCH_LENGTH_MIN: Final = 49
_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
_REMEDY: Final = "`varve tier fsck` checks the objects"


class UnchangingFile(Closing):
    """The write half of `disk.File`, which objects do not support; `path` is the key."""

    __slots__ = ()

    path: str

    def write_at(self, position: int, *buffers: Buffer) -> NoReturn:
        raise self._read_only_error("written")

    def truncate(self, size: int) -> NoReturn:
        raise self._read_only_error("truncated")

    def _read_only_error(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"object {self.path!r} cannot be {what}: objects never change, a new segment has new "
            "ones"
        )

    def sync(self) -> None:
        """Does nothing: an object is durable once it exists."""

    def close(self) -> None:
        """Does nothing: no handle is open."""


class ObjectFile(UnchangingFile):
    """An object as a file; a request to the store has at least `fetch_bytes`."""

    __slots__ = ("_size", "_source", "fetch_bytes", "path")

    def __init__(self, key: str, size: int, source: ExtentSource, *, fetch_bytes: int) -> None:
        self.path = key
        self.fetch_bytes = fetch_bytes
        self._size = size
        self._source = source

    @property
    def store_name(self) -> str:
        return self._source.name

    def size(self) -> int:
        return self._size

    def reserve(self, position: int, wanted_bytes: int) -> Extent:
        """The extent that holds a position within the file."""
        end = min(position + max(wanted_bytes, self.fetch_bytes), self._size)
        return self._source.extents.reserve(self.path, position, end)

    def view_at(self, position: int, size: int) -> memoryview:
        """The bytes [position, position + size) within the file.

        A view of one extent, or a copy where they lie in several.
        """
        extent = self.reserve(position, size)
        if position + size <= extent.end:
            start = position - extent.start
            return self._source.load(extent)[start : start + size]
        joined = bytearray(size)
        self.read_into(position, memoryview(joined))
        return memoryview(joined).toreadonly()

    def read_at(self, position: int, size: int) -> bytes:
        size = min(size, self._size - position)
        return bytes(self.view_at(position, size)) if size > 0 else b""

    def read_into(self, position: int, buffer: memoryview) -> int:
        size = max(min(len(buffer), self._size - position), 0)
        filled = 0
        while filled < size:
            extent = self.reserve(position + filled, size - filled)
            start = position + filled - extent.start
            piece = self._source.load(extent)[start : start + size - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled


class BlockObjectFile(ObjectFile):
    """Requests whole blocks of `fetch_bytes`, for reads at scattered positions."""

    __slots__ = ()

    def reserve(self, position: int, wanted_bytes: int) -> Extent:
        """The extent that holds a position: its block, or a gap between extents in the block."""
        start = position - position % self.fetch_bytes
        end = min(start + self.fetch_bytes, self._size)
        extent = self._source.extents.reserve(self.path, start, end)
        while extent.end <= position:
            extent = self._source.extents.reserve(self.path, extent.end, end)
        return extent


class BatchBounds(NamedTuple):
    """The offsets of a batch, both inclusive, and its bytes."""

    base_offset: int
    last_offset: int
    size: int


class LogObjectFile(ObjectFile):
    """The log object of a segment: its batches."""

    __slots__ = ("segment",)

    def __init__(
        self, segment: RemoteSegment, key: str, source: ExtentSource, *, fetch_bytes: int
    ) -> None:
        super().__init__(key, segment.size, source, fetch_bytes=fetch_bytes)
        self.segment = segment

    def load(self, extent: Extent) -> memoryview:
        return self._source.load(extent)

    def get_batch(self, position: int) -> BatchBounds:
        """The batch at a position; raises Corrupt where none of this segment can begin."""
        segment = self.segment
        head = self.view_at(position, min(_BOUNDS.size, segment.size - position))
        if len(head) < _BOUNDS.size:
            raise self.not_a_batch(position)
        base_offset, length, magic, last_delta = _BOUNDS.unpack(head)
        if magic != _MAGIC or length < _BATCH_LENGTH_MIN:
            raise self.not_a_batch(position)
        batch = BatchBounds(base_offset, base_offset + last_delta, length + _LENGTH_FIELD_END)
        if position + batch.size > segment.size:
            raise Corrupt(
                f"{self._where(position)}: the batch of {batch.size} bytes reaches beyond the "
                f"object's end at {segment.size}; {_REMEDY}"
            )
        if not segment.base_offset <= base_offset <= batch.last_offset <= segment.end_offset:
            raise self._not_in_order(position, base_offset, batch.last_offset)
        return batch

    def find_batch(self, offset: int, *, position: int) -> int:
        """The position of the first batch that ends at or after an offset, else the file's end.

        The search starts at `position`, where a batch begins.
        """
        while position < self.segment.size:
            batch = self.get_batch(position)
            if batch.last_offset >= offset:
                break
            position += batch.size
        return position

    def check_offsets(
        self, position: int, data: memoryview, start_offset: int, next_offset: int
    ) -> None:
        """Raises Corrupt unless batches lie within their segment and advance the reader."""
        first = int.from_bytes(data[:8], "big", signed=True)
        is_onward = start_offset < next_offset <= self.segment.end_offset + 1
        if first < self.segment.base_offset or not is_onward:
            raise self._not_in_order(position, first, next_offset - 1)

    def check_checksums(self, position: int, data: memoryview) -> None:
        """Raises Corrupt unless every batch in the data at a position matches its CRC.

        An object lies where no recovery scans it, and not every client checks.
        """
        valid_bytes = scan_whole_batches(np.frombuffer(data, np.uint8))[1]
        if valid_bytes < len(data):
            batch = self.get_batch(position + valid_bytes)
            raise Corrupt(
                f"{self._where(position + valid_bytes)}: the batch of offsets {batch.base_offset} "
                f"to {batch.last_offset} does not match its CRC: restore the object; {_REMEDY}"
            )

    def not_a_batch(self, position: int) -> Corrupt:
        """The error for a position where no batch of message format 2 begins."""
        head = self.read_at(position, _BOUNDS.size)
        where = self._where(position)
        if len(head) == _BOUNDS.size and head[_MAGIC_POSITION] in (0, 1):
            return UnsupportedFormat(
                f"{where}: message format {head[_MAGIC_POSITION]}; rewrite the topic with a Kafka "
                "release that converts message formats 0 and 1"
            )
        return Corrupt(
            f"{where}: no batch of message format 2 begins here ({head.hex()}); {_REMEDY}"
        )

    def _not_in_order(self, position: int, first_offset: int, last_offset: int) -> Corrupt:
        segment = self.segment
        return Corrupt(
            f"{self._where(position)}: batches of offsets {first_offset} to {last_offset} are not "
            f"in order, the segment holds {segment.base_offset} to {segment.end_offset}; {_REMEDY}"
        )

    def _where(self, position: int) -> str:
        return f"{self.store_name}: {self.path!r}: position {position}"


class RemoteSegmentView:
    """A remote segment with the interface of a local one, for the functions that read those."""

    __slots__ = ("_file", "_indexes", "_path")

    def __init__(self, file: LogObjectFile, path: RemotePath, indexes: IndexCache) -> None:
        self._file = file
        self._path = path
        self._indexes = indexes

    @property
    def base_offset(self) -> int:
        return self._file.segment.base_offset

    @property
    def size(self) -> int:
        return self._file.segment.size

    @property
    def max_timestamp(self) -> int:
        return self._file.segment.max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        return self.time_index().last[1]

    def file(self) -> LogObjectFile:
        return self._file

    def offset_index(self) -> OffsetIndex:
        return self._indexes.offset_index(self._path, self._file.segment)

    def time_index(self) -> TimeIndex:
        return self._indexes.time_index(self._path, self._file.segment)

    def txn_index(self) -> TransactionIndex:
        return self._indexes.txn_index(self._path, self._file.segment)

    def rebuild_indexes(self) -> bool:
        """Never rebuilds: the objects of a segment do not change."""
        return False

    def path(self, kind: str) -> str:
        return self._file.path
