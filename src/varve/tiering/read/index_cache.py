"""A cache of the indexes of remote segments: decoded in memory, and as local files.

Each kind of index is fetched, cached and evicted independently and on demand: a search by offset
needs only the offset index.

Layout     `<base offset>_<segment id>` with `.index`, `.timeindex` or `.txnindex` after it, as
           Kafka names them; `.tmp` after that while a file is written. An empty one has no file.
Invariant  a returned index has the size and the CRC-32C of the manifest that lists the segment.
           Concurrent requests for an index fetch it once. The total size of the files is bounded.
Crash      nothing is synced: a file that a crash lost, emptied or tore fails its check at the next
           use, and is fetched again.
Threads    any; `_disk_lock` is held while files change and taken before `_lock`, which is held
           during no request and no file access. Returned indexes are shared and never changed.
"""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import Final, NamedTuple, TypeVar

from varve.commit_log.names import DELETED, INDEX, OFFSET_MAX, TIME_INDEX, TXN_INDEX
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import TEMPORARY_SUFFIX, FileInfo, FileSystem
from varve.foundation.errors import Closed, Corrupt, StoreError
from varve.kernels.crc import crc32c_of
from varve.object_store import Buffer, ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    INDEX_PART,
    TIME_INDEX_PART,
    TXN_INDEX_PART,
    ObjectPart,
    RemoteSegment,
)
from varve.tiering.read.extent_cache import CacheUsage
from varve.tiering.read.read_pool import ReadPool

logger = logging.getLogger(__name__)

_SUFFIXES: Final = {INDEX_PART: INDEX, TIME_INDEX_PART: TIME_INDEX, TXN_INDEX_PART: TXN_INDEX}
_ENTRY_BYTES: Final = {INDEX: 8, TIME_INDEX: 12, TXN_INDEX: 34}
_NAME: Final = re.compile(
    r"(0|[1-9][0-9]{0,18})_[A-Za-z0-9_-]{1,64}(\.index|\.timeindex|\.txnindex)"
    rf"({re.escape(TEMPORARY_SUFFIX)}|{re.escape(DELETED)})?"
)


def index_name(segment: RemoteSegment, kind: str) -> str:
    """The name of the file that holds one kind of index: index, timeindex or txnindex."""
    return f"{segment.base_offset}_{segment.id}{_SUFFIXES[kind]}"


class IndexFiles:
    """Index files in one directory, by name; a disk error costs a fetch and fails no read."""

    def __init__(self, fs: FileSystem, directory: str, *, limit_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._disk_lock = threading.Lock()
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # guarded by _lock, oldest first
        self._held_bytes = 0  # guarded by _lock
        self._evicted = 0  # guarded by _lock
        self._has_warned = False  # guarded by _lock

    def load(self) -> None:
        """Takes over the files of an earlier process, evicting the oldest first.

        Deletes files that are empty, have a partial entry, or were being written or deleted. The
        content is checked on first use.
        """
        with self._disk_lock:
            files, leftovers = self._scan()
            files.sort(key=lambda file: file.modified_ms)
            with self._lock:
                self._sizes = OrderedDict((file.name, file.size) for file in files)
                self._held_bytes = sum(self._sizes.values())
                surplus = self._make_room_locked(0)
            self._remove_files([*leftovers, *surplus])

    def _scan(self) -> tuple[list[FileInfo], list[str]]:
        """The files that may be complete, and the names of leftovers."""
        file_infos: list[FileInfo] = []
        leftovers: list[str] = []
        try:
            files = self._fs.scan(self._directory) if self._fs.exists(self._directory) else []
        except OSError as error:
            self._warn_once(error)
            return [], []
        for file in files:
            match = _NAME.fullmatch(file.name)
            if match is None or file.is_directory:
                continue
            offset, suffix, mark = match.groups()
            is_whole = file.size > 0 and file.size % _ENTRY_BYTES[suffix] == 0
            if mark or int(offset) > OFFSET_MAX or not is_whole:
                leftovers.append(file.name)
            else:
                file_infos.append(file)
        return file_infos, leftovers

    def holds(self, name: str) -> bool:
        with self._lock:
            return name in self._sizes

    def touch(self, name: str) -> None:
        """Marks a file as used when its index was found in memory."""
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)

    def find(self, name: str, part: ObjectPart) -> bytes | None:
        """The content of a file; deletes it and returns None unless it matches the manifest."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        data = self._read(name, part)
        if data is None:
            self.forget(name)
        return data

    def _read(self, name: str, part: ObjectPart) -> bytes | None:
        path = f"{self._directory}/{name}"
        try:
            with self._fs.open(path) as file:
                size = file.size()
                data = file.read_at(0, part.size) if size == part.size else b""
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once(error)
            return None
        fault = find_part_fault(data, part) if size == part.size else describe_size(size, part)
        if fault is None:
            return data
        logger.info("cached index is fetched again", extra={"path": path, "fault": fault})
        return None

    def keep(self, name: str, data: Buffer) -> None:
        """Writes a file, unless it exceeds the limit; others make room."""
        size = len(data)
        with self._disk_lock:
            self._drop(name)
            if size > self._limit_bytes:
                return
            with self._lock:
                evicted = self._make_room_locked(size)
            self._remove_files(evicted)
            try:
                self._write(name, data)
            except OSError as error:
                self._warn_once(error)
                return
            with self._lock:
                self._sizes[name] = size
                self._held_bytes += size

    def _write(self, name: str, data: Buffer) -> None:
        path = f"{self._directory}/{name}"
        temporary = path + TEMPORARY_SUFFIX
        self._fs.make_directory(self._directory)
        try:
            with self._fs.open_writable(temporary) as file:
                if file.size():
                    file.truncate(0)
                file.write_at(0, data)
            self._fs.rename(temporary, path)
        except OSError:
            self._remove_files((name + TEMPORARY_SUFFIX,))
            raise

    def forget(self, name: str) -> None:
        """Deletes a file, if it is held."""
        with self._disk_lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._lock:
            size = self._sizes.pop(name, None)
            if size is None:
                return
            self._held_bytes -= size
        self._remove_files((name,))

    def _make_room_locked(self, size: int) -> list[str]:
        """Evicts the least recently used entries until this many bytes fit."""
        evicted = []
        while self._held_bytes + size > self._limit_bytes:
            name, freed = self._sizes.popitem(last=False)
            self._held_bytes -= freed
            evicted.append(name)
        self._evicted += len(evicted)
        return evicted

    def _remove_files(self, names: Iterable[str]) -> None:
        """Removes files; one that cannot be removed stays until the next `load`."""
        for name in names:
            try:
                self._fs.remove(f"{self._directory}/{name}")
            except FileNotFoundError:
                continue
            except OSError as error:
                self._warn_once(error)

    def _warn_once(self, error: OSError) -> None:
        with self._lock:
            if self._has_warned:
                return
            self._has_warned = True
        logger.warning(
            "%(path)s: indexes of remote segments cannot be cached on the local disk; each use "
            "fetches them from object storage: %(error)s",
            {"path": self._directory, "error": str(error)},
        )

    def usage(self) -> tuple[int, int]:
        """The files evicted so far, and the bytes held."""
        with self._lock:
            return self._evicted, self._held_bytes


def find_part_fault(data: Buffer, part: ObjectPart) -> str | None:
    """How bytes differ from the size and CRC in the manifest; None when they do not."""
    size = len(data)
    if size != part.size:
        return describe_size(size, part)
    crc = crc32c_of(data)
    if crc != part.crc32c:
        return f"has CRC-32C {crc:08x}, but the manifest says {part.crc32c:08x}"
    return None


def describe_size(size: int, part: ObjectPart) -> str:
    shown = f"more than {part.size}" if size > part.size else str(size)
    return f"has {shown} bytes, but the manifest says {part.size}"


MEMORY_BYTES: Final = 64 << 20
"""Most memory for decoded indexes."""

_CLOSE_DEADLINE_SECONDS: Final = 10.0
_TXN_MEMORY_FACTOR: Final = 6  # memory of an aborted transaction per byte in the file
_OBJECT_BYTES: Final = 700  # memory of a decoded index besides its entries

_Index = OffsetIndex | TimeIndex | TransactionIndex
_KINDS: Final[dict[type[_Index], str]] = {
    OffsetIndex: INDEX_PART,
    TimeIndex: TIME_INDEX_PART,
    TransactionIndex: TXN_INDEX_PART,
}
_AnyIndex = TypeVar("_AnyIndex", OffsetIndex, TimeIndex, TransactionIndex)


class _IndexKey(NamedTuple):
    """An index by the name of its file, with its size and CRC in the manifest."""

    name: str
    part: ObjectPart


class IndexCache:
    """Indexes of remote segments of all partitions; `limit_bytes` bounds the files.

    A missing index is fetched within the bounds of `pool`. Raises ObjectNotFound when the object is
    missing, Corrupt when it is damaged; threads that wait for a fetch get its error too.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        objects: ObjectStore,
        *,
        pool: ReadPool,
        limit_bytes: int,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._objects = objects
        self._pool = pool
        self._files = IndexFiles(fs, directory, limit_bytes=limit_bytes)
        self._limit_bytes = limit_bytes
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._decoded: OrderedDict[_IndexKey, _Index] = OrderedDict()  # guarded by _lock
        # Fetches in progress; the result is None when the fetching thread was interrupted.
        self._fetches: dict[_IndexKey, Future[_Index | None]] = {}  # guarded by _lock
        self._decoded_bytes = 0  # guarded by _lock
        self._hits = 0  # guarded by _lock
        self._misses = 0  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    def load(self) -> None:
        """Takes over the files of an earlier process; deletes incomplete ones."""
        self._files.load()

    def offset_index(self, path: RemotePath, segment: RemoteSegment) -> OffsetIndex:
        return self._get(path, segment, OffsetIndex)

    def has_offset_index(self, segment: RemoteSegment) -> bool:
        """Whether the offset index is cached or being fetched."""
        part = segment.find_part(INDEX_PART)
        if part is None:
            return False
        key = _IndexKey(index_name(segment, INDEX_PART), part)
        with self._lock:
            if key in self._decoded or key in self._fetches:
                return True
        return self._files.holds(key.name)

    def time_index(self, path: RemotePath, segment: RemoteSegment) -> TimeIndex:
        return self._get(path, segment, TimeIndex)

    def txn_index(self, path: RemotePath, segment: RemoteSegment) -> TransactionIndex:
        """An empty one when the manifest lists none."""
        return self._get(path, segment, TransactionIndex)

    def collect_aborted(
        self,
        path: RemotePath,
        segments: Iterable[RemoteSegment],
        *,
        start_offset: int,
        end_offset: int,
    ) -> tuple[tuple[AbortedTransaction, ...], bool]:
        """The aborted transactions in [start, end), from segments in offset order.

        Also whether these are all: if not, markers of others follow the last segment.
        """
        # A segment that replaced the one being read lists the same transactions again.
        aborted: dict[AbortedTransaction, None] = {}
        for segment in segments:
            is_complete = segment.is_decided(end_offset)
            if segment.has_aborted:
                index = self.txn_index(path, segment)
                entries, is_last = index.collect(start_offset, end_offset)
                aborted.update(dict.fromkeys(entries))
                is_complete = is_complete or is_last
            if is_complete:
                return tuple(aborted), True
        return tuple(aborted), False

    def _get(self, path: RemotePath, segment: RemoteSegment, cls: type[_AnyIndex]) -> _AnyIndex:
        kind = _KINDS[cls]
        key = _IndexKey(index_name(segment, kind), self._get_part(path, segment, kind))
        index: _Index | None = None
        while index is None:
            index, fetch, is_own = self._find_or_begin(key)
            if fetch is None:
                self._files.touch(key.name)
            elif is_own:
                index = self._load_shared(path, segment, key, fetch)
            else:
                try:
                    index = fetch.result()
                except StoreError as error:
                    raise error.again() from None
                with self._lock:
                    self._hits += index is not None
        assert isinstance(index, cls)
        return index

    def _get_part(self, path: RemotePath, segment: RemoteSegment, kind: str) -> ObjectPart:
        part = segment.find_part(kind)
        if part is not None:
            return part
        if kind == TXN_INDEX_PART:
            return ObjectPart(kind, 0, 0)
        raise Corrupt(
            f"{self._objects.name}: the manifest of {path} lists no {kind} for {segment}: "
            "`varve tier fsck` shows what else is damaged"
        )

    def _find_or_begin(
        self, key: _IndexKey
    ) -> tuple[_Index | None, "Future[_Index | None] | None", bool]:
        """The index in memory, else its fetch, and whether the caller must carry that out."""
        with self._lock:
            if self._is_closed:
                raise Closed(
                    f"{key.name}: the cache of such indexes was closed: open the store again"
                )
            index = self._decoded.get(key)
            if index is not None:
                self._decoded.move_to_end(key)
                self._hits += 1
                return index, None, False
            begun = self._fetches.get(key)
            if begun is not None:
                return None, begun, False
            fetch = self._fetches[key] = Future()
            return None, fetch, True

    def _load_shared(
        self,
        path: RemotePath,
        segment: RemoteSegment,
        key: _IndexKey,
        fetch: "Future[_Index | None]",
    ) -> _Index:
        index: _Index | None = None
        failure: StoreError | None = None
        try:
            index = self._read_or_fetch(path, segment, key)
            return index
        except StoreError as error:
            failure = error
            raise
        finally:
            with self._lock:
                del self._fetches[key]
                if index is not None:
                    self._hold_locked(key, index)
            if failure is None:
                fetch.set_result(index)
            else:
                fetch.set_exception(failure)

    def _hold_locked(self, key: _IndexKey, index: _Index) -> None:
        self._decoded[key] = index
        self._decoded_bytes += _memory_bytes(index)
        while self._decoded_bytes > self._memory_bytes:
            _, oldest = self._decoded.popitem(last=False)
            self._decoded_bytes -= _memory_bytes(oldest)

    def _read_or_fetch(self, path: RemotePath, segment: RemoteSegment, key: _IndexKey) -> _Index:
        name, part = key
        object_key = path.part_key(segment, part.name)
        cached = self._files.find(name, part) if part.size else b""
        data: Buffer = self._fetch(object_key, part) if cached is None else cached
        where = f"{self._objects.name}: {object_key}"
        index = _decode(data, part.name, segment.base_offset, where)
        if cached is None:
            self._files.keep(name, data)
        with self._lock:
            self._hits += cached is not None
            self._misses += cached is None
        return index

    def _fetch(self, key: str, part: ObjectPart) -> Buffer:
        # Request one extra byte to detect an object that is too long.
        data = self._pool.run(lambda: self._objects.get_range(key, 0, part.size + 1))
        fault = find_part_fault(data, part)
        if fault is not None:
            raise Corrupt(
                f"{self._objects.name}: {key} {fault}: `varve tier fsck` shows what else is "
                "damaged; put the object back"
            )
        return data

    def usage(self) -> CacheUsage:
        """Counted in indexes of any kind; the bytes are those of the files."""
        evicted, held_bytes = self._files.usage()
        with self._lock:
            return CacheUsage(self._hits, self._misses, evicted, held_bytes, self._limit_bytes)

    def close(self) -> None:
        """Waits for fetches in progress up to a deadline; the files stay.

        Closing twice is harmless.
        """
        with self._lock:
            self._is_closed = True
            fetches = list(self._fetches.values())
        wait(fetches, _CLOSE_DEADLINE_SECONDS)


def _memory_bytes(index: _Index) -> int:
    share = _TXN_MEMORY_FACTOR if isinstance(index, TransactionIndex) else 1
    return _OBJECT_BYTES + share * index.size_bytes


def _decode(data: Buffer, kind: str, base_offset: int, where: str) -> _Index:
    index: _Index
    if kind == TXN_INDEX_PART:
        index = TransactionIndex.decode(data, base_offset, where)
    else:
        sparse = OffsetIndex if kind == INDEX_PART else TimeIndex
        index = sparse.decode(data, base_offset, len(data))
    index.check(where)
    return index
