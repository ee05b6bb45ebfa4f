"""Byte ranges of an object: which are valid, which are fetched together, and back again.

Invariant  merged ranges ascend, do not touch, and cover every wanted range that is not empty.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.object_store.failure import failure

GAP_BYTES: Final = 256 << 10
"""Up to so many unwanted bytes are read rather than making another request: at 100 MB/s they cost
a few milliseconds, a request costs ten and more."""

Range = tuple[int, int]


def check_range(start: int, end: int, *, store: str, key: str) -> None:
    """Raise InvalidRequest unless 0 <= start <= end."""
    if not 0 <= start <= end:
        raise failure(
            InvalidRequest,
            store=store,
            operation="get range",
            key=key,
            cause=f"[{start}, {end}) is no range of bytes",
            remedy="give 0 <= start <= end",
        )


def merge_ranges(ranges: Sequence[Range], *, gap_bytes: int = GAP_BYTES) -> list[Range]:
    """The ranges to fetch: wanted ones in order, those near each other as one."""
    merged: list[Range] = []
    for start, end in sorted(wanted for wanted in ranges if wanted[0] < wanted[1]):
        if merged and start - merged[-1][1] <= gap_bytes:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def cut_ranges(
    ranges: Sequence[Range], merged: Sequence[Range], fetched: Sequence[memoryview]
) -> list[memoryview]:
    """The wanted ranges as views of what was fetched for the merged ones."""
    starts = [start for start, _ in merged]
    cut: list[memoryview] = []
    for start, end in ranges:
        if start == end:
            cut.append(memoryview(b""))
            continue
        number = bisect_right(starts, start) - 1
        cut.append(fetched[number][start - starts[number] : end - starts[number]])
    return cut
