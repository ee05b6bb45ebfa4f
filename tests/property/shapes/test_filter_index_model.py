"""The index of filters answers as evaluating every filter does."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.rounds import machine_settings
from varve.shapes.filter.filter_index import Bounds, FilterIndex, IntervalIndex
from varve.shapes.filter.where import Where

_COLUMNS = st.sampled_from(["a", "b", "c"])
_LITERALS = st.sampled_from(
    ["1", "2", "2.0", "'1'", "'2'", "'x'", "'true'", "TRUE", "NULL", "'{\"k\": 1}'", "'[]'"]
)
_ELEMENTS = st.sampled_from(["1", "2.0", "x", "true", "NULL", r'"{\"k\": 1}"', '"[]"'])
_leaves = (
    st.builds("{} = {}".format, _COLUMNS, _LITERALS)
    | st.builds("{1} = {0}".format, _COLUMNS, _LITERALS)
    | st.builds(
        "{} IN ({})".format,
        _COLUMNS,
        st.lists(_LITERALS, min_size=1, max_size=3).map(", ".join),
    )
    | st.builds(
        "{} {}('{{{}}}')".format,
        _COLUMNS,
        st.sampled_from(["= ANY", "<> ALL"]),
        st.lists(_ELEMENTS, max_size=3).map(",".join),
    )
    | st.builds("{} {} {}".format, _COLUMNS, st.sampled_from(["<", "<=", ">", ">="]), _LITERALS)
    | st.builds("{} BETWEEN {} AND {}".format, _COLUMNS, _LITERALS, _LITERALS)
    | st.builds("{}".format, _COLUMNS)
    | st.builds("{} IS TRUE".format, _COLUMNS)
    | st.builds("{} IS NOT DISTINCT FROM {}".format, _COLUMNS, _LITERALS)
    | st.sampled_from(["a = b", "a IS NULL", "a LIKE '%'", "c <> 1", "a -> 'k' = 1"])
)
_conditions = st.recursive(
    _leaves,
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=4,
)
_TEXTS = [b"1", b"2", b"2.0", b"1.5", b'"1"', b'"2"', b'"x"', b"true", b"false", b"null"]
_ROWS = st.dictionaries(_COLUMNS, st.sampled_from([*_TEXTS, b'{"k":1.0}', b"[]"]))


@machine_settings(100)
@given(
    st.lists(st.none() | _conditions, min_size=1, max_size=8),
    st.lists(_ROWS, min_size=1, max_size=5),
    st.data(),
)
def test_the_index_answers_as_every_filter(
    texts: list[str | None], rows: list[dict[str, bytes]], data: st.DataObject
) -> None:
    index: FilterIndex[int] = FilterIndex()
    filters = {place: text and Where.parse(text) for place, text in enumerate(texts)}
    for place, where in filters.items():
        index.add(place, where or None)
    for _ in range(2):
        for row in rows:
            expected = [
                place for place, where in filters.items() if not where or where.matches(row)
            ]
            assert sorted(index.matches(row)) == expected
        assert [place for place in range(len(texts)) if place in index] == list(filters)
        for place in data.draw(st.sets(st.sampled_from(range(len(texts))))) & filters.keys():
            index.remove(place)
            del filters[place]


@machine_settings(60)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 40), st.none() | st.integers(0, 40)), max_size=200
    ),
    st.sets(st.integers(0, 199)),
)
def test_ranges_that_hold_a_value_are_found(
    ranges: list[tuple[int | None, int | None]], removed: set[int]
) -> None:
    index: IntervalIndex[int] = IntervalIndex()
    held = {}
    for place, (low, high) in enumerate(ranges):
        if (low, high) != (None, None):
            index.add(place, Bounds(low, high))
            held[place] = (low, high)
        if place == len(ranges) // 2:
            list(index.find(7))
    for place in removed & held.keys():
        index.remove(place)
        del held[place]
    for value in (0, 7, 20, 41):
        expected = [
            place
            for place, (low, high) in held.items()
            if (low is None or low <= value) and (high is None or value <= high)
        ]
        assert sorted(index.find(value)) == expected
    assert len(index) == len(held)
