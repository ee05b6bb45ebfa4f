"""What varve asks of an object store: whole objects by key, ranges of them, and create-if-absent.

Invariant  a key names whole objects only: it is written at once or not at all, and a write that
           returned is durable and seen by every later read and list.
Invariant  of any number of creators of one key exactly one succeeds, also across processes.
Crash      a write that did not return may have happened or not; parts of one are never visible.
Threads    a store is shared by threads; after a fork only the parent may go on using it.
Errors     those of varve.foundation.errors; each names store, key, operation, cause and remedy.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview
"""Bytes to write; a memoryview is contiguous, one-dimensional and counts bytes (format 'B')."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object.

    `modified_ms` of an object just written is the writer's clock where the store does not tell, and
    in whole seconds where it comes by a header, as `head` has it over HTTP;
    `etag` and `version` are the store's own words and None where it has none.
    """

    key: str
    size: int
    modified_ms: int
    etag: str | None
    version: str | None


class ObjectStore(Protocol):
    """Objects by key.

    A key is made of names joined by '/' (see `keys`); no key may be the directory of another, as
    `a` is of `a/b`, because a directory on disk cannot hold both. A prefix is a directory: `a/b`,
    with or without a closing '/', or "" for everything.
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

        An empty range is answered without asking whether the object exists.
        """

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several ranges as by `get_range`; near ones are fetched together, far ones at once."""

    def head(self, key: str) -> ObjectInfo:
        """What is known of an object without reading it; raises ObjectNotFound."""

    def list_directories(self, prefix: str) -> list[str]:
        """The directories right below a prefix, as prefixes without a closing '/', in order."""

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects below a prefix in the order of their keys, fetched as they are asked for.

        Objects that others put there are listed too, even where `keys` would refuse their names.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are fine. After an error some of them may be gone."""

    def close(self) -> None:
        """Give up what the store holds; closing twice is harmless."""
