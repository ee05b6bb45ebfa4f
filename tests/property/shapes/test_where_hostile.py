"""No row makes a filter fail, and no text makes its reader fail but by refusing."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.rounds import machine_settings
from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import split_row
from varve.shapes.filter.filter_index import FilterIndex
from varve.shapes.filter.subset import Subset
from varve.shapes.filter.where import Where
from varve.shapes.kernels.json_text import DEPTH_MAX

_DEEP = DEPTH_MAX - 1
_VALUES = [
    *[b"null", b"true", b"0", b"-0", b"1", b"-1.5", b"1e400", b"-1e-400", b'""', b'"x"', b"[]"],
    *[b"1e99999999999999999999", b"-1e-99999999999999999999", b"9" * 5000, b'"\\ud800"'],
    *[b'"{\\"k\\":[1]}"', b'"1e99999999999999999999"', b'{"k":{"k":1}}', b'[[1],"x",null]'],
    *[
        b"[" * _DEEP + b"]" * _DEEP,
        b'{"k":' * _DEEP + b"1" + b"}" * _DEEP,
    ],
    *[b'"' + b"[" * 5000 + b'"', b'"NaN"', b'" 12 "', b'"9' + b"9" * 5000 + b'"'],
]
_ROWS = st.fixed_dictionaries(
    {"a": st.sampled_from(_VALUES), "b": st.sampled_from(_VALUES), "c": st.sampled_from(_VALUES)}
)
_operands = st.recursive(
    st.sampled_from(
        ["a", "b", "c", "1", "0", "2.5", "1e300", "'x'", "'12'", "'{}'", "NULL", "TRUE"]
    ),
    lambda inner: (
        st.builds(
            "({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "%", "||"]), inner
        )
        | st.builds(
            "CAST({} AS {})".format,
            inner,
            st.sampled_from(["integer", "bigint", "numeric", "real", "text", "boolean", "jsonb"]),
        )
        | st.builds("{}({})".format, st.sampled_from(["lower", "length", "abs"]), inner)
        | st.builds("({} {} 'k')".format, inner, st.sampled_from(["->", "->>"]))
        | st.builds("({} -> 0)".format, inner)
        | st.builds("coalesce({}, {})".format, inner, inner)
        | st.builds("concat({}, {})".format, inner, inner)
    ),
    max_leaves=3,
)
_conditions = (
    st.builds(
        "{} {} {}".format,
        _operands,
        st.sampled_from(["=", "<>", "<", ">=", "LIKE", "ILIKE", "IS DISTINCT FROM"]),
        _operands,
    )
    | st.builds("{} IN ({}, 1, 'x')".format, _operands, _operands)
    | st.builds("{} = ANY(ARRAY[{}, 1, 'x'])".format, _operands, _operands)
    | st.builds("{} <> ALL('{{NULL,1}}')".format, _operands)
    | st.builds("NOT {} IS TRUE".format, _operands)
)


@machine_settings(120)
@given(_conditions, st.lists(_ROWS, min_size=1, max_size=4))
def test_no_row_makes_a_filter_fail(text: str, rows: list[dict[str, bytes]]) -> None:
    try:
        where = Where.parse(text)
    except InvalidRequest:
        return
    index: FilterIndex[int] = FilterIndex()
    index.add(0, where)
    index.add(1, Where.parse("a = 1 AND b = 'x'"))
    for row in rows:
        assert (0 in index.matches(row)) == where.matches(row)
    Subset.parse(order_by="a, b desc", limit=2).run(
        ((str(place), row) for place, row in enumerate(rows)),
        lambda key, row: key.encode(),
        rows_max=10,
        bytes_max=100,
    )


def test_the_hostile_values_are_json() -> None:
    assert all(split_row(b'{"a":' + text + b"}") == {"a": text} for text in _VALUES)


_WORDS = [
    *["a", "=", "'x'", "(", ")", "and", "or", "not", "in", "is", "null", "1", "-", "->", "$1", ","],
    *["::", "int", "like", "between", "case", "when", "select", ";", '"', "'", "--", "/*", "\\"],
    *["E'", "$$", "[", "]", "escape", "*", ".", "\n", "é", "over", "interval", "if"],
    *["any", "all", "array", "'{1,NULL}'", "int[]"],
]


@machine_settings(150)
@given(st.lists(st.sampled_from(_WORDS), max_size=9))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    text = " ".join(words)
    try:
        where = Where.parse(text, {1: "x"})
    except InvalidRequest:
        return
    assert Where.parse(where.sql) == where
