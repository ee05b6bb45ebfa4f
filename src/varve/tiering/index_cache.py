"""The indexes of cold segments: decoded in memory, below that as local files, else fetched.

Each kind of index is fetched, kept and let go of by itself, and only when it is wanted: a search by
offset needs the offset index alone.

Invariant  what is handed out has the size and the checksum of the manifest that named the segment.
           However many ask for an index at once, it is fetched once.
Crash      the files are a cache: all they hold can be fetched again (see `index_files`).
Threads    any; `_lock` guards the books and is held during no request and no file access. What is
           handed out is shared and never changed.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.time_index import TimeIndex
from varve.commit_log.txn_index import TransactionIndex
from varve.disk import FileSystem
from varve.foundation.errors import Closed, Corrupt, StoreError
from varve.object_store import Buffer, ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment, ObjectPart
from varve.tiering.index_files import IndexFiles, find_fault, index_name
from varve.tiering.read_pool import ReadPool

MEMORY_BYTES: Final = 64 << 20
"""Most memory for decoded indexes."""

_OFFSET_INDEX: Final = "index"
_TIME_INDEX: Final = "timeindex"
_TXN_INDEX: Final = "txnindex"
_CLOSE_SECONDS: Final = 10.0
_TXN_ENTRY_SHARE: Final = 6  # an aborted transaction in memory, by its bytes in the file
_OBJECT_BYTES: Final = 700  # what a decoded index takes beside its entries

_Index = OffsetIndex | TimeIndex | TransactionIndex


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """How a cache of bounded size fared."""

    hits: int
    misses: int
    evicted: int
    held_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class _Decoded:
    """An index in memory, and what the manifest said of it then."""

    part: ObjectPart
    index: _Index

    @property
    def memory_bytes(self) -> int:
        share = _TXN_ENTRY_SHARE if isinstance(self.index, TransactionIndex) else 1
        return _OBJECT_BYTES + share * self.index.size_bytes


@dataclass(slots=True)
class _Flight:
    """An index on its way; `is_stale` once its segment was forgotten meanwhile."""

    part: ObjectPart
    done: threading.Event = field(default_factory=threading.Event)
    index: _Index | None = None
    error: StoreError | None = None
    is_stale: bool = False


class IndexCache:
    """Indexes of any partition's cold segments; `limit_bytes` bounds the files.

    An index that is not held is fetched within the bounds of `pool`. Raises ObjectNotFound when the
    object is gone, Corrupt when it is wrong; who waits for the fetch of another gets its error too.
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
        # Both by the name of the index's file.
        self._decoded: OrderedDict[str, _Decoded] = OrderedDict()  # guarded by _lock
        self._flights: dict[str, _Flight] = {}  # guarded by _lock
        self._decoded_bytes = 0  # guarded by _lock
        self._hits = 0  # guarded by _lock
        self._misses = 0  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    def load(self) -> None:
        """Takes over the files of a former process; what is not whole is deleted."""
        self._files.load()

    def offset_index(self, home: ColdPartition, segment: ColdSegment) -> OffsetIndex:
        index = self._get(home, segment, _OFFSET_INDEX)
        assert isinstance(index, OffsetIndex)
        return index

    def has_offset_index(self, segment: ColdSegment) -> bool:
        """Whether the offset index needs no request, or one that has begun."""
        name = index_name(segment, _OFFSET_INDEX)
        with self._lock:
            if name in self._decoded or name in self._flights:
                return True
        return self._files.holds(name)

    def time_index(self, home: ColdPartition, segment: ColdSegment) -> TimeIndex:
        index = self._get(home, segment, _TIME_INDEX)
        assert isinstance(index, TimeIndex)
        return index

    def txn_index(self, home: ColdPartition, segment: ColdSegment) -> TransactionIndex:
        """An empty one when the manifest lists none."""
        index = self._get(home, segment, _TXN_INDEX)
        assert isinstance(index, TransactionIndex)
        return index

    def _get(self, home: ColdPartition, segment: ColdSegment, kind: str) -> _Index:
        name, part = index_name(segment, kind), self._get_part(home, segment, kind)
        while True:
            claimed = self._claim(name, part)
            if not isinstance(claimed, tuple):
                self._files.touch(name)
                return claimed
            flight, is_own = claimed
            if is_own:
                return self._bring(home, segment, name, flight)
            flight.done.wait()
            if flight.part != part:
                continue
            if flight.error is not None:
                raise flight.error.again()
            if flight.index is not None:
                with self._lock:
                    self._hits += 1
                return flight.index

    def _get_part(self, home: ColdPartition, segment: ColdSegment, kind: str) -> ObjectPart:
        part = segment.find_part(kind)
        if part is not None:
            return part
        if kind == _TXN_INDEX:
            return ObjectPart(kind, 0, 0)
        raise Corrupt(
            f"{self._objects.name}: the manifest of {home} lists no {kind} for {segment}: "
            "`varve tier fsck` shows what else is damaged"
        )

    def _claim(self, name: str, part: ObjectPart) -> _Index | tuple[_Flight, bool]:
        """What is decoded, or a flight and whether it is for the caller to make."""
        with self._lock:
            if self._is_closed:
                raise Closed(f"{name}: the cache of such indexes was closed: open the store again")
            held = self._decoded.get(name)
            if held is not None and held.part == part:
                self._decoded.move_to_end(name)
                self._hits += 1
                return held.index
            flight = self._flights.get(name)
            if flight is not None:
                return flight, False
            self._flights[name] = flight = _Flight(part)
            return flight, True

    def _bring(
        self, home: ColdPartition, segment: ColdSegment, name: str, flight: _Flight
    ) -> _Index:
        try:
            flight.index = self._read_or_fetch(home, segment, name, flight.part)
            return flight.index
        except StoreError as error:
            flight.error = error
            raise
        finally:
            self._land(name, flight)

    def _land(self, name: str, flight: _Flight) -> None:
        with self._lock:
            del self._flights[name]
            if flight.index is not None and not flight.is_stale:
                self._hold_locked(name, _Decoded(flight.part, flight.index))
        flight.done.set()
        if flight.is_stale:
            self._files.forget(name)

    def _hold_locked(self, name: str, decoded: _Decoded) -> None:
        self._release_locked(name)
        self._decoded[name] = decoded
        self._decoded_bytes += decoded.memory_bytes
        while self._decoded_bytes > self._memory_bytes:
            self._release_locked(next(iter(self._decoded)))

    def _release_locked(self, name: str) -> None:
        held = self._decoded.pop(name, None)
        if held is not None:
            self._decoded_bytes -= held.memory_bytes

    # Files and objects

    def _read_or_fetch(
        self, home: ColdPartition, segment: ColdSegment, name: str, part: ObjectPart
    ) -> _Index:
        key = home.part_key(segment, part.name)
        found = self._files.find(name, part) if part.size else b""
        data: Buffer = self._fetch(key, part) if found is None else found
        index = _decode(data, part.name, segment.base_offset, f"{self._objects.name}: {key}")
        if found is None:
            self._files.keep(name, data)
        with self._lock:
            self._hits += found is not None
            self._misses += found is None
        return index

    def _fetch(self, key: str, part: ObjectPart) -> Buffer:
        # One byte more is asked for, to notice an object that goes on where it should end.
        data = self._pool.run(lambda: self._objects.get_range(key, 0, part.size + 1))
        fault = find_fault(data, part)
        if fault is not None:
            raise Corrupt(
                f"{self._objects.name}: {key} {fault}: `varve tier fsck` shows what else is "
                "damaged; put the object back"
            )
        return data

    # Care

    def forget(self, segment: ColdSegment) -> None:
        """Gives up what is held of a segment; what is on its way is handed out, but not kept."""
        for kind in (_OFFSET_INDEX, _TIME_INDEX, _TXN_INDEX):
            name = index_name(segment, kind)
            with self._lock:
                self._release_locked(name)
                flight = self._flights.get(name)
                if flight is not None:
                    flight.is_stale = True
            self._files.forget(name)

    def usage(self) -> CacheUsage:
        """Counted in indexes of any kind; the bytes are those of the files."""
        evicted, held_bytes = self._files.usage()
        with self._lock:
            return CacheUsage(self._hits, self._misses, evicted, held_bytes, self._limit_bytes)

    def close(self) -> None:
        """Waits for fetches in flight, which has a deadline; the files stay.

        Closing twice is harmless.
        """
        with self._lock:
            self._is_closed = True
            flights = list(self._flights.values())
        for flight in flights:
            flight.done.wait(_CLOSE_SECONDS / len(flights))


def _decode(data: Buffer, kind: str, base_offset: int, where: str) -> _Index:
    index: _Index
    if kind == _OFFSET_INDEX:
        index = OffsetIndex.decode(data, base_offset, len(data), where)
    elif kind == _TIME_INDEX:
        index = TimeIndex.decode(data, base_offset, len(data), where)
    else:
        index = TransactionIndex.decode(data, base_offset, where)
    index.check(where)
    return index
