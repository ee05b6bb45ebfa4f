"""Objects of the remote tier as read-only files, and scratch files of a task.

A small read fetches whole blocks, of which the last `_BLOCKS_MAX` are cached; a large read is one
request. When large reads are sequential, the next one is prefetched.

Layout     scratch directories are `varve-scratch-*` in the temporary directory, locked by their
           tasks while in use. They may hold records.
Invariant  an object never changes and has the size its manifest says; a shorter one raises Corrupt.
           Only objects named by the manifest that listed the segment are opened.
Crash      scratch files are never synced. The next task of the same user on the machine removes
           the directories of killed tasks, and so does an erasure before it begins.
Threads    one thread reads; another runs the prefetch. Scratch directories: any thread and process.
"""

import fcntl
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from varve.cleaning.key_index.key_index import KeyIndex, KeyIndexHeader, SegmentKeys
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import File, RealFileSystem
from varve.disk.real import RealFile
from varve.foundation.closing import Closing
from varve.foundation.errors import Corrupt
from varve.kernels.crc import crc32c
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    KEYS_PART,
    LOG_PART,
    TXN_INDEX_PART,
    RemoteSegment,
)
from varve.tiering.read.object_file import UnchangingFile

BLOCK_BYTES: Final = 64 << 10
_BLOCKS_MAX: Final = 256
"""Blocks in the cache: 16 MiB."""

Opener = Callable[[], ObjectStore]
"""Returns the object store of the process that calls it."""


class TierFiles(Closing):
    """Opens objects by key; `sizes` lists the objects that may be opened.

    Pickled as its opener and sizes, without connections and cache.
    """

    def __init__(self, opener: Opener, sizes: Mapping[str, int]) -> None:
        self._opener = opener
        self._sizes = dict(sizes)
        self._objects: ObjectStore | None = None
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._prefetcher: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[Opener, dict[str, int]]]:
        return type(self), (self._opener, self._sizes)

    def open(self, path: str) -> "TierFile":
        """Raises FileNotFoundError for an object that is not in `sizes`."""
        if path not in self._sizes:
            raise FileNotFoundError(2, "the manifest does not name this object", path)
        return TierFile(self, path, self._sizes[path])

    def read_block(self, path: str, number: int, size: int) -> memoryview:
        """One block of an object, from the cache or the store."""
        key = (path, number)
        block = self._blocks.get(key)
        if block is None:
            start = number * BLOCK_BYTES
            block = self.fetch(path, start, min(start + BLOCK_BYTES, size))
            self._blocks[key] = block
            if len(self._blocks) > _BLOCKS_MAX:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return block

    def fetch(self, path: str, start: int, end: int) -> memoryview:
        if self._objects is None:
            self._objects = self._opener()
        data = self._objects.get_range(path, start, end)
        if len(data) != end - start:
            raise Corrupt(
                f"{self._objects.name}: {path!r} ends at position {start + len(data)}; by the "
                f"manifest it has at least {end} bytes: restore the whole object. `varve tier "
                "fsck` lists such objects"
            )
        return data

    def prefetch(self, path: str, start: int, end: int) -> Future[memoryview]:
        if self._prefetcher is None:
            self._prefetcher = ThreadPoolExecutor(1, "varve-prefetch")
        return self._prefetcher.submit(self.fetch, path, start, end)

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.shutdown(cancel_futures=True)
            self._prefetcher = None
        self._blocks.clear()


class TierFile(UnchangingFile):
    """One object as a read-only file."""

    def __init__(self, files: TierFiles, path: str, size: int) -> None:
        self.path = path
        self._files = files
        self._size = size
        self._last_end = -1
        self._prefetched: tuple[int, int, Future[memoryview]] | None = None

    def size(self) -> int:
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        buffer = bytearray(max(min(size, self._size - position), 0))
        self.read_into(position, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, position: int, buffer: memoryview) -> int:
        read_size = max(min(len(buffer), self._size - position), 0)
        if read_size < BLOCK_BYTES and not self._is_prefetched(position):
            self._read_blocks(position, buffer[:read_size])
        else:
            self._read_range(position, buffer[:read_size])
        return read_size

    def _is_prefetched(self, position: int) -> bool:
        return self._prefetched is not None and self._prefetched[0] == position

    def _read_blocks(self, position: int, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            number, start = divmod(position + filled, BLOCK_BYTES)
            block = self._files.read_block(self.path, number, self._size)
            data = block[start : start + len(buffer) - filled]
            buffer[filled : filled + len(data)] = data
            filled += len(data)

    def _read_range(self, position: int, buffer: memoryview) -> None:
        end, filled = position + len(buffer), 0
        is_sequential = position == self._last_end
        if self._prefetched is not None:
            start, stop, fetch = self._prefetched
            self._prefetched = None
            if start <= position < stop:
                filled = min(stop, end) - position
                buffer[:filled] = fetch.result()[position - start : position - start + filled]
        if filled < len(buffer):
            buffer[filled:] = self._files.fetch(self.path, position + filled, end)
        self._last_end = end
        if is_sequential and end < self._size:
            stop = min(end + len(buffer), self._size)
            self._prefetched = end, stop, self._files.prefetch(self.path, end, stop)

    def close(self) -> None:
        """Drops the prefetched range."""
        self._prefetched = None


# Segments


_DOT: Final = "."


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """An `InputSegment` over the objects of a remote segment."""

    remote_path: RemotePath
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
        """The key of an object; `kind` is a file suffix, which without its dot names the part."""
        return self.remote_path.part_key(self.remote, kind.removeprefix(_DOT))

    def file(self) -> TierFile:
        return self.files.open(self.path(LOG_PART))

    def keys(self, header: KeyIndexHeader) -> SegmentKeys:
        """The key index of the segment, with a header that was read before."""
        return SegmentKeys(self.files, self.path(KEYS_PART), header)

    def read_txn_index(self) -> TransactionIndex:
        """Reads the transaction index of a segment that has one."""
        data = self.read_part(TXN_INDEX_PART)
        return TransactionIndex.decode(data, self.base_offset, self.path(TXN_INDEX_PART))

    def read_part(self, name: str) -> bytes:
        """Reads a small object whole and checks its checksum; raises Corrupt."""
        part = self.remote.find_part(name)
        if part is None:
            raise Corrupt(f"{self.remote_path}: {self.remote} has no {name}: run `varve tier fsck`")
        with self.files.open(self.path(name)) as file:
            data = file.read_at(0, part.size)
        crc = checksum(data)
        if crc != part.crc32c:
            raise Corrupt(
                f"{self.path(name)}: CRC-32C {crc:08x}, the manifest says {part.crc32c:08x}: "
                "restore it from a mirror or a copy"
            )
        return data


@dataclass(frozen=True, slots=True)
class FileInput:
    """An `InputSegment` over one open data file."""

    base_offset: int
    size: int
    data_path: str
    data: File

    def file(self) -> File:
        return self.data

    def path(self, kind: str) -> str:
        return self.data_path


def only_keys(segment: RemoteSegment) -> RemoteSegment:
    """The segment with its key index as the only part, to keep tasks small."""
    return replace(segment, parts=tuple(part for part in segment.parts if part.name == KEYS_PART))


def checksum(data: bytes) -> int:
    """The CRC-32C of a whole object; 0 if it is empty."""
    return int(crc32c(np.frombuffer(data, np.uint8), 0, len(data))) if data else 0


def open_files(
    opener: Opener, remote_path: RemotePath, segments: Iterable[RemoteSegment]
) -> TierFiles:
    """Opens the objects of these segments as files."""
    sizes = {
        remote_path.part_key(segment, part.name): part.size
        for segment in segments
        for part in segment.parts
    }
    return TierFiles(opener, sizes)


@contextmanager
def open_key_index(
    objects: ObjectStore,
    remote_path: RemotePath,
    segment: RemoteSegment,
    topic_id: bytes | None = None,
) -> Iterator[KeyIndex]:
    """Opens the key index of a segment that has one; raises Corrupt if it is of another."""
    part = segment.find_part(KEYS_PART)
    assert part is not None, "the segment has a key index"
    key = remote_path.part_key(segment, KEYS_PART)
    with (
        TierFiles(lambda: objects, {key: part.size}) as files,
        KeyIndex(files.open(key)) as index,
    ):
        header = index.header
        is_own = (header.base_offset, header.log_size) == (segment.base_offset, segment.size)
        if not is_own or topic_id not in (None, header.topic_id):
            raise Corrupt(
                f"{objects.name}: {key!r} is of another segment; `varve tier fsck --deep` shows "
                "which objects differ from the manifest"
            )
        yield index


# Scratch files


class ScratchFile(RealFile):
    """A file that is never synced: its task uploads the content and deletes it."""

    __slots__ = ()

    def sync(self) -> None:
        return


class ScratchFileSystem(RealFileSystem):
    """The local file system without syncs."""

    def open_writable(self, path: str) -> ScratchFile:
        return ScratchFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def sync_directory(self, path: str) -> None:
        return


_PREFIX: Final = "varve-scratch-"


@contextmanager
def scratch() -> Iterator[str]:
    """A directory that is deleted at the end of the task."""
    sweep_scratch()
    path, lock = _make_locked_directory()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep_scratch() -> None:
    """Removes the scratch directories of killed tasks."""
    with os.scandir(tempfile.gettempdir()) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in paths:
        try:
            lock = _lock_directory(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # in use, already removed, or owned by another user
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make_locked_directory() -> tuple[str, int]:
    """Creates and locks a directory; repeats if a sweep removed it before it was locked."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            lock = _lock_directory(path, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue
        if os.path.isdir(path):
            return path, lock
        os.close(lock)


def _lock_directory(path: str, how: int) -> int:
    """Locks a directory until the returned descriptor is closed; raises OSError."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, how)
    except OSError:
        os.close(lock)
        raise
    return lock
