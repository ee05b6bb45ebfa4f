"""A query of part of a shape's rows: a filter, an order, a limit.

Invariant  an order is over plain columns and ends with the row's key, so that equal requests get
           equal rows and pages neither overlap nor leave gaps. Rows kept in memory are bounded by
           limit and offset where both an order and a limit are given, else by the rows that match.
"""

import heapq
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row
from varve.shapes.query.columns import split_list
from varve.shapes.query.parser import parse_identifier
from varve.shapes.query.value import RowValues, Value, show_json
from varve.shapes.query.where import Where

ORDER_MAX: Final = 32
_ORDER: Final = re.compile(
    r"(?P<name>\"(?:[^\"]|\"\")*\"|\S+)"
    r"(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)
_NUMBERS, _TEXTS, _BOOLEANS, _JSON = range(4)


@dataclass(frozen=True, slots=True)
class OrderBy:
    """One column of an order."""

    column: str
    is_descending: bool
    is_nulls_first: bool


@dataclass(frozen=True, slots=True)
class Subset:
    """What to take of the rows; None and an empty order ask for nothing."""

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

    def run(self, rows: Iterable[tuple[str, Row]]) -> list[tuple[str, Row]]:
        """The rows asked for, each with its key."""
        where = self.where
        found = rows if where is None else (pair for pair in rows if where.matches(pair[1]))
        if not self.order_by:
            return list(found)
        if self.limit is None:
            return sorted(found, key=self._sort_key)[self.offset :]
        return heapq.nsmallest(self.offset + self.limit, found, key=self._sort_key)[self.offset :]

    def _sort_key(self, pair: tuple[str, Row]) -> tuple[object, ...]:
        values = RowValues(pair[1])
        return (*[_place(values[by.column], by) for by in self.order_by], pair[0])


def parse_order(text: str) -> tuple[OrderBy, ...]:
    """`a, "B" desc nulls last`; nulls are last when ascending and first when descending."""
    entries = split_list(text, "order_by")
    if len(entries) > ORDER_MAX:
        raise InvalidRequest(f"order_by has {len(entries)} columns; at most {ORDER_MAX} may be")
    return tuple([_order(entry) for entry in entries])


def _order(entry: str) -> OrderBy:
    found = _ORDER.fullmatch(entry)
    if found is None:
        raise InvalidRequest(
            f"{entry!r:.80} is no order: it is a column, then asc or desc, "
            "then nulls first or nulls last"
        )
    is_descending = (found["direction"] or "asc").lower() == "desc"
    nulls = (found["nulls"] or ("first" if is_descending else "last")).lower()
    return OrderBy(parse_identifier(found["name"]), is_descending, nulls == "first")


def _place(value: Value, by: OrderBy) -> tuple[object, ...]:
    """Where a value stands: null first or last, then by type, then by worth."""
    if value is None:
        return (0 if by.is_nulls_first else 2,)
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

    __slots__ = ("held",)

    def __init__(self, held: tuple[int, Value]) -> None:
        self.held = held

    def __lt__(self, other: "_Reversed") -> bool:
        return other.held < self.held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.held == other.held

    __hash__ = None  # type: ignore[assignment]  # a place in an order is no key
