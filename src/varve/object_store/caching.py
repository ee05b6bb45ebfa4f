"""An object store that keeps ranges of objects which never change.

Only ranges are kept; `get`, `head` and `list` ask the store below, so that what may change is read
with `get`. A put or delete through this store forgets the object; what others replace stays as it
was until pushed out.

Layout     chunks of equal size by key and number; the last one of an object is shorter.
Invariant  the bytes of all chunks kept never exceed the limit.
Threads    any; one lock, not held during requests. Whoever wants a chunk that is on its way waits
           for it. A chunk handed out stays alive as long as its reader holds it.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from varve.foundation.errors import InvalidSetting
from varve.object_store.object_store import Buffer, ObjectInfo, ObjectStore
from varve.object_store.ranges import check_range


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What a cache did so far, in chunks, and holds now."""

    hits: int
    misses: int
    evicted: int
    held_bytes: int
    limit_bytes: int


@dataclass(slots=True)
class _Fetch:
    """Chunks on their way; `is_stale` once the object was replaced meanwhile."""

    done: threading.Event = field(default_factory=threading.Event)
    is_stale: bool = False


_ChunkId = tuple[str, int]


class CachingObjectStore:
    """An ObjectStore over another."""

    def __init__(self, store: ObjectStore, *, limit_bytes: int, chunk_bytes: int = 1 << 20) -> None:
        if not 0 < chunk_bytes <= limit_bytes:
            raise InvalidSetting(
                f"a cache of {limit_bytes} bytes cannot hold chunks of {chunk_bytes} bytes: "
                "the chunk must be at least 1 byte and at most the limit"
            )
        self.name = store.name
        self._store = store
        self._limit_bytes = limit_bytes
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._chunks: OrderedDict[_ChunkId, bytes] = OrderedDict()  # guarded by _lock, oldest first
        self._fetches: dict[_ChunkId, _Fetch] = {}  # guarded by _lock
        self._held_bytes = 0  # guarded by _lock
        self._hits = self._misses = self._evicted = 0  # guarded by _lock

    def usage(self) -> CacheUsage:
        with self._lock:
            return CacheUsage(
                self._hits, self._misses, self._evicted, self._held_bytes, self._limit_bytes
            )

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        return self.get_ranges(key, ((start, end),))[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        for start, end in ranges:
            check_range(start, end, store=self.name, key=key)
        size = self._chunk_bytes
        wanted = {
            number
            for start, end in ranges
            if start < end
            for number in range(start // size, -(-end // size))
        }
        if len(wanted) * size > self._limit_bytes:
            return self._store.get_ranges(key, ranges)
        chunks = self._get_chunks(key, sorted(wanted))
        return [self._cut(chunks, start, end) for start, end in ranges]

    def _cut(self, chunks: dict[int, bytes], start: int, end: int) -> memoryview:
        """A range out of chunks: a view of one, or a copy where it spans several."""
        size = self._chunk_bytes
        numbers = range(start // size, -(-end // size)) if start < end else range(0)
        if len(numbers) == 1:
            base = numbers[0] * size
            return memoryview(chunks[numbers[0]])[start - base : end - base]
        parts = []
        for number in numbers:
            base = number * size
            parts.append(memoryview(chunks[number])[max(0, start - base) : end - base])
            if len(chunks[number]) < size:
                break
        return memoryview(b"".join(parts))

    def _get_chunks(self, key: str, numbers: Sequence[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        missing = list(numbers)
        while missing:
            own, fetch, others = self._claim(key, missing, found)
            if own:
                found.update(self._fetch(key, own, fetch))
            for other in others:
                other.done.wait()
            missing = [number for number in numbers if number not in found]
        return found

    def _claim(
        self, key: str, numbers: Sequence[int], found: dict[int, bytes]
    ) -> tuple[list[int], _Fetch, list[_Fetch]]:
        """Take what is held into `found`; what to fetch oneself, and what others fetch already."""
        own: list[int] = []
        fetch = _Fetch()
        others: list[_Fetch] = []
        with self._lock:
            for number in numbers:
                chunk = self._chunks.get((key, number))
                if chunk is not None:
                    self._chunks.move_to_end((key, number))
                    self._hits += 1
                    found[number] = chunk
                elif (key, number) in self._fetches:
                    others.append(self._fetches[key, number])
                else:
                    self._misses += 1
                    self._fetches[key, number] = fetch
                    own.append(number)
        return own, fetch, others

    def _fetch(self, key: str, numbers: Sequence[int], fetch: _Fetch) -> dict[int, bytes]:
        size = self._chunk_bytes
        fetched: dict[int, bytes] = {}
        try:
            ranges = [(number * size, (number + 1) * size) for number in numbers]
            views = self._store.get_ranges(key, ranges)
            # Copied, because a view may keep alive the whole answer that it is cut from.
            fetched = {number: bytes(view) for number, view in zip(numbers, views, strict=True)}
        finally:
            with self._lock:
                for number in numbers:
                    if self._fetches.get((key, number)) is fetch:
                        del self._fetches[key, number]
                    if not fetch.is_stale and fetched.get(number):
                        self._keep_locked((key, number), fetched[number])
            fetch.done.set()
        return fetched

    def _keep_locked(self, chunk_id: _ChunkId, chunk: bytes) -> None:
        self._chunks[chunk_id] = chunk
        self._held_bytes += len(chunk)
        while self._held_bytes > self._limit_bytes:
            _, evicted = self._chunks.popitem(last=False)
            self._held_bytes -= len(evicted)
            self._evicted += 1

    def _forget(self, keys: Iterable[str]) -> None:
        gone = set(keys)
        with self._lock:
            for chunk_id in [held for held in self._chunks if held[0] in gone]:
                self._held_bytes -= len(self._chunks.pop(chunk_id))
            for chunk_id in [fetched for fetched in self._fetches if fetched[0] in gone]:
                self._fetches.pop(chunk_id).is_stale = True

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        try:
            return self._store.put(key, data)
        finally:
            self._forget((key,))

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        try:
            return self._store.put_parts(key, parts, size=size)
        finally:
            self._forget((key,))

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        try:
            return self._store.create(key, data)
        finally:
            self._forget((key,))

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def head(self, key: str) -> ObjectInfo:
        return self._store.head(key)

    def list_directories(self, prefix: str) -> list[str]:
        return self._store.list_directories(prefix)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, start_after=start_after)

    def delete(self, keys: Sequence[str]) -> None:
        try:
            self._store.delete(keys)
        finally:
            self._forget(keys)

    def close(self) -> None:
        self._store.close()
        with self._lock:
            self._chunks.clear()
            self._held_bytes = 0
