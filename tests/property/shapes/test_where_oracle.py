"""Filters are true, false or unknown for the rows for which DuckDB says so."""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rounds import machine_settings
from varve.shapes.feed.row import split_row
from varve.shapes.filter.value import RowValues
from varve.shapes.filter.where import Where

_TEXTS = ["", "a", "b", "ab", "aB", "A_c", "a%b", "é", "10", "2"]
_NUMBERS = [-7, -2, -1, 0, 1, 2, 3, 10]
_FRACTIONS = [Decimal("-1.5"), Decimal("0.25"), Decimal("2.0"), Decimal("10.75")]
_COLUMNS = {"i": "BIGINT", "n": "DECIMAL(18, 4)", "s": "VARCHAR", "t": "VARCHAR", "b": "BOOLEAN"}

_ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.sampled_from(_NUMBERS),
        "n": st.none() | st.sampled_from(_FRACTIONS),
        "s": st.none() | st.sampled_from(_TEXTS),
        "t": st.none() | st.sampled_from(_TEXTS),
        "b": st.none() | st.booleans(),
    }
)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_integers = st.sampled_from([*map(str, _NUMBERS), "i", "NULL", "length(s)", "abs(i)"])
_integers = st.recursive(
    _integers,
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
    max_leaves=3,
)
_numbers = _integers | st.sampled_from([*map(str, _FRACTIONS), "n", "(n + 1)", "(- n)"])
_texts = st.sampled_from(
    [
        *map(_quote, _TEXTS),
        "s",
        "t",
        "lower(s)",
        "upper(t)",
        "s || t",
        "concat(s, t)",
        "coalesce(s, t, 'z')",
    ]
)
_patterns = st.sampled_from(["%", "a%", "%b", "_", "a_%", "%a%b%", "", "A%", "__"]).map(_quote)
_orders = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
_sides = st.sampled_from(["IS DISTINCT FROM", "IS NOT DISTINCT FROM"]) | _orders


def _compared(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.builds("{} {} {}".format, values, _sides, values)
        | st.builds("{} BETWEEN {} AND {}".format, values, values, values)
        | st.builds(
            lambda item, word, choices: f"{item} {word} ({', '.join(choices)})",
            values,
            st.sampled_from(["IN", "NOT IN"]),
            st.lists(values, min_size=1, max_size=3),
        )
        | st.builds(
            lambda item, word, choices: f"{item} {word}(ARRAY[{', '.join(choices)}])",
            values,
            st.sampled_from(["= ANY", "<> ALL"]),
            st.lists(values, min_size=1, max_size=3),
        )
        | st.builds("{} IS {}NULL".format, values, st.sampled_from(["", "NOT "]))
    )


_leaves = (
    _compared(_numbers)
    | _compared(_texts)
    | st.builds(
        "{} {} {}".format, _texts, st.sampled_from(["LIKE", "NOT LIKE", "ILIKE"]), _patterns
    )
    | st.sampled_from(["b", "b = TRUE", "b <> FALSE", "b IS NOT TRUE", "b IS FALSE", "b IS NULL"])
    | st.sampled_from(["i = '2'", "i IN ('1', 2)", "n >= '0.25'", "b = 'true'", "TRUE"])
    | st.sampled_from(["CAST(i AS text) = s", "CAST('2' AS integer) < i", "b::int = i"])
)
_conditions = st.recursive(
    _leaves,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | st.builds("NOT ({})".format, inner)
        | st.builds("({}) IS {}".format, inner, st.sampled_from(["TRUE", "NULL", "NOT FALSE"]))
    ),
    max_leaves=5,
)


def _literal(name: str, value: Any) -> str:
    written = _quote(value) if isinstance(value, str) else "NULL" if value is None else str(value)
    return f"CAST({written} AS {_COLUMNS[name]})"


def _ask(connection: duckdb.DuckDBPyConnection, text: str, rows: list[dict[str, Any]]) -> Any:
    """What DuckDB says of each row."""
    tuples = ", ".join(
        f"({place}, {', '.join([_literal(name, row[name]) for name in _COLUMNS])})"
        for place, row in enumerate(rows)
    )
    items = f"(VALUES {tuples}) AS items (place, {', '.join(_COLUMNS)})"
    found = connection.execute(f"SELECT ({text})::BOOLEAN FROM {items} ORDER BY place").fetchall()
    return [truth for (truth,) in found]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


def _values(row: dict[str, Any]) -> RowValues:
    text = json.dumps({name: held for name, held in row.items() if name != "n"})
    members = split_row(text.encode())
    assert members is not None
    return RowValues({**members, "n": b"null" if row["n"] is None else str(row["n"]).encode()})


@machine_settings(100)
@given(text=_conditions, rows=st.lists(_ROWS, min_size=1, max_size=3))
def test_a_filter_is_true_where_duckdb_says_so(
    connection: duckdb.DuckDBPyConnection, text: str, rows: list[dict[str, Any]]
) -> None:
    where = Where.parse(text)
    assert Where.parse(where.sql).sql == where.sql
    expected = _ask(connection, where.sql, rows)
    assert [where.truth(_values(row)) for row in rows] == expected, (text, where.sql, rows)
    assert _ask(connection, text, rows) == expected, (text, where.sql, rows)


def _array(elements: Sequence[object]) -> str:
    """As PostgreSQL writes it."""
    escaped = [
        "NULL" if held is None else '"' + re.sub(r'(["\\])', r"\\\1", str(held)) + '"'
        for held in elements
    ]
    return "{" + ",".join(escaped) + "}"


_LISTS: dict[str, st.SearchStrategy[list[Any]]] = {
    "i": st.lists(st.none() | st.sampled_from(_NUMBERS), max_size=4),
    "n": st.lists(st.none() | st.sampled_from(_FRACTIONS), max_size=4),
    "s": st.lists(
        st.none() | st.sampled_from([*_TEXTS, "{a}", 'a"b', "\\", "NULL", " "]), max_size=4
    ),
    "b": st.lists(st.none() | st.booleans(), max_size=3),
}


@machine_settings(60)
@given(
    column=st.sampled_from(sorted(_LISTS)),
    word=st.sampled_from(["= ANY", "<> ALL"]),
    rows=st.lists(_ROWS, min_size=1, max_size=3),
    data=st.data(),
)
def test_an_array_holds_what_duckdb_finds_in_it(
    connection: duckdb.DuckDBPyConnection,
    column: str,
    word: str,
    rows: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    elements = data.draw(_LISTS[column])
    listed = f"[{', '.join([_literal(column, held) for held in elements])}]"
    asked = f"{column} {word}(SELECT unnest({listed}::{_COLUMNS[column]}[]))"
    where = Where.parse(f"{column} {word}($1)", {1: _array(elements)})
    assert Where.parse(where.sql) == where
    expected = _ask(connection, asked, rows)
    assert [where.truth(_values(row)) for row in rows] == expected, (where.sql, rows)
