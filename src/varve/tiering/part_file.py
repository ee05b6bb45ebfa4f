"""One object of a cold segment as a file to read from, in blocks that are shared and kept.

Invariant  an object never changes and has the size its manifest says.
Threads    any.
"""

from varve.tiering.cold_file import ExtentSource
from varve.tiering.extent_cache import Extent
from varve.tiering.unchanging_file import UnchangingFile


class PartFile(UnchangingFile):
    """Reads ask the store for whole blocks of `block_bytes`."""

    __slots__ = ("_block_bytes", "_size", "_source", "path")

    def __init__(self, key: str, size: int, source: ExtentSource, *, block_bytes: int) -> None:
        self.path = key
        self._size = size
        self._source = source
        self._block_bytes = block_bytes

    def size(self) -> int:
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        buffer = bytearray(max(min(size, self._size - position), 0))
        self.read_into(position, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, position: int, buffer: memoryview) -> int:
        wanted = max(min(len(buffer), self._size - position), 0)
        filled = 0
        while filled < wanted:
            extent = self._claim(position + filled)
            start = position + filled - extent.start
            piece = self._source.load(extent)[start : start + wanted - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _claim(self, position: int) -> Extent:
        """The extent that holds a position: its block, or the part of it that others left."""
        start = position - position % self._block_bytes
        end = min(start + self._block_bytes, self._size)
        extent = self._source.claim(self.path, start, end)
        while extent.end <= position:
            extent = self._source.claim(self.path, extent.end, end)
        return extent
