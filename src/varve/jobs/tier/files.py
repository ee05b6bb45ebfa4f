"""Objects of the cold tier as files to read from, by ranged requests.

Small reads take whole blocks, a few of which are kept; a large read is one request. Where large
reads follow each other the next one is fetched ahead.

Invariant  an object never changes and has the size its manifest says; one that ends before is
           Corrupt.
Threads    one; the request made ahead runs in a thread of its own.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from varve.foundation.errors import Corrupt
from varve.object_store import ObjectStore
from varve.tiering.read.object_file import UnchangingFile

BLOCK_BYTES: Final = 64 << 10
_BLOCKS_MAX: Final = 256

Opener = Callable[[], ObjectStore]
"""Gives the store of the process that it is called in."""


class TierFiles:
    """Opens objects by key; `sizes` are those of the objects that may be asked for.

    Travels between processes as its opener and sizes.
    """

    def __init__(self, opener: Opener, sizes: Mapping[str, int]) -> None:
        self._opener = opener
        self._sizes = dict(sizes)
        self._objects: ObjectStore | None = None
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._ahead: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[Opener, dict[str, int]]]:
        return type(self), (self._opener, self._sizes)

    def open(self, path: str) -> "TierFile":
        """Raises FileNotFoundError for an object that is not among those named."""
        if path not in self._sizes:
            raise FileNotFoundError(2, "no such object of the manifest", path)
        return TierFile(self, path, self._sizes[path])

    def read_block(self, path: str, number: int, size: int) -> memoryview:
        """One block of an object, kept for the next who asks."""
        place = (path, number)
        found = self._blocks.get(place)
        if found is None:
            start = number * BLOCK_BYTES
            found = self.fetch(path, start, min(start + BLOCK_BYTES, size))
            self._blocks[place] = found
            if len(self._blocks) > _BLOCKS_MAX:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(place)
        return found

    def fetch(self, path: str, start: int, end: int) -> memoryview:
        if self._objects is None:
            self._objects = self._opener()
        data = self._objects.get_range(path, start, end)
        if len(data) != end - start:
            raise Corrupt(
                f"{self._objects.name}: {path!r} ends at {start + len(data)}, the manifest says it "
                f"goes on to {end} at least: put the whole object back, `varve tier fsck` finds "
                "such ones"
            )
        return data

    def fetch_ahead(self, path: str, start: int, end: int) -> Future[memoryview]:
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1, "varve-ahead")
        return self._ahead.submit(self.fetch, path, start, end)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)
            self._ahead = None
        self._blocks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TierFile(UnchangingFile):
    """One object; reads only."""

    def __init__(self, files: TierFiles, path: str, size: int) -> None:
        self.path = path
        self._files = files
        self._size = size
        self._end = -1
        self._next: tuple[int, int, Future[memoryview]] | None = None

    def size(self) -> int:
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        buffer = bytearray(max(min(size, self._size - position), 0))
        self.read_into(position, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, position: int, buffer: memoryview) -> int:
        wanted = max(min(len(buffer), self._size - position), 0)
        if wanted < BLOCK_BYTES and not self._is_ahead(position):
            self._read_blocks(position, buffer[:wanted])
        else:
            self._read_through(position, buffer[:wanted])
        return wanted

    def _is_ahead(self, position: int) -> bool:
        return self._next is not None and self._next[0] == position

    def _read_blocks(self, position: int, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            number, start = divmod(position + filled, BLOCK_BYTES)
            block = self._files.read_block(self.path, number, self._size)
            piece = block[start : start + len(buffer) - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)

    def _read_through(self, position: int, buffer: memoryview) -> None:
        end, filled = position + len(buffer), 0
        is_next = position == self._end
        if self._next is not None:
            start, stop, task = self._next
            self._next = None
            if start <= position < stop:
                filled = min(stop, end) - position
                buffer[:filled] = task.result()[position - start : position - start + filled]
        if filled < len(buffer):
            buffer[filled:] = self._files.fetch(self.path, position + filled, end)
        self._end = end
        if is_next and end < self._size:
            stop = min(end + len(buffer), self._size)
            self._next = end, stop, self._files.fetch_ahead(self.path, end, stop)

    def close(self) -> None:
        """Lets go of what was fetched ahead."""
        self._next = None
