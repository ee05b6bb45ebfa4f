"""A query of part of a shape's rows: a filter, an order, a limit.

Invariant  an order is over columns, not expressions, and ends with the row's key, so that equal
           requests get equal rows and pages neither overlap nor leave gaps. However many rows
           match, those in memory are bounded in number and in bytes: by limit and offset, or by
           the settings.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row
from varve.shapes.filter.parser import parse_identifier, split_list
from varve.shapes.filter.value import RowValues, Value, show_json
from varve.shapes.filter.where import Where

ORDER_MAX: Final = 32
_ENTRY: Final = re.compile(
    r"(?P<name>\"(?:[^\"]|\"\")*\"|\S+)"
    r"(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)
_SPARE_ROWS: Final = 1 << 16
"""Rows that are collected beside the first ones before all are sorted again."""
_NUMBERS, _TEXTS, _BOOLEANS, _JSON = range(4)


@dataclass(frozen=True, slots=True)
class OrderBy:
    """One column of an order."""

    column: str
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Subset:
    """A query of rows; the defaults select all rows in any order."""

    where: Where | None = None
    order_by: tuple[OrderBy, ...] = ()
    limit: int | None = None
    offset: int = 0

    @classmethod
    def parse(
        cls,
        *,
        where: str | None = None,
        params: Mapping[int, str] | None = None,
        order_by: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
        queryable: Collection[str] | None = None,
    ) -> "Subset":
        """The query of a request; raises InvalidRequest.

        `queryable` are the only columns that filter and order may use; None allows all.
        """
        condition = None if where is None else Where.parse(where, params)
        order = () if order_by is None else parse_order(order_by)
        if (limit is not None or offset is not None) and not order:
            raise InvalidRequest("limit and offset need order_by, or pages would overlap")
        if limit is not None and limit < 1:
            raise InvalidRequest(f"limit {limit} is below 1")
        if offset is not None and offset < 0:
            raise InvalidRequest(f"offset {offset} is below 0")
        used = (condition.columns if condition else frozenset()) | {by.column for by in order}
        if queryable is not None and not used <= set(queryable):
            denied = ", ".join(sorted(used - set(queryable)))
            raise InvalidRequest(f"columns {denied!r:.80} may not be used in a query of this shape")
        return cls(condition, order, limit, offset or 0)

    def run(
        self,
        rows: Iterable[tuple[str, Row]],
        show: Callable[[str, Row], bytes],
        *,
        rows_max: int,
        bytes_max: int,
    ) -> list[bytes]:
        """The rows requested, as they are shown; raises InvalidRequest if there are too many.

        Rows that the offset skips are in memory too, so their bytes count as well.
        """
        if self.offset > rows_max:
            raise InvalidRequest(f"offset {self.offset} is above the limit of {rows_max} rows")
        # A larger limit is ignored; the query fails only if more rows match.
        limit = self.limit if self.limit is not None and self.limit <= rows_max else None
        first_rows = _FirstRows(
            self.offset + (limit or rows_max), bytes_max, is_cut=limit is not None
        )
        where = self.where
        for key, row in rows:
            if where is None or where.matches(row):
                sort_key = self._row_sort_key(key, row) if self.order_by else ()
                if first_rows.may_include(sort_key):
                    first_rows.add(sort_key, show(key, row))
        return first_rows.take()[self.offset :]

    def _row_sort_key(self, key: str, row: Row) -> tuple[object, ...]:
        values = RowValues(row)
        return (*[_value_sort_key(values[by.column], by) for by in self.order_by], key)


class _FirstRows:
    """The first rows, by sort key, of those added so far. With `is_cut` the others are dropped."""

    def __init__(self, count: int, bytes_max: int, *, is_cut: bool) -> None:
        self._count = count
        self._bytes_max = bytes_max
        self._is_cut = is_cut
        # Sorts only when `_spare_rows` rows have been added, to amortize the cost.
        self._spare_rows = min(count, _SPARE_ROWS) if is_cut else 0
        self._spare_bytes = bytes_max if is_cut else 0
        self._rows: list[tuple[tuple[object, ...], bytes]] = []
        self._bytes = 0
        self._last: tuple[object, ...] | None = None

    def may_include(self, sort_key: tuple[object, ...]) -> bool:
        """Whether a row with that sort key may be among those that come first."""
        return self._last is None or sort_key < self._last

    def add(self, sort_key: tuple[object, ...], text: bytes) -> None:
        self._rows.append((sort_key, text))
        self._bytes += len(text)
        if (
            len(self._rows) > self._count + self._spare_rows
            or self._bytes > self._bytes_max + self._spare_bytes
        ):
            self._cut()

    def take(self) -> list[bytes]:
        """The rows in order."""
        self._cut()
        self._rows.sort(key=itemgetter(0))
        return [text for _, text in self._rows]

    def _cut(self) -> None:
        """Drops all but the first rows; raises InvalidRequest if that leaves too many."""
        if self._is_cut and len(self._rows) >= self._count:
            self._rows.sort(key=itemgetter(0))
            del self._rows[self._count :]
            self._bytes = sum([len(text) for _, text in self._rows])
            self._last = self._rows[-1][0]
        if len(self._rows) > self._count or self._bytes > self._bytes_max:
            raise InvalidRequest(
                f"the subset has more than {self._count} rows or {self._bytes_max} bytes, with "
                "those that its offset skips: give it a smaller limit"
            )


def parse_order(text: str) -> tuple[OrderBy, ...]:
    """`a, "B" desc nulls last`; nulls are last when ascending and first when descending."""
    entries = split_list(text, "order_by")
    if len(entries) > ORDER_MAX:
        raise InvalidRequest(f"order_by has {len(entries)} columns; at most {ORDER_MAX} may be")
    return tuple([_parse_entry(entry) for entry in entries])


def _parse_entry(entry: str) -> OrderBy:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise InvalidRequest(
            f"{entry!r:.80} is not an order: it is a column, then asc or desc, "
            "then nulls first or nulls last"
        )
    is_descending = (match["direction"] or "asc").lower() == "desc"
    nulls = (match["nulls"] or ("first" if is_descending else "last")).lower()
    return OrderBy(parse_identifier(match["name"]), is_descending, nulls == "first")


def _value_sort_key(value: Value, by: OrderBy) -> tuple[object, ...]:
    """The sort key of a value: null first or last, then by type, then by value."""
    if value is None:
        return (0 if by.nulls_first else 2,)
    ranked = _rank(value)
    return (1, _Reversed(ranked) if by.is_descending else ranked)


def _rank(value: Value) -> tuple[int, Value]:
    if isinstance(value, bool):
        return _BOOLEANS, value
    if isinstance(value, int | Decimal):
        return _NUMBERS, value
    if isinstance(value, str):
        return _TEXTS, value
    return _JSON, show_json(value)


class _Reversed:
    """Compares the other way round."""

    __slots__ = ("ranked",)

    def __init__(self, ranked: tuple[int, Value]) -> None:
        self.ranked = ranked

    def __lt__(self, other: "_Reversed") -> bool:
        return other.ranked < self.ranked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.ranked == other.ranked

    __hash__ = None  # type: ignore[assignment]  # a sort position is not a key
