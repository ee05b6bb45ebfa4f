"""What a query's filters tell of the records it wants.

Invariant  a filter that is taken only ever narrows what is read to a superset of what it lets
           through; it is left to Spark as well unless it is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from varve.foundation.settings import LONG_MAX


@dataclass(frozen=True, slots=True)
class SourceFilters:
    """Bounds of what is wanted; offsets half-open, times inclusive, None for all there are."""

    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = LONG_MAX
    min_ms: int = -LONG_MAX
    max_ms: int = LONG_MAX
    keys: frozenset[bytes] | None = None

    def is_of_keys(self, before: "SourceFilters") -> bool:
        """Whether these differ from former ones by partitions and keys alone."""
        return self == replace(before, partitions=self.partitions, keys=self.keys)

    def take_values(self, name: str, values: Sequence[object]) -> "tuple[SourceFilters, bool]":
        """Narrowed to rows with one of the values, and whether Spark need not look again."""
        match name:
            case "partition":
                wanted = frozenset(one for one in values if isinstance(one, int))
                kept = wanted if self.partitions is None else wanted & self.partitions
                return replace(self, partitions=kept), True
            case "key":
                if not all(isinstance(one, bytes | bytearray) for one in values):
                    return self, False
                keys = frozenset(bytes(one) for one in values if isinstance(one, bytes | bytearray))
                kept_keys = keys if self.keys is None else keys & self.keys
                return replace(self, keys=kept_keys), False
            case "offset":
                numbers = [one for one in values if isinstance(one, int)]
                if not numbers:
                    return self, False
                narrowed, _ = self.take_range("offset", at_least=min(numbers))
                narrowed, _ = narrowed.take_range("offset", at_most=max(numbers))
                return narrowed, len(set(numbers)) == 1 and len(values) == 1
            case "timestamp":
                moments = [one for one in values if isinstance(one, datetime)]
                if not moments or len(moments) != len(values):
                    return self, False
                narrowed, _ = self.take_range("timestamp", at_least=min(moments))
                return narrowed.take_range("timestamp", at_most=max(moments))
            case _:
                return self, False

    def take_range(
        self,
        name: str,
        *,
        at_least: object = None,
        above: object = None,
        at_most: object = None,
        below: object = None,
    ) -> "tuple[SourceFilters, bool]":
        """Narrowed to rows within bounds, and whether Spark need not look again."""
        low = at_least if above is None else above
        high = at_most if below is None else below
        if name == "offset":
            start, end = self.start_offset, self.end_offset
            if isinstance(low, int):
                start = max(start, low + (above is not None))
            if isinstance(high, int):
                end = min(end, high + (below is None))
            is_exact = isinstance(low, int) or isinstance(high, int)
            return replace(self, start_offset=start, end_offset=end), is_exact
        if name == "timestamp":
            min_ms, max_ms = self.min_ms, self.max_ms
            low_ms, high_ms = _find_ms(low), _find_ms(high)
            if low_ms is not None:
                min_ms = max(min_ms, low_ms - 1)
            if high_ms is not None:
                max_ms = min(max_ms, high_ms + 1)
            return replace(self, min_ms=min_ms, max_ms=max_ms), False
        return self, False


def _find_ms(moment: object) -> int | None:
    """Milliseconds of a moment, rounded; None for what is none or lies too far away."""
    if not isinstance(moment, datetime):
        return None
    try:
        return round(moment.timestamp() * 1000)
    except (OverflowError, OSError, ValueError):
        return None
