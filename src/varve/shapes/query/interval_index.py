"""Ranges of one type, to find those that hold a value.

Ranges without a lower or without an upper bound stand sorted by the other one, so the found ones
are a prefix. The rest stand sorted by lower bound under a tree of the greatest upper bounds.

Invariant  new ranges wait in a list that is looked through whole, and that stays short beside the
           sorted ones; removed ones go when they are many.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from varve.shapes.query.access_path import Bounds
from varve.shapes.query.value import Value

T = TypeVar("T")

_WAITING_MIN: Final = 64


class _Entry(NamedTuple, Generic[T]):
    low: Value
    high: Value
    item: T


class IntervalIndex(Generic[T]):
    """Items by the ranges they ask for; an item has one range. The caller serialises calls."""

    def __init__(self) -> None:
        self._entries: dict[T, _Entry[T]] = {}
        self._waiting: dict[T, _Entry[T]] = {}
        self._removed_count = 0
        self._sort()

    def add(self, item: T, bounds: Bounds) -> None:
        self._entries[item] = self._waiting[item] = _Entry(bounds.low, bounds.high, item)

    def remove(self, item: T) -> None:
        del self._entries[item]
        if self._waiting.pop(item, None) is None:
            self._removed_count += 1

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, value: Value) -> Iterator[T]:
        """Items whose closed range holds the value, in no order."""
        if max(len(self._waiting), self._removed_count) > _WAITING_MIN + len(self._entries) // 8:
            self._sort()
        for entry in self._candidates(value):
            if self._entries.get(entry.item) is entry:
                yield entry.item

    def _candidates(self, value: Value) -> Iterator[_Entry[T]]:
        for entry in self._waiting.values():
            low, high, _ = entry
            if (low is None or low <= value) and (high is None or value <= high):
                yield entry
        yield from self._above[: bisect_right(self._above_lows, value)]
        yield from self._below[bisect_left(self._below_highs, value) :]
        yield from self._stab(value)

    def _stab(self, value: Value) -> Iterator[_Entry[T]]:
        """Down the tree, where a greatest upper bound is not below the value."""
        end = bisect_right(self._lows, value)
        nodes = [(1, 0, len(self._tops) // 2)]
        while nodes:
            node, start, size = nodes.pop()
            top = self._tops[node]
            if start >= end or top is None or top < value:
                continue
            if size == 1:
                yield self._both[start]
            else:
                half = size // 2
                nodes += ((2 * node + 1, start + half, half), (2 * node, start, half))

    def _sort(self) -> None:
        entries = list(self._entries.values())
        self._waiting, self._removed_count = {}, 0
        self._above = sorted(
            [entry for entry in entries if entry.high is None and entry.low is not None],
            key=lambda entry: entry.low,
        )
        self._below = sorted(
            [entry for entry in entries if entry.low is None and entry.high is not None],
            key=lambda entry: entry.high,
        )
        self._both = sorted(
            [entry for entry in entries if entry.low is not None and entry.high is not None],
            key=lambda entry: entry.low,
        )
        self._above_lows = [entry.low for entry in self._above]
        self._below_highs = [entry.high for entry in self._below]
        self._lows = [entry.low for entry in self._both]
        self._tops = _tops([entry.high for entry in self._both])


def _tops(highs: list[Value]) -> list[Value]:
    """A tree in a list: node 1 is the root, node n has 2n and 2n + 1 below it."""
    leaves = 1
    while leaves < len(highs):
        leaves *= 2
    tops: list[Value] = [None] * leaves + highs + [None] * (leaves - len(highs))
    for node in range(leaves - 1, 0, -1):
        held = [top for top in (tops[2 * node], tops[2 * node + 1]) if top is not None]
        tops[node] = max(held, default=None)
    return tops
