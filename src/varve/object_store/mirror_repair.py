"""What two object stores that should hold the same do not, and the second made like the first.

Invariant  nothing is changed in the first store. An object that only the second has is deleted
           after the first was asked for it once more: it may have come since the lists.
Crash      each object is repaired by itself; what is left is found by the next comparison.
"""

from collections.abc import Callable, Iterator
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
    """Tells nobody."""


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
        extra = [
            difference.size for difference in self.differences if difference.fault is Fault.EXTRA
        ]
        return len(extra) > self.object_count or sum(extra) > self.total_bytes


def compare(
    first: ObjectStore,
    second: ObjectStore,
    prefix: str,
    *,
    deep: bool,
    is_suspect: Callable[[str], bool],
    progress: Progress,
) -> MirrorComparison:
    """Compare what is below a prefix by key and size, if `deep` by the bytes too.

    Suspect objects count as different however they look.
    """
    count = total_bytes = second_count = second_bytes = 0
    found: list[Difference] = []
    alike: list[ObjectInfo] = []
    for seen, (mine, other) in enumerate(_pair(first.list(prefix), second.list(prefix))):
        if seen % _SHOWN_COUNT == 0:
            progress(f"{count:,} objects", 0, 0)
        if other is not None:
            second_count, second_bytes = second_count + 1, second_bytes + other.size
        if mine is None:
            if other is not None:
                found.append(Difference(Fault.EXTRA, other.key, other.size))
            continue
        count, total_bytes = count + 1, total_bytes + mine.size
        if other is None:
            found.append(Difference(Fault.MISSING, mine.key, mine.size))
        elif mine.size != other.size or is_suspect(mine.key):
            found.append(Difference(Fault.DIFFERENT, mine.key, mine.size))
        elif deep:
            alike.append(mine)
    found += _compare_bytes(first, second, alike, progress)
    found.sort(key=lambda difference: difference.key)
    return MirrorComparison(count, total_bytes, second_count, second_bytes, tuple(found))


def _compare_bytes(
    first: ObjectStore, second: ObjectStore, alike: list[ObjectInfo], progress: Progress
) -> Iterator[Difference]:
    done_bytes, total_bytes = 0, sum(info.size for info in alike)
    for info in alike:
        try:
            pieces = zip(
                pieces_of(first, info.key, info.size),
                pieces_of(second, info.key, info.size),
                strict=True,
            )
            for mine, other in pieces:
                progress("compare", done_bytes, total_bytes)
                done_bytes += len(mine)
                if mine != other:
                    yield Difference(Fault.DIFFERENT, info.key, info.size)
                    break
        except ObjectNotFound:
            # It was deleted since the lists, and another comparison finds where.
            continue


def repair_object(
    first: ObjectStore, second: ObjectStore, difference: Difference, progress: Callable[[int], None]
) -> bool:
    """Make the second store like the first in one object; whether there was something to do.

    There is not when the first has changed meanwhile, so that there is no such difference any
    more. `progress` takes the bytes of each piece before it is copied.
    """
    key, size = difference.key, difference.size
    try:
        if difference.fault is Fault.EXTRA:
            first.head(key)
            return False
        copy(first, second, key, size, progress)
    except ObjectNotFound:
        if difference.fault is Fault.EXTRA:
            second.delete([key])
            return True
        return False
    return True


def copy(
    first: ObjectStore,
    second: ObjectStore,
    key: str,
    size: int,
    progress: Callable[[int], None] = lambda size: None,
) -> None:
    """Copy an object to the second store; raises ObjectNotFound when the first has it not."""
    if size <= COPY_BYTES:
        progress(size)
        second.put(key, first.get(key))
    else:
        second.put_parts(key, pieces_of(first, key, size, progress), size=size)


def pieces_of(
    store: ObjectStore,
    key: str,
    size: int,
    progress: Callable[[int], None] = lambda size: None,
) -> "_Pieces":
    """An object of a store in pieces, as often as it is iterated."""
    return _Pieces(store, key, size, progress)


@dataclass(frozen=True, slots=True)
class _Pieces:
    store: ObjectStore
    key: str
    size: int
    progress: Callable[[int], None]

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
