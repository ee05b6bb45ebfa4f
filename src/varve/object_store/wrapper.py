"""Base of the object stores that wrap another one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore, check_prefix

T = TypeVar("T")


class ObjectStoreWrapper:
    """An ObjectStore over another: a subclass overrides `_request`, which every operation uses."""

    def __init__(self, store: ObjectStore) -> None:
        self.name = store.name
        self._store = store

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        """Carries out one operation: `call` sends it to a store."""
        return call(self._store)

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._request("put", key, lambda store: store.put(key, data))

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        return self._request("put parts", key, lambda store: store.put_parts(key, parts, size=size))

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self._request("create", key, lambda store: store.create(key, data))

    def get(self, key: str) -> bytes:
        return self._request("get", key, lambda store: store.get(key))

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        return self._request("get range", key, lambda store: store.get_range(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        return self._request("head", key, lambda store: store.head(key))

    def list_directories(self, prefix: str) -> list[str]:
        return self._request(
            "list directories", prefix, lambda store: store.list_directories(prefix)
        )

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix, store=self.name, operation="list")
        return self._list(prefix, start_after)

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """The objects; the first request is sent when the first object is consumed."""
        yield from self._store.list(prefix, start_after=start_after)

    def delete(self, keys: Sequence[str]) -> None:
        self._request("delete", " ".join(keys), lambda store: store.delete(keys))

    def close(self) -> None:
        self._store.close()
