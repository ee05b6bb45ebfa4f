"""Few records judged in plain Python, where calls of kernels would take longer than their work.

Invariant  the same verdicts, witnesses and news as by `varve.kernels.window_spans`, record by
           record. Numbers and rules are those of that module.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from varve.kernels.window_ids import NO_ID
from varve.kernels.window_spans import (
    DUPLICATE,
    FUTURE,
    KEPT,
    LATE,
    MISSING,
    NO_ID_FOUND,
    NO_WITNESS,
)
from varve.windows.dedup.ids import Arrivals
from varve.windows.dedup.rules import DedupRules

FEW_COUNT_MAX: Final = 64
"""About so many records are judged as fast either way; one alone ten times as fast in this one."""

Cell = tuple[int, int, int, int]
"""The two words of an id as signed numbers, its kind, and the number of a stretch of time."""
Span = tuple[int, int, int, int]
"""Least time and its offset, largest time and its offset."""
FindSpan = Callable[[Cell], Span | None]

_NO_ARRIVALS: Final = Arrivals.join([])


class FewRecords:
    """What is found out of some records, one after the other. `find` asks the store.

    `verdicts` and `witnesses` are of all records, `changed` are the spans that have changed.
    """

    __slots__ = (
        "_find_stored",
        "_firsts",
        "_news",
        "_rules",
        "_spans",
        "changed",
        "stream_time_ms",
        "verdicts",
        "witnesses",
    )

    def __init__(self, rules: DedupRules, find: FindSpan, stream_time_ms: int) -> None:
        self.stream_time_ms = stream_time_ms
        self.verdicts = bytearray()
        self.witnesses: list[int] = []
        self.changed: dict[Cell, Span] = {}
        self._rules = rules
        self._find_stored = find
        self._spans: dict[Cell, Span | None] = {}
        self._news: list[int] = []
        self._firsts: list[int] = []

    def judge(self, chunk: Arrivals, *, time_max_ms: int, whole_from_ms: int) -> None:
        words, kinds = chunk.words.view(np.int64).tolist(), chunk.kinds.tolist()
        times, offsets = chunk.times.tolist(), chunk.offsets.tolist()
        stream_time_ms, lateness_ms = self.stream_time_ms, self._rules.lateness_ms
        for index, kind in enumerate(kinds):
            time, verdict, witness = times[index], KEPT, NO_WITNESS
            if time < 0:
                verdict = MISSING
            elif time > time_max_ms:
                verdict = FUTURE
            else:
                if time < stream_time_ms - lateness_ms or time < whole_from_ms:
                    verdict = LATE
                stream_time_ms = max(stream_time_ms, time)
            if kind == NO_ID:
                verdict = NO_ID_FOUND
            elif verdict == KEPT:
                first, second = words[index]
                witness = self._compare(index, first, second, kind, time, offsets[index])
                if witness != NO_WITNESS:
                    verdict = DUPLICATE
            self.verdicts.append(verdict)
            self.witnesses.append(witness)
        self.stream_time_ms = stream_time_ms

    def entries(self, chunk: Arrivals) -> Arrivals:
        """Those of the chunk that must be remembered, with the offsets of kept records."""
        if not self._news:
            return _NO_ARRIVALS
        found = chunk if len(self._news) == len(chunk) else chunk.take(np.array(self._news))
        if not self._rules.is_refreshing:
            return found
        firsts = np.array(self._firsts, np.int64)
        return Arrivals(found.words, found.kinds, found.times, firsts)

    def _compare(
        self, index: int, first: int, second: int, kind: int, time: int, offset: int
    ) -> int:
        """Gives the offset of a kept record that this is a duplicate of, or NO_WITNESS."""
        rules = self._rules
        low, high, width = time - rules.before_ms, time + rules.after_ms, rules.cell_ms
        number = time // width
        cell = (first, second, kind, number)
        span = self._find(cell)
        witness = _find_witness(span, low, high, offset)
        if witness == NO_WITNESS:
            lowest, highest = low // width, high // width
            if lowest != highest:
                other = self._find((first, second, kind, lowest + highest - number))
                witness = _find_witness(other, low, high, offset)
        if witness == NO_WITNESS or rules.is_refreshing:
            kept = offset if witness == NO_WITNESS else witness
            extended = _extend(span, time, kept)
            if extended is not span:
                self._spans[cell] = self.changed[cell] = extended
                self._news.append(index)
                self._firsts.append(kept)
        return witness

    def _find(self, cell: Cell) -> Span | None:
        if cell not in self._spans:
            self._spans[cell] = self._find_stored(cell)
        return self._spans[cell]


def _find_witness(span: Span | None, low: int, high: int, offset: int) -> int:
    if span is None:
        return NO_WITNESS
    least, least_offset, largest, largest_offset = span
    if low <= least <= high and least_offset < offset:
        return least_offset
    if low <= largest <= high and largest_offset < offset:
        return largest_offset
    return NO_WITNESS


def _extend(span: Span | None, time: int, offset: int) -> Span:
    """The span with a time; the same one where it had that within already."""
    if span is None:
        return time, offset, time, offset
    if span[0] <= time <= span[2]:
        return span
    if time < span[0]:
        return time, offset, span[2], span[3]
    return span[0], span[1], time, offset
