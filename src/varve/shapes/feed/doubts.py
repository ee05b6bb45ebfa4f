"""Which records may follow on others that are gone from the log.

A feed that is opened again reads what shapes may have seen before: all up to where the log ends
then, its horizon. What compaction has removed of that leaves a gap, and what took its place was in
the log when the gap was read. So behind a gap the first record of each key is uncertain, up to
where the log ended at that time.

Invariant  what was uncertain once is so whenever it is read again: the table's state tells of a gap
           that its positions have passed, and keys are forgotten at the same offsets in each run.
Threads    one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.shapes.feed.order import Taken

_SEEN_BITS: Final = 20
_NO_GAP: Final = -1


@dataclass(slots=True)
class _Part:
    """A partition: gaps count before `horizon`, records are uncertain before `end`."""

    horizon: int
    end: int = 0
    gap_end: int = _NO_GAP
    block: int = 0
    seen: dict[str, int] = field(default_factory=dict)


class Doubts:
    """The doubts of one opening of a feed."""

    def __init__(
        self,
        horizons: Mapping[int, int],
        known: Mapping[int, int],
        positions: Mapping[int, int],
        *,
        find_end: Callable[[int], int],
        seen_bits: int = _SEEN_BITS,
    ) -> None:
        """`known` are the `ends` of the table whose positions these are.

        `find_end` tells where a partition ends now. About 2 ** `seen_bits` keys are remembered.
        """
        self._find_end = find_end
        self._parts = {number: _Part(horizon) for number, horizon in horizons.items()}
        for number, part in self._parts.items():
            end = min(known.get(number, 0), part.horizon)
            if end > positions[number]:
                part.end, part.gap_end = end, positions[number]
        # A power of two, so that with more partitions keys are forgotten at these offsets as well.
        self._seen_bits = max(0, seen_bits - max(0, len(horizons) - 1).bit_length())

    @property
    def ends(self) -> dict[int, int]:
        """Where the doubts of each partition end in which a gap was passed."""
        return {n: part.end for n, part in self._parts.items() if part.gap_end != _NO_GAP}

    def concern(self, partition: int) -> bool:
        """Whether records of a partition may be uncertain."""
        return partition in self._parts

    def judge(self, taken: Taken, keys: Sequence[str]) -> list[bool]:
        """For each entry whether its previous row is uncertain, in a partition of concern.

        Entries that are of no row have no key.
        """
        number, start, end, _ = taken.range
        part = self._parts[number]
        if start < part.horizon and len(taken.entries) < end - start:
            part.end = max(part.end, self._find_end(number))
        judged = self._judge(part, taken, keys)
        if end >= max(part.horizon, part.end):
            del self._parts[number]
        return judged

    def _judge(self, part: _Part, taken: Taken, keys: Sequence[str]) -> list[bool]:
        expected, seen = taken.range.start, part.seen
        judged = []
        for (offset, _, _, _), key in zip(taken.entries, keys, strict=True):
            if offset > expected:
                part.gap_end = offset
            expected = offset + 1
            if offset >> self._seen_bits != part.block:
                part.block = offset >> self._seen_bits
                seen.clear()
            judged.append(key != "" and seen.get(key, _NO_GAP) < part.gap_end <= offset < part.end)
            seen[key] = offset
        if taken.range.end > expected:
            part.gap_end = taken.range.end
        return judged
