"""The object store protocol over an obstore client: base of memory, S3, GCS and Azure stores.

obstore's own retries are off for single requests: a retried conditional write would find its own
object and look like a lost race, which RetryingObjectStore can distinguish. Retries of the parts of
a multipart upload are harmless, and their client has them on.

Threads    the client is obstore's and shared by threads; its calls release the GIL. It has threads
           of its own, which a forked child does not get.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import obstore
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, ObjectNotFound
from varve.object_store.obstore_errors import OBSTORE_ERRORS, is_past_end, translate, translated
from varve.object_store.protocol import (
    Buffer,
    ObjectInfo,
    check_key,
    check_prefix,
    check_range,
    failure,
    is_reserved,
)

Client = AzureStore | GCSStore | MemoryStore | S3Store

LIST_PAGE_COUNT: Final = 1000
"""Objects per list request, and keys per bulk delete: the most that S3 allows."""

_PART_COUNT_MAX: Final = 10_000
"""Parts that S3 allows in one upload."""

_MEMORY_PART_BYTES: Final = 8 << 20

_CONCURRENT_PARTS_MAX: Final = 6
"""Parts of one upload that are in memory and in flight."""


class ObstoreObjectStore:
    """An ObjectStore over a client of obstore.

    `client` is public for operations beyond the protocol, such as signed URLs; `parts_client`
    accesses the same objects and retries requests.
    """

    def __init__(
        self, name: str, client: Client, parts_client: Client, *, part_bytes: int, clock: Clock
    ) -> None:
        self.name = name
        self.client = client
        self._parts_client = parts_client
        self._part_bytes = part_bytes
        self._clock = clock

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        check_key(key, store=self.name, operation="put")
        with translated(self.name, "put", key):
            result = obstore.put(self.client, key, data, use_multipart=False)
        return self._written(key, memoryview(data).nbytes, result)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        check_key(key, store=self.name, operation="put parts")
        counted = CountedParts(parts, size=size, store=self.name, key=key)
        if size <= self._part_bytes:
            return self.put(key, b"".join(counted))
        # A part must hold at least size / 10,000; obstore splits the input into such parts.
        part_bytes = max(self._part_bytes, -(-size // _PART_COUNT_MAX))
        try:
            result = obstore.put(
                self._parts_client,
                key,
                iter(counted),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=_CONCURRENT_PARTS_MAX,
            )
        except OBSTORE_ERRORS as error:
            if counted.error is not None:
                raise counted.error from None
            raise translate(error, store=self.name, operation="put parts", key=key) from None
        return self._written(key, size, result)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        check_key(key, store=self.name, operation="create")
        return self._create_unchecked(key, data)

    def _create_unchecked(self, key: str, data: Buffer) -> ObjectInfo:
        """`create` of any key, also a reserved one."""
        with translated(self.name, "create", key):
            result = obstore.put(self.client, key, data, mode="create", use_multipart=False)
        return self._written(key, memoryview(data).nbytes, result)

    def get(self, key: str) -> bytes:
        check_key(key, store=self.name, operation="get")
        with translated(self.name, "get", key):
            return obstore.get(self.client, key).bytes().to_bytes()

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        check_key(key, store=self.name, operation="get range")
        check_range(start, end, store=self.name, key=key)
        if start == end:
            return memoryview(b"")
        try:
            return memoryview(obstore.get_range(self.client, key, start=start, end=end))
        except OBSTORE_ERRORS as error:
            if is_past_end(error):
                return memoryview(b"")
            raise translate(error, store=self.name, operation="get range", key=key) from None

    def head(self, key: str) -> ObjectInfo:
        check_key(key, store=self.name, operation="head")
        with translated(self.name, "head", key):
            meta = obstore.head(self.client, key)
        return _info(key, meta["size"], meta["last_modified"], meta["e_tag"], meta["version"])

    def list_directories(self, prefix: str) -> list[str]:
        bare = check_prefix(prefix, store=self.name, operation="list directories")
        with translated(self.name, "list directories", bare):
            listed = obstore.list_with_delimiter(self.client, bare or None)
        return sorted(path for path in listed["common_prefixes"] if not is_reserved(path))

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        bare = check_prefix(prefix, store=self.name, operation="list")
        return self._list_pages(bare, start_after)

    def _list_pages(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        with translated(self.name, "list", prefix):
            pages = obstore.list(
                self.client, prefix or None, offset=start_after, chunk_size=LIST_PAGE_COUNT
            )
        while True:
            with translated(self.name, "list", prefix):
                page = next(pages, None)
            if page is None:
                return
            for meta in page:
                # obstore drops the closing '/' of an offset, and would list too much.
                if meta["path"] > (start_after or "") and not is_reserved(meta["path"]):
                    yield _info(
                        meta["path"],
                        meta["size"],
                        meta["last_modified"],
                        meta["e_tag"],
                        meta["version"],
                    )

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key, store=self.name, operation="delete")
        for number in range(0, len(keys), LIST_PAGE_COUNT):
            self._delete_page(keys[number : number + LIST_PAGE_COUNT])

    def _delete_page(self, keys: Sequence[str]) -> None:
        """Delete in bulk; one by one when a missing key fails that, as on GCS and Azure."""
        described = keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
        try:
            with translated(self.name, "delete", described):
                obstore.delete(self.client, keys)
        except ObjectNotFound:
            if len(keys) > 1:
                for key in keys:
                    self._delete_page([key])

    def close(self) -> None:
        """Does nothing: obstore closes its connections with the last reference."""

    def _written(self, key: str, size: int, result: "obstore.PutResult") -> ObjectInfo:
        return ObjectInfo(key, size, self._clock.now_ms(), result["e_tag"], result["version"])


class MemoryObjectStore(ObstoreObjectStore):
    """An ObjectStore in the memory of this process, for tests and trials.

    Each instance starts empty and is independent of others.
    """

    def __init__(self, name: str = "memory:", *, clock: Clock | None = None) -> None:
        client = MemoryStore()
        super().__init__(
            name, client, client, part_bytes=_MEMORY_PART_BYTES, clock=clock or SystemClock()
        )


class CountedParts:
    """Yields parts; raises before the upload completes unless they add up to `size` bytes.

    `error` is an error of the parts, to distinguish it from an error of the store.
    """

    def __init__(self, parts: Iterable[Buffer], *, size: int, store: str, key: str) -> None:
        self.error: Exception | None = None
        self._parts = parts
        self._size = size
        self._store = store
        self._key = key

    def __iter__(self) -> Iterator[Buffer]:
        try:
            size = 0
            for part in self._parts:
                size += memoryview(part).nbytes
                if size > self._size:
                    raise self._wrong_size(f"more than {size - 1}")
                yield part
            if size < self._size:
                raise self._wrong_size(str(size))
        except Exception as error:
            self.error = error
            raise

    def _wrong_size(self, size: str) -> InvalidRequest:
        return failure(
            InvalidRequest,
            store=self._store,
            operation="put parts",
            key=self._key,
            cause=f"the parts have {size} bytes, but size says {self._size}",
        )


def _info(
    key: str, size: int, modified: datetime, etag: str | None, version: str | None
) -> ObjectInfo:
    return ObjectInfo(key, size, int(modified.timestamp() * 1000), etag, version)
