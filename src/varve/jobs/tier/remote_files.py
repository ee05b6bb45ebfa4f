"""Objects of the remote tier as files to read from, and scratch files of a task.

Small reads take whole blocks, a few of which are kept; a large read is one request. Where large
reads follow each other the next one is fetched ahead.

Layout     scratch directories are `varve-scratch-*` among the temporary ones, locked by their tasks
           as long as they are in use. They may hold records.
Invariant  an object never changes and has the size its manifest says; one that ends before is
           Corrupt. What a segment is asked for is named by the manifest that listed it.
Crash      scratch files are never synced. What a killed task leaves is removed by the next one of
           the same user on that machine, and by an erasure before it begins.
Threads    one reads; the request made ahead runs in a thread of its own. Scratch directories: any,
           and any number of processes.
"""

import fcntl
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np

from varve.cleaning.key_index.key_index import KeyIndex, KeyIndexHeader, SegmentKeys
from varve.disk import File, RealFileSystem
from varve.disk.real import RealFile
from varve.foundation.errors import Corrupt
from varve.kernels.crc import crc32c
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import KEYS_PART, LOG_PART, RemoteSegment
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
        """Drops what was fetched ahead."""
        self._next = None


# Segments


_DOT: Final = "."


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """An InputSegment over objects."""

    home: RemotePath
    remote: RemoteSegment
    files: TierFiles

    @property
    def base_offset(self) -> int:
        return self.remote.base_offset

    @property
    def size(self) -> int:
        return self.remote.size

    @property
    def next_offset(self) -> int:
        return self.remote.end_offset + 1

    def path(self, kind: str) -> str:
        """The object's key; kinds are those of files, parts are called the same without a dot."""
        return self.home.part_key(self.remote, kind.removeprefix(_DOT))

    def file(self) -> TierFile:
        return self.files.open(self.path(LOG_PART))

    def keys(self, header: KeyIndexHeader) -> SegmentKeys:
        """Its key index, whose header is known."""
        return SegmentKeys(self.files, self.path(KEYS_PART), header)

    def read_part(self, name: str) -> bytes:
        """A small object as a whole, checked against the manifest; raises Corrupt."""
        part = self.remote.find_part(name)
        if part is None:
            raise Corrupt(f"{self.home}: {self.remote} has no {name}: run `varve tier fsck`")
        with self.files.open(self.path(name)) as file:
            data = file.read_at(0, part.size)
        found = checksum(data)
        if found != part.crc32c:
            raise Corrupt(
                f"{self.path(name)}: CRC-32C {found:08x}, the manifest says {part.crc32c:08x}: put "
                "it back from a mirror or a copy"
            )
        return data


@dataclass(frozen=True, slots=True)
class FileInput:
    """An InputSegment over one data file that is open."""

    base_offset: int
    size: int
    data_path: str
    data: File

    def file(self) -> File:
        return self.data

    def path(self, kind: str) -> str:
        return self.data_path


def checksum(data: bytes) -> int:
    """The CRC-32C of a whole object; 0 of an empty one."""
    return int(crc32c(np.frombuffer(data, np.uint8), 0, len(data))) if data else 0


def open_files(opener: Opener, home: RemotePath, segments: Iterable[RemoteSegment]) -> TierFiles:
    """All objects of these segments."""
    sizes = {
        home.part_key(segment, part.name): part.size
        for segment in segments
        for part in segment.parts
    }
    return TierFiles(opener, sizes)


@contextmanager
def open_key_index(
    objects: ObjectStore, home: RemotePath, segment: RemoteSegment, topic_id: bytes | None = None
) -> Iterator[KeyIndex]:
    """The key index of a segment that has one; raises Corrupt where it is of another segment."""
    part = segment.find_part(KEYS_PART)
    assert part is not None, "the segment has a key index"
    key = home.part_key(segment, KEYS_PART)
    with (
        TierFiles(lambda: objects, {key: part.size}) as files,
        KeyIndex(files.open(key)) as index,
    ):
        header = index.header
        is_own = (header.base_offset, header.log_size) == (segment.base_offset, segment.size)
        if not is_own or topic_id not in (None, header.topic_id):
            raise Corrupt(
                f"{objects.name}: {key!r} is of another segment; `varve tier fsck --deep` shows "
                "which objects are not what the manifest says"
            )
        yield index


# Scratch files


class ScratchFile(RealFile):
    """A file that is never synced: its task uploads what it holds, and ends."""

    __slots__ = ()

    def sync(self) -> None:
        return


class ScratchFileSystem(RealFileSystem):
    """The machine's file system without waiting for the disk."""

    def open_writable(self, path: str) -> ScratchFile:
        return ScratchFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def sync_directory(self, path: str) -> None:
        return


_PREFIX: Final = "varve-scratch-"


@contextmanager
def scratch() -> Iterator[str]:
    """A directory for files that leave with the task."""
    sweep_scratch()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep_scratch() -> None:
    """Removes the directories of tasks that are no more."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in found:
        try:
            lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # It is in use, gone meanwhile, or somebody else's.
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[str, int]:
    """One that is locked; who sweeps may take it away before it is."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            lock = _lock(path, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue
        if os.path.isdir(path):
            return path, lock
        os.close(lock)


def _lock(path: str, how: int) -> int:
    """Locks a directory, as long as what is given is open; raises OSError."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, how)
    except OSError:
        os.close(lock)
        raise
    return lock
