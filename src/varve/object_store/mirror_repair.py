"""The differences of two object stores that should hold the same, and copies of single objects.

Invariant  nothing is changed in the first store.
Crash      each object is copied by itself; what is left is found by the next comparison.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.foundation.errors import ObjectNotFound
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore

COPY_BYTES: Final = 8 << 20
"""A copy holds so much in memory."""
_SHOWN_COUNT: Final = 1000
"""Progress is reported after so many objects of the lists."""

Progress = Callable[[str, int, int], None]
"""Called between two pieces with the key, its bytes done so far and all its bytes; may raise."""


def no_progress(title: str, done_bytes: int, total_bytes: int) -> None:
    """Reports to nobody."""


def no_bytes(size: int) -> None:
    """Reports to nobody."""


class Fault(StrEnum):
    """What the second store has otherwise."""

    MISSING = "missing"
    DIFFERENT = "different"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Difference:
    """One object; `size` is that in the first store, of an extra one that in the second."""

    fault: Fault
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class MirrorComparison:
    """The objects of both stores, their bytes, and what the second has otherwise, by key."""

    object_count: int
    total_bytes: int
    second_count: int
    second_bytes: int
    differences: tuple[Difference, ...]

    @property
    def is_first_poor(self) -> bool:
        """Whether the second alone has more than the first has at all.

        The first is then rather another store, not mounted or lost, than the truth.
        """
        extra = [each.size for each in self.differences if each.fault is Fault.EXTRA]
        return len(extra) > self.object_count or sum(extra) > self.total_bytes


def compare(
    first: ObjectStore,
    second: ObjectStore,
    prefix: str,
    *,
    deep: bool,
    suspects: Collection[str],
    progress: Progress,
) -> MirrorComparison:
    """Compare what is below a prefix by key and size, if `deep` by the bytes too.

    Suspect objects count as different however they look.
    """
    count = total_bytes = second_count = second_bytes = 0
    differences: list[Difference] = []
    alike: list[ObjectInfo] = []
    for seen, (mine, other) in enumerate(_pair(first.list(prefix), second.list(prefix))):
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
            alike.append(mine)
    differences += _compare_bytes(first, second, alike, progress)
    differences.sort(key=lambda difference: difference.key)
    return MirrorComparison(count, total_bytes, second_count, second_bytes, tuple(differences))


def _compare_bytes(
    first: ObjectStore, second: ObjectStore, alike: list[ObjectInfo], progress: Progress
) -> Iterator[Difference]:
    done_bytes, total_bytes = 0, sum(info.size for info in alike)
    for info in alike:
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
            # It was deleted since the lists, and another comparison finds where.
            continue


def copy(
    first: ObjectStore,
    second: ObjectStore,
    key: str,
    size: int,
    progress: Callable[[int], None] = no_bytes,
) -> None:
    """Copy an object to the second store; raises ObjectNotFound when the first has it not.

    `progress` takes the bytes of each piece before it is copied.
    """
    if size <= COPY_BYTES:
        progress(size)
        second.put(key, first.get(key))
    else:
        second.put_parts(key, _Pieces(first, key, size, progress), size=size)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """An object of a store in pieces, as often as it is iterated."""

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
