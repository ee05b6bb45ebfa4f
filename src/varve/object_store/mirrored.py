"""Two independent object stores as one: writes go to both, reads fail over.

The first store is the truth: it decides who creates, and a write that fails there fails. The second
follows each write; where that fails the write stands all the same, and what it lacks is noted,
reported by `status` and caught up by `repair`. Reads ask the second when the first is unavailable
or denies; what the second does not have then is not known to be missing, and the first one's error
is raised.

Invariant  what this process failed to do to the second store is noted until it was done.
Invariant  keys are written by one writer at a time: of two that replace one object at once each
           store may keep another's bytes, which only a deep repair finds.
Crash      notes are in memory only; after a crash `repair` finds what differs by comparing lists.
Threads    any; `_lock` guards the notes and is not held during requests.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from varve.foundation.errors import (
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from varve.object_store.object_store import Buffer, ObjectInfo, ObjectStore

T = TypeVar("T")

COPY_BYTES: Final = 8 << 20
"""A copy holds so much in memory."""
NOTED_KEYS_MAX: Final = 100_000
"""More are only counted; then `repair` must compare lists, as it does anyway."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """What the second store lacks as far as this process knows.

    `missing` were written and `undeleted` deleted in the first store only; `unnoted_count` are
    further ones without their keys. `last_error` tells why the second store was last left behind.
    """

    missing: tuple[str, ...]
    undeleted: tuple[str, ...]
    unnoted_count: int
    failover_count: int
    last_error: str

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.undeleted or self.unnoted_count)


@dataclass(frozen=True, slots=True)
class MirrorRepair:
    """What a repair did: copied to the second store, deleted there, and found there alone."""

    copied: tuple[str, ...]
    deleted: tuple[str, ...]
    extra: tuple[str, ...]


class MirroredObjectStore:
    """An ObjectStore over two others."""

    def __init__(self, first: ObjectStore, second: ObjectStore) -> None:
        self.name = f"mirror of {first.name} and {second.name}"
        self._first = first
        self._second = second
        self._lock = threading.Lock()
        self._behind: dict[str, bool] = {}  # guarded by _lock; key to whether it was deleted
        self._unnoted_count = 0  # guarded by _lock
        self._failover_count = 0  # guarded by _lock
        self._last_error = ""  # guarded by _lock

    def status(self) -> MirrorStatus:
        with self._lock:
            behind = sorted(self._behind.items())
            return MirrorStatus(
                missing=tuple(key for key, was_deleted in behind if not was_deleted),
                undeleted=tuple(key for key, was_deleted in behind if was_deleted),
                unnoted_count=self._unnoted_count,
                failover_count=self._failover_count,
                last_error=self._last_error,
            )

    # Writes

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._first.put(key, data)
        self._follow((key,), False, lambda: self._second.put(key, data))
        return info

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        is_one_shot = iter(parts) is parts
        info = self._first.put_parts(key, parts, size=size)
        if is_one_shot:
            self._follow((key,), False, lambda: self._copy(info))
        else:
            self._follow((key,), False, lambda: self._second.put_parts(key, parts, size=size))
        return info

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._first.create(key, data)
        self._follow((key,), False, lambda: self._second.put(key, data))
        return info

    def delete(self, keys: Sequence[str]) -> None:
        self._first.delete(keys)
        self._follow(keys, True, lambda: self._second.delete(keys))

    def _follow(self, keys: Sequence[str], was_deleted: bool, call: Callable[[], object]) -> None:
        """Do the same to the second store, or note that it is to be done."""
        try:
            call()
        except StoreError as error:
            with self._lock:
                self._last_error = str(error)
                self._note_locked(keys, was_deleted)
        else:
            with self._lock:
                for key in keys:
                    self._behind.pop(key, None)

    def _note_locked(self, keys: Sequence[str], was_deleted: bool) -> None:
        for key in keys:
            if key in self._behind or len(self._behind) < NOTED_KEYS_MAX:
                self._behind[key] = was_deleted
            else:
                self._unnoted_count += 1

    # Reads

    def get(self, key: str) -> bytes:
        return self._read(key, lambda store: store.get(key))

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        return self._read(key, lambda store: store.get_range(key, start, end))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._read(key, lambda store: store.get_ranges(key, ranges))

    def head(self, key: str) -> ObjectInfo:
        return self._read(key, lambda store: store.head(key))

    def _read(self, key: str, read: Callable[[ObjectStore], T]) -> T:
        try:
            return read(self._first)
        except (StoreUnavailable, StoreDenied) as error:
            with self._lock:
                self._failover_count += 1
                is_behind = key in self._behind
            if is_behind:
                raise
            try:
                return read(self._second)
            except ObjectNotFound:
                raise error from None

    def list_directories(self, prefix: str) -> list[str]:
        """From the second store, if it must be, what may lack what that one lacks."""
        return self._read("", lambda store: store.list_directories(prefix))

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Goes on with the second store where the first breaks off; that one may be behind."""
        found = self._first.list(prefix, start_after=start_after)
        return self._mirrored_list(found, prefix, start_after)

    def _mirrored_list(
        self, found: Iterator[ObjectInfo], prefix: str, start_after: str | None
    ) -> Iterator[ObjectInfo]:
        try:
            for info in found:
                yield info
                start_after = info.key
            return
        except (StoreUnavailable, StoreDenied):
            with self._lock:
                self._failover_count += 1
        yield from self._second.list(prefix, start_after=start_after)

    # Repair

    def repair(
        self, prefix: str = "", *, deep: bool = False, delete_extra: bool = False
    ) -> MirrorRepair:
        """Bring the second store to what the first has below a prefix; raises where either fails.

        Objects are compared by key and size, if `deep` by their bytes too; those noted as behind
        are copied in any case. What only the second has is deleted when this process deleted it
        in the first; the rest is reported as extra, and deleted only if told so: it may be the
        last copy.
        """
        copied: list[str] = []
        deleted: list[str] = []
        extra: list[str] = []
        for first, second in _pair(self._first.list(prefix), self._second.list(prefix)):
            if first is not None:
                if second is None or self._differs(first, second, deep):
                    self._copy(first)
                    self._settle(first.key)
                    copied.append(first.key)
            elif second is not None:
                if delete_extra or self._is_behind(second.key):
                    self._second.delete([second.key])
                    self._settle(second.key)
                    deleted.append(second.key)
                else:
                    extra.append(second.key)
        if not prefix:
            with self._lock:
                self._unnoted_count = 0
        return MirrorRepair(tuple(copied), tuple(deleted), tuple(extra))

    def _differs(self, first: ObjectInfo, second: ObjectInfo, deep: bool) -> bool:
        if first.size != second.size or self._is_behind(first.key):
            return True
        pieces = zip(_Pieces(self._first, first), _Pieces(self._second, second), strict=True)
        return deep and any(mine != other for mine, other in pieces)

    def _is_behind(self, key: str) -> bool:
        with self._lock:
            return key in self._behind

    def _settle(self, key: str) -> None:
        with self._lock:
            self._behind.pop(key, None)

    def _copy(self, info: ObjectInfo) -> None:
        if info.size <= COPY_BYTES:
            self._second.put(info.key, self._first.get(info.key))
        else:
            parts = _Pieces(self._first, info)
            self._second.put_parts(info.key, parts, size=info.size)

    def close(self) -> None:
        self._first.close()
        self._second.close()


class _Pieces:
    """An object of a store in pieces, as often as it is iterated."""

    def __init__(self, store: ObjectStore, info: ObjectInfo) -> None:
        self._store = store
        self._info = info

    def __iter__(self) -> Iterator[Buffer]:
        for start in range(0, self._info.size, COPY_BYTES):
            yield self._store.get_range(self._info.key, start, start + COPY_BYTES)


def _pair(
    first: Iterator[ObjectInfo], second: Iterator[ObjectInfo]
) -> Iterator[tuple[ObjectInfo | None, ObjectInfo | None]]:
    """Two lists in key order side by side; None where a key is in one of them only."""
    left, right = next(first, None), next(second, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.key < right.key):
            yield left, None
            left = next(first, None)
        elif left is None or right.key < left.key:
            yield None, right
            right = next(second, None)
        else:
            yield left, right
            left, right = next(first, None), next(second, None)
