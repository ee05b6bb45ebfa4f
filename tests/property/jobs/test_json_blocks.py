"""A block of JSON values is read as its values are one by one, whatever they are."""

import json
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from hypothesis import given, settings
from hypothesis import strategies as st

from varve.jobs.table.json_values import JsonDecoder
from varve.jobs.table.types import parse_schema

DECODER = JsonDecoder(
    parse_schema(
        json.dumps(
            {
                "i": "int",
                "l": "long required",
                "d": "double",
                "f": "float",
                "b": "boolean",
                "s": "string",
                "t": "timestamptz",
                "u": "timestamp",
                "day": "date",
                "n": "decimal(9,3)",
                "list": "list<long>",
                "in": "struct<x: long, y: list<struct<z: string>>>",
            }
        ),
        "the test",
    )
)

texts = st.sampled_from(
    [
        "2024-01-01T00:00:00Z",
        "2024-01-01 10:11:12.123456",
        "2024-01-01",
        "2024-13-01",
        "0001-01-01",
        "2024-01-01T00:00:00+05:30",
        "2024-01-01T00:00:00.1234567Z",
        "2024-01-01T10",
        "1.5",
        "123456.789",
        "-0.001",
        "1234567.8",
        " 1",
        "ü",
        "",
    ]
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.integers(-5, 5),
    st.floats(allow_nan=True),
    texts,
)
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "z", "q"]), inner, max_size=3),
    ),
    max_leaves=5,
)
NAMES = ["i", "l", "d", "f", "b", "s", "t", "u", "day", "n", "list", "in", "new"]
documents = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)
raw = st.one_of(
    documents.map(lambda one: json.dumps(one).encode()),
    st.integers(-5, 5).map(lambda one: b'{"l": %d}' % one),
    st.sampled_from(
        [b"", b"null", b"{}", b"[]", b'{"l": 1}{"l": 2}', b'{"l": 1, "l": 2}', b"\xff"]
    ),
)


def show(found: Any) -> tuple[list[list[Any]], list[bool], tuple[str, ...]]:
    columns = [array.to_pylist() for array in found.columns]
    return columns, found.is_bad.tolist(), found.reasons


@settings(max_examples=60)
@given(given_values=st.lists(raw, min_size=1, max_size=4))
def test_a_block_and_its_values_agree(given_values: list[bytes]) -> None:
    array = pa.array(given_values, pa.binary())
    one_by_one = DECODER.decode_rows(array)
    at_once = DECODER.decode(array, pa.nulls(len(array)))
    assert show(at_once) == show(one_by_one)
