"""The indexes of cold segments: decoded in memory, below that as local files, else fetched.

Invariant  what is handed out has the sizes and checksums of the manifest that named the segment.
           However many ask for a segment at once, each of its indexes is fetched once.
Crash      the files are a cache: all they hold can be fetched again (see `index_files`).
Threads    any; `_lock` guards the books and is held during no request and no file access. What is
           handed out is shared and never changed.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.time_index import TimeIndex
from varve.commit_log.txn_index import TransactionIndex
from varve.disk import FileSystem
from varve.foundation.errors import Closed, Corrupt, StoreError
from varve.object_store import Buffer, CacheUsage, ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment, ObjectPart
from varve.tiering.index_files import SUFFIXES, IndexFiles, find_fault

MEMORY_BYTES: Final = 64 << 20
"""Most memory for decoded indexes."""

_FETCHER_COUNT: Final = 8
_CLOSE_SECONDS: Final = 10.0
_TXN_ENTRY_SHARE: Final = 6  # an aborted transaction in memory, by its bytes in the file
_OBJECT_BYTES: Final = 2048  # what three decoded indexes take beside their entries


@dataclass(frozen=True, slots=True)
class ColdIndexes:
    """The indexes of one cold segment; never changed."""

    offset_index: OffsetIndex
    time_index: TimeIndex
    txn_index: TransactionIndex

    @property
    def memory_bytes(self) -> int:
        entries = self.offset_index.size_bytes + self.time_index.size_bytes
        return _OBJECT_BYTES + entries + _TXN_ENTRY_SHARE * self.txn_index.size_bytes


_Decoded = tuple[ColdSegment, ColdIndexes]
"""What is held in memory, and what was said of the segment then."""


@dataclass(slots=True)
class _Flight:
    """Indexes on their way; `is_stale` once their segment was forgotten meanwhile."""

    segment: ColdSegment
    done: threading.Event = field(default_factory=threading.Event)
    indexes: ColdIndexes | None = None
    error: StoreError | None = None
    is_stale: bool = False


class IndexCache:
    """Indexes of any partition's cold segments; `limit_bytes` bounds the files."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        objects: ObjectStore,
        *,
        limit_bytes: int,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._objects = objects
        self._files = IndexFiles(fs, directory, limit_bytes=limit_bytes)
        self._limit_bytes = limit_bytes
        self._memory_bytes = memory_bytes
        self._pool = ThreadPoolExecutor(_FETCHER_COUNT, thread_name_prefix="varve-cold-index")
        self._lock = threading.Lock()
        # Both by segment id.
        self._decoded: OrderedDict[str, _Decoded] = OrderedDict()  # guarded by _lock
        self._flights: dict[str, _Flight] = {}  # guarded by _lock
        self._decoded_bytes = 0  # guarded by _lock
        self._hits = 0  # guarded by _lock
        self._misses = 0  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    def load(self) -> None:
        """Takes over the files of a former process; what is not whole is deleted."""
        self._files.load()

    def get(self, home: ColdPartition, segment: ColdSegment) -> ColdIndexes:
        """Raises ObjectNotFound when the segment's objects are gone, Corrupt when they are wrong.

        Who waits for the fetch of another gets its error too.
        """
        while True:
            claimed = self._claim(segment)
            if isinstance(claimed, ColdIndexes):
                self._files.touch(segment.id)
                return claimed
            flight, is_own = claimed
            if is_own:
                return self._bring(home, segment, flight)
            flight.done.wait()
            if not _is_same(flight.segment, segment):
                continue
            if flight.error is not None:
                raise flight.error.again()
            if flight.indexes is not None:
                with self._lock:
                    self._hits += 1
                return flight.indexes

    def _claim(self, segment: ColdSegment) -> ColdIndexes | tuple[_Flight, bool]:
        """What is decoded, or a flight and whether it is for the caller to make."""
        with self._lock:
            if self._is_closed:
                raise Closed(
                    f"{segment}: the cache of its indexes was closed: open the store again"
                )
            held = self._decoded.get(segment.id)
            if held is not None and _is_same(held[0], segment):
                self._decoded.move_to_end(segment.id)
                self._hits += 1
                return held[1]
            flight = self._flights.get(segment.id)
            if flight is not None:
                return flight, False
            self._flights[segment.id] = flight = _Flight(segment)
            return flight, True

    def _bring(self, home: ColdPartition, segment: ColdSegment, flight: _Flight) -> ColdIndexes:
        try:
            flight.indexes = self._read_or_fetch(home, segment)
            return flight.indexes
        except StoreError as error:
            flight.error = error
            raise
        finally:
            self._land(segment, flight)

    def _land(self, segment: ColdSegment, flight: _Flight) -> None:
        with self._lock:
            del self._flights[segment.id]
            if flight.indexes is not None and not flight.is_stale:
                self._hold_locked(segment, flight.indexes)
        flight.done.set()
        if flight.is_stale:
            self._files.forget(segment.id)

    def _hold_locked(self, segment: ColdSegment, indexes: ColdIndexes) -> None:
        self._release_locked(segment.id)
        self._decoded[segment.id] = segment, indexes
        self._decoded_bytes += indexes.memory_bytes
        while self._decoded_bytes > self._memory_bytes:
            self._release_locked(next(iter(self._decoded)))

    def _release_locked(self, id: str) -> None:
        held = self._decoded.pop(id, None)
        if held is not None:
            self._decoded_bytes -= held[1].memory_bytes

    # Files and objects

    def _read_or_fetch(self, home: ColdPartition, segment: ColdSegment) -> ColdIndexes:
        parts = [self._get_part(home, segment, name) for name in SUFFIXES]
        contents: Sequence[Buffer] | None = self._files.find(segment, parts)
        is_hit = contents is not None
        if contents is None:
            contents = self._fetch(home, segment, parts)
        indexes = self._decode(home, segment, contents)
        if not is_hit:
            self._files.keep(segment, parts, contents)
        with self._lock:
            self._hits += is_hit
            self._misses += not is_hit
        return indexes

    def _get_part(self, home: ColdPartition, segment: ColdSegment, name: str) -> ObjectPart:
        part = segment.find_part(name)
        if part is not None:
            return part
        if name == "txnindex":
            return ObjectPart(name, 0, 0)
        raise Corrupt(
            f"{self._objects.name}: the manifest of {home} lists no {name} for {segment}: "
            "`varve tier fsck` shows what else is damaged"
        )

    def _fetch(
        self, home: ColdPartition, segment: ColdSegment, parts: Sequence[ObjectPart]
    ) -> list[Buffer]:
        """All parts at once: the first by the caller, and those that no thread was free for."""
        first, *others = parts
        waiting = [self._pool.submit(self._fetch_part, home, segment, part) for part in others]
        try:
            contents = [self._fetch_part(home, segment, first)]
            for part, future in zip(others, waiting, strict=True):
                if future.cancel():
                    contents.append(self._fetch_part(home, segment, part))
                else:
                    contents.append(future.result())
        finally:
            for future in waiting:
                future.cancel()
        return contents

    def _fetch_part(self, home: ColdPartition, segment: ColdSegment, part: ObjectPart) -> Buffer:
        if not part.size:
            return b""
        key = home.part_key(segment, part.name)
        # One byte more is asked for, to notice an object that goes on where it should end.
        data = self._objects.get_range(key, 0, part.size + 1)
        fault = find_fault(data, part)
        if fault is not None:
            raise Corrupt(
                f"{self._objects.name}: {key} {fault}: `varve tier fsck` shows what else is "
                "damaged; put the object back"
            )
        return data

    def _decode(
        self, home: ColdPartition, segment: ColdSegment, contents: Sequence[Buffer]
    ) -> ColdIndexes:
        base_offset = segment.base_offset
        where = [f"{self._objects.name}: {home.part_key(segment, name)}" for name in SUFFIXES]
        offsets, times, aborted = contents
        indexes = ColdIndexes(
            OffsetIndex.decode(offsets, base_offset, len(offsets), where[0]),
            TimeIndex.decode(times, base_offset, len(times), where[1]),
            TransactionIndex.decode(aborted, base_offset, where[2]),
        )
        indexes.offset_index.check(where[0])
        indexes.time_index.check(where[1])
        indexes.txn_index.check(where[2])
        return indexes

    # Care

    def forget(self, segment_id: str) -> None:
        """Gives up what is held of a segment; one on its way is handed out, but not kept."""
        with self._lock:
            self._release_locked(segment_id)
            flight = self._flights.get(segment_id)
            if flight is not None:
                flight.is_stale = True
        self._files.forget(segment_id)

    def usage(self) -> CacheUsage:
        """Counted in segments; the bytes are those of the files."""
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
        have_landed = [flight.done.wait(_CLOSE_SECONDS / len(flights)) for flight in flights]
        self._pool.shutdown(wait=all(have_landed), cancel_futures=True)


def _is_same(held: ColdSegment, wanted: ColdSegment) -> bool:
    return held.base_offset == wanted.base_offset and held.parts == wanted.parts
