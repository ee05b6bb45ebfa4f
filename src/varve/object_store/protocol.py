"""The object store interface: whole objects by key, ranges of them, and create-if-absent.

Invariant  a key names whole objects only: it is written at once or not at all, and a write that
           returned is durable and seen by every later read and list.
Invariant  of any number of creators of one key exactly one succeeds, also across processes.
Invariant  a checked key is 1 to 900 bytes of names joined by single '/', each of 1 to 200 letters,
           digits and `-_.=+@,:!()`, none of them '.', '..' or beginning with `.varve-`. Object
           stores escape, refuse or rewrite other characters, each in its own way; file systems
           limit names to 255 bytes and S3 limits keys to 1024, of which the prefix takes a part.
Crash      a write that did not return may have happened or not; parts of one are never visible.
Threads    a store is shared by threads; after a fork only the parent may continue using it.
Errors     those of varve.foundation.errors; each names store, key, operation, cause and remedy.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from varve.foundation.errors import InvalidRequest, StoreError

Buffer = bytes | bytearray | memoryview
"""Bytes to write; a memoryview is contiguous, one-dimensional and counts bytes (format 'B')."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object.

    `modified_ms` of an object just written is the writer's clock if the store returns no time; a
    time from an HTTP header, as of `head`, is in whole seconds. `etag` and `version` are opaque
    values of the store, None where it has none.
    """

    key: str
    size: int
    modified_ms: int
    etag: str | None
    version: str | None


class ObjectStore(Protocol):
    """Objects by key.

    A key is made of names joined by '/' (see `check_key`); no key may be the directory of another,
    as `a` is of `a/b`, because a directory on disk cannot hold both. A prefix is a directory:
    `a/b`, with or without a closing '/', or "" for everything.
    """

    name: str
    """For messages and status, such as s3://bucket/prefix; never holds a secret."""

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        """Write an object, replacing one of that key; durable when it returns."""

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        """Write a large object of `size` bytes from its parts, of any sizes, in order.

        Nothing is visible unless all of it was written. What `parts` raises is passed on. A
        RetryingObjectStore repeats it only when `parts` can be iterated again (not an iterator).
        """

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        """Write an object unless there is one of that key, which raises ObjectExists."""

    def get(self, key: str) -> bytes:
        """The whole object; raises ObjectNotFound."""

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        """Bytes [start, end); fewer only at the object's end, none from there on.

        An empty range sends no request, so it does not check that the object exists.
        """

    def head(self, key: str) -> ObjectInfo:
        """Size, time and etag of an object without its bytes; raises ObjectNotFound."""

    def list_directories(self, prefix: str) -> list[str]:
        """The directories right below a prefix, as prefixes without a closing '/', in order."""

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects below a prefix in the order of their keys; pages are fetched lazily.

        Foreign objects are listed too, also those whose keys `check_key` would refuse.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are not an error. After an error some may be deleted."""

    def close(self) -> None:
        """Release connections and threads; closing twice is harmless."""


E = TypeVar("E", bound=StoreError)


def failure(
    kind: type[E], *, store: str, operation: str, key: str, cause: str, remedy: str = ""
) -> E:
    """An error that names the store, the operation, the key, the cause and the remedy."""
    request = f"{operation} {key!r}" if key else operation
    return kind(f"{store}: {request} failed: {cause}" + (f"; {remedy}" if remedy else ""))


RESERVED: Final = ".varve-"
"""Prefix of names that stores use themselves, for temporary files and marks; never listed."""

_KEY_BYTES_MAX: Final = 900
_NAME_BYTES_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9_.=+@,:!()-]+")


def check_key(key: str, *, store: str, operation: str) -> None:
    """Raise InvalidRequest unless the key is valid."""
    reason = find_key_fault(key)
    if reason is not None:
        shown = key if len(key) <= 120 else f"{key[:117]}..."
        raise failure(
            InvalidRequest,
            store=store,
            operation=operation,
            key=shown,
            cause=f"the key {reason}",
            remedy=f"use names of at most {_NAME_BYTES_MAX} letters, digits and -_.=+@,:!() joined "
            f"by '/', {_KEY_BYTES_MAX} characters in all",
        )


def check_prefix(prefix: str, *, store: str, operation: str) -> str:
    """The prefix without its closing '/'; raises InvalidRequest unless it is "" or like a key."""
    bare = prefix[:-1] if prefix.endswith("/") else prefix
    if bare or prefix:
        check_key(bare, store=store, operation=operation)
    return bare


def find_key_fault(key: str) -> str | None:
    """Why a key is invalid; None for a valid one."""
    if not key:
        return "is empty"
    if len(key) > _KEY_BYTES_MAX:
        return f"has {len(key)} characters, more than {_KEY_BYTES_MAX}"
    for name in key.split("/"):
        if name in ("", ".", ".."):
            return f"has the name {name!r} in it" if name else "begins, ends or doubles with '/'"
        if not _NAME.fullmatch(name):
            return f"has a character in {name!r} that not every store allows"
        if len(name) > _NAME_BYTES_MAX:
            return f"has a name of {len(name)} characters, more than {_NAME_BYTES_MAX}"
        if name.startswith(RESERVED):
            return f"has a name that begins with {RESERVED!r}, which stores keep for themselves"
    return None


def is_reserved(key: str) -> bool:
    """Whether a key is reserved for the stores themselves."""
    return key.startswith(RESERVED) or f"/{RESERVED}" in key


def check_range(start: int, end: int, *, store: str, key: str) -> None:
    """Raise InvalidRequest unless 0 <= start <= end."""
    if not 0 <= start <= end:
        raise failure(
            InvalidRequest,
            store=store,
            operation="get range",
            key=key,
            cause=f"[{start}, {end}) is not a range of bytes",
            remedy="give 0 <= start <= end",
        )


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
