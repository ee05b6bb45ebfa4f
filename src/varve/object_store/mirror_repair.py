"""Compares two object stores that should hold the same objects, and copies single objects.

Invariant  the first store is never changed.
Crash      objects are copied independently; the next comparison finds those that are missing.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.foundation.errors import ObjectNotFound
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore

COPY_BYTES: Final = 8 << 20
"""Memory that a copy needs."""
_SHOWN_COUNT: Final = 1000
"""Listed objects between two progress reports."""

Progress = Callable[[str, int, int], None]
"""Called between two pieces with the key, its bytes done so far and all its bytes; may raise."""


def no_progress(title: str, done_bytes: int, total_bytes: int) -> None:
    """Ignores the progress."""


def no_bytes(size: int) -> None:
    """Ignores the progress."""


class Fault(StrEnum):
    """How an object of the second store differs."""

    MISSING = "missing"
    DIFFERENT = "different"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Difference:
    """An object that differs; `size` is that in the first store, or for EXTRA in the second."""

    fault: Fault
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class MirrorComparison:
    """Object and byte counts of both stores, and their differences in key order."""

    object_count: int
    total_bytes: int
    second_count: int
    second_bytes: int
    differences: tuple[Difference, ...]

    @property
    def is_first_poor(self) -> bool:
        """Whether the second store has more extra objects or bytes than the first has in total.

        The first store is then probably the wrong one, not mounted, or lost.
        """
        extra = [
            difference.size for difference in self.differences if difference.fault is Fault.EXTRA
        ]
        return len(extra) > self.object_count or sum(extra) > self.total_bytes


def compare(
    first: ObjectStore,
    second: ObjectStore,
    *,
    deep: bool,
    suspects: Collection[str],
    progress: Progress,
) -> MirrorComparison:
    """Compares the objects by key and size, with `deep` also by content.

    Objects in `suspects` always count as different.
    """
    count = total_bytes = second_count = second_bytes = 0
    differences: list[Difference] = []
    same_size: list[ObjectInfo] = []
    for seen, (mine, other) in enumerate(_pair(first.list(""), second.list(""))):
        if seen % _SHOWN_COUNT == 0:
            progress(f"{count:,} objects", 0, 0)
        if other is not None:
            second_count, second_bytes = second_count + 1, second_bytes + other.size
        if mine is None:
            if other is not None:
                differences.append(Difference(Fault.EXTRA, other.key, other.size))
            continue
        count, total_bytes = count + 1, total_bytes + mine.size
        if other is None:
            differences.append(Difference(Fault.MISSING, mine.key, mine.size))
        elif mine.size != other.size or mine.key in suspects:
            differences.append(Difference(Fault.DIFFERENT, mine.key, mine.size))
        elif deep:
            same_size.append(mine)
    differences += _compare_bytes(first, second, same_size, progress)
    differences.sort(key=lambda difference: difference.key)
    return MirrorComparison(count, total_bytes, second_count, second_bytes, tuple(differences))


def _compare_bytes(
    first: ObjectStore, second: ObjectStore, same_size: list[ObjectInfo], progress: Progress
) -> Iterator[Difference]:
    done_bytes, total_bytes = 0, sum(info.size for info in same_size)
    for info in same_size:
        try:
            mine_pieces, other_pieces = (
                _Pieces(store, info.key, info.size) for store in (first, second)
            )
            for mine, other in zip(mine_pieces, other_pieces, strict=True):
                progress("compare", done_bytes, total_bytes)
                done_bytes += len(mine)
                if mine != other:
                    yield Difference(Fault.DIFFERENT, info.key, info.size)
                    break
        except ObjectNotFound:
            # It was deleted since the stores were listed; the next comparison finds out where.
            continue


def copy(
    first: ObjectStore,
    second: ObjectStore,
    key: str,
    size: int,
    progress: Callable[[int], None] = no_bytes,
) -> None:
    """Copies an object to the second store; raises ObjectNotFound if the first does not have it.

    `progress` is called with the size of each piece before it is copied.
    """
    if size <= COPY_BYTES:
        progress(size)
        second.put(key, first.get(key))
    else:
        second.put_parts(key, _Pieces(first, key, size, progress), size=size)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The bytes of an object in pieces; can be iterated repeatedly."""

    store: ObjectStore
    key: str
    size: int
    progress: Callable[[int], None] = no_bytes

    def __iter__(self) -> Iterator[Buffer]:
        for start in range(0, self.size, COPY_BYTES):
            end = min(start + COPY_BYTES, self.size)
            self.progress(end - start)
            yield self.store.get_range(self.key, start, end)


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
