"""An object store that is opened by its first request, and by the next one where that failed.

For a store whose opening asks a server: one that is down fails each request, as it would when it
goes down later, and nobody has to open it again once it is back.

Invariant  requests reach a store only after its opening succeeded.
Threads    any; several that come first open at once, as no lock is held during requests. The first
           to succeed is kept, and the others are closed.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from varve.foundation.errors import Closed
from varve.object_store.keys import check_prefix
from varve.object_store.object_store import Buffer, ObjectInfo, ObjectStore


class LazyObjectStore:
    """An ObjectStore that `connect` opens; what that raises is raised by the request."""

    def __init__(self, name: str, connect: Callable[[], ObjectStore]) -> None:
        self.name = name
        self._connect = connect
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._opened().put(key, data)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        return self._opened().put_parts(key, parts, size=size)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self._opened().create(key, data)

    def get(self, key: str) -> bytes:
        return self._opened().get(key)

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        return self._opened().get_range(key, start, end)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._opened().get_ranges(key, ranges)

    def head(self, key: str) -> ObjectInfo:
        return self._opened().head(key)

    def list_directories(self, prefix: str) -> list[str]:
        return self._opened().list_directories(prefix)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix, store=self.name, operation="list")
        return self._opened_list(prefix, start_after)

    def _opened_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        yield from self._opened().list(prefix, start_after=start_after)

    def delete(self, keys: Sequence[str]) -> None:
        self._opened().delete(keys)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            store = self._store
        if store is not None:
            store.close()

    def _opened(self) -> ObjectStore:
        with self._lock:
            store, is_closed = self._store, self._is_closed
        if store is None and is_closed:
            raise Closed(f"{self.name}: the object store was closed: open it again")
        return store or self._open()

    def _open(self) -> ObjectStore:
        opened = self._connect()
        with self._lock:
            if self._store is None:
                self._store = opened
            kept, is_closed = self._store, self._is_closed
        if kept is not opened or is_closed:
            opened.close()
        return kept
