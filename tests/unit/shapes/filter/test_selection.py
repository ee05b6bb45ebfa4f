"""Columns, orders and subsets, and what the index of filters evaluates."""

from typing import Any

import pytest

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row
from varve.shapes.filter.filter_index import FilterIndex, find_path
from varve.shapes.filter.parser import parse_columns
from varve.shapes.filter.subset import Subset
from varve.shapes.filter.where import Where

ROWS: list[tuple[str, Row]] = [
    ("1", {"id": b"1", "n": b"2", "t": b'"b"'}),
    ("2", {"id": b"2", "n": b"10", "t": b'"a"'}),
    ("3", {"id": b"3", "n": b"null", "t": b'"a"'}),
    ("4", {"id": b"4", "n": b"2.0", "t": b'"c"'}),
]


def _show(key: str, row: Row) -> bytes:
    return key.encode()


def _keys(rows_max: int = 100, bytes_max: int = 1000, **query: Any) -> list[str]:
    subset = Subset.parse(**query)
    result = subset.run(ROWS, _show, rows_max=rows_max, bytes_max=bytes_max)
    return [key.decode() for key in result]


def test_columns_are_named_as_in_sql() -> None:
    assert parse_columns(' id,"Na""me, x" ,FOO,id') == ("id", 'Na"me, x', "foo")


@pytest.mark.parametrize(
    "text", ["", ",", "a,", "a,,b", "a b", '"a', '""', "1a", "a;b", '"' * 9999]
)
def test_broken_columns_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_columns(text)


def test_a_subset_filters_orders_and_cuts() -> None:
    assert _keys() == ["1", "2", "3", "4"]
    assert _keys(where="t = $1", params={1: "a"}) == ["2", "3"]
    assert _keys(order_by="n") == ["1", "4", "2", "3"]
    assert _keys(order_by="n desc") == ["3", "2", "1", "4"]
    assert _keys(order_by="n DESC NULLS LAST, id desc") == ["2", "4", "1", "3"]
    assert _keys(order_by='"t" asc nulls first, id desc') == ["3", "2", "1", "4"]
    assert _keys(order_by="n", limit=2, offset=1) == ["4", "2"]
    assert _keys(order_by="n", offset=3) == ["3"]
    assert _keys(order_by="missing") == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 1},
        {"offset": 1},
        {"order_by": "n", "limit": 0},
        {"order_by": "n", "offset": -1},
        {"order_by": "n + 1"},
        {"order_by": "n, "},
        {"order_by": "lower(n)"},
        {"order_by": "n desc asc"},
        {"where": "a = (select 1)"},
        {"where": "secret = 1", "queryable": ["id"]},
        {"order_by": "secret", "queryable": ["id"]},
    ],
)
def test_a_subset_that_cannot_be_is_refused(query: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        _keys(**query)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"order_by": "n"},
        {"order_by": "n", "limit": 3},
        {"order_by": "n", "limit": 1_000_000_000},
        {"order_by": "n", "offset": 1},
        {"order_by": "n", "offset": 1_000_000_000, "limit": 1},
    ],
)
def test_a_subset_that_gives_too_many_rows_is_refused(query: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        _keys(rows_max=2, **query)


def test_a_subset_is_refused_for_what_it_gives_not_for_what_it_asks() -> None:
    assert _keys(rows_max=4, order_by="n", limit=1_000_000_000) == ["1", "4", "2", "3"]
    assert _keys(rows_max=2, order_by="n", limit=2, offset=2) == ["2", "3"]
    assert _keys(rows_max=2, where="n > 3", order_by="n", limit=9) == ["2"]
    assert _keys(bytes_max=4) == ["1", "2", "3", "4"]
    assert _keys(bytes_max=2, order_by="n", offset=1, limit=1) == ["4"]
    with pytest.raises(InvalidRequest):
        _keys(bytes_max=3)
    with pytest.raises(InvalidRequest):
        _keys(bytes_max=3, order_by="n", limit=2, offset=2)


class _Counted(bytes):
    """A row that is shown; knows how many of them are held."""

    held = most = 0

    def __init__(self, _: bytes) -> None:
        _Counted.held += 1
        _Counted.most = max(_Counted.most, _Counted.held)

    def __del__(self) -> None:
        _Counted.held -= 1


@pytest.mark.parametrize(
    ("query", "held_max"),
    [
        ({}, 21),
        ({"order_by": "n"}, 21),
        ({"order_by": "n desc"}, 21),
        ({"order_by": "n", "limit": 1_000_000}, 21),
        ({"order_by": "n", "limit": 3}, 7),
        ({"order_by": "n desc", "limit": 3, "offset": 2}, 11),
    ],
)
def test_rows_are_let_go_of_before_all_were_seen(query: dict[str, Any], held_max: int) -> None:
    _Counted.most = 0
    rows = ((str(number), {"n": b"%d" % (number * 37 % 10_000)}) for number in range(10_000))
    subset = Subset.parse(**query)
    try:
        result = subset.run(rows, lambda key, row: _Counted(row["n"]), rows_max=20, bytes_max=1000)
    except InvalidRequest:
        result = []
    if held_max < 20:
        order = sorted(range(10_000), reverse="desc" in str(query["order_by"]))
        start = subset.offset
        assert [int(text) for text in result] == order[start : start + 3]
    assert _Counted.most <= held_max


def test_large_rows_are_let_go_of_as_well() -> None:
    _Counted.most = 0
    rows = [(str(number), {"n": b"%d" % -number}) for number in range(1000)]
    subset = Subset.parse(order_by="n", limit=5)
    result = subset.run(rows, lambda key, row: _Counted(b"x" * 100), rows_max=20, bytes_max=500)
    assert len(result) == 5
    assert _Counted.most <= 11
    with pytest.raises(InvalidRequest, match="bytes"):
        subset.run(rows, lambda key, row: b"x" * 101, rows_max=20, bytes_max=500)


@pytest.mark.parametrize(
    ("text", "is_evaluated"),
    [
        ("a = 'x'", False),
        ("a in ('x', 'y') and b > 3", False),
        ("a = any('{x,y}') and b <> all('{3}')", False),
        ("a = 1 or b = 2", False),
        ("a > 1 and a <= 5 and lower(b) = 'x'", False),
        ("done", False),
        ("a > 1 or b = 2", True),
        ("a <> 1", True),
        ("a <> all('{1,2}')", True),
        ("a like 'x%'", True),
    ],
)
def test_filters_that_an_index_serves(text: str, is_evaluated: bool) -> None:
    where = Where.parse(text)
    assert (find_path(where.node) is None) == is_evaluated
    index: FilterIndex[str] = FilterIndex()
    index.add("shape", where)
    assert "shape" in index
    index.remove("shape")
    index.remove("shape")
    assert "shape" not in index


def test_each_of_thousands_of_arrays_is_found_by_its_elements() -> None:
    index: FilterIndex[int] = FilterIndex()
    for shape in range(3000):
        elements = "{" + ",".join([str(shape + step * 3000) for step in range(5)]) + ",NULL}"
        index.add(shape, Where.parse("id = ANY($1) AND NOT gone", {1: elements}))
    for element in (0, 2999, 3000, 7500, 14_999):
        row = {"id": str(element).encode(), "gone": b"false"}
        assert index.matches(row) == [element % 3000]
    assert index.matches({"id": b"15000", "gone": b"false"}) == []
    assert index.matches({"id": b"1", "gone": b"true"}) == []


def test_an_item_has_its_last_filter() -> None:
    index: FilterIndex[str] = FilterIndex()
    index.add("shape", Where.parse("a = 1"))
    index.add("shape", Where.parse("a = 2"))
    index.add("other", Where.parse("a = 2"))
    assert index.matches({"a": b"1"}) == []
    assert index.matches({"a": b"2.0"}) == ["shape", "other"]
    index.add("shape", None)
    assert index.matches({}) == ["shape"]
    assert "shape" in index
