"""JSON values as columns: exact types, bad values with a reason, blocks and single values alike."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from varve.foundation.errors import InvalidRequest
from varve.jobs.table.columns import infer_fields
from varve.jobs.table.decoding import Decoded
from varve.jobs.table.json_values import JsonDecoder
from varve.jobs.table.types import dump_fields, parse_schema

WIDE = parse_schema(
    json.dumps(
        {
            "id": "long required",
            "small": "int",
            "ratio": "double",
            "part": "float",
            "ok": "boolean",
            "name": "string",
            "at": "timestamptz",
            "local": "timestamp",
            "day": "date",
            "price": "decimal(6,2)",
            "tags": "list<string>",
            "who": "struct<age: int, home: struct<city: string>>",
        }
    ),
    "the test",
)
SLOW = parse_schema(
    '{"counts": "map<string, long>", "blob": "binary", "noon": "time", '
    '"times": "list<timestamptz>"}',
    "the test",
)


def decode(decoder: JsonDecoder, *values: bytes) -> Decoded:
    array = pa.array(values, pa.binary())
    return decoder.decode(array, pa.nulls(len(values)))


def column(decoder: JsonDecoder, name: str, *values: bytes) -> list[Any]:
    found = decode(decoder, *values)
    assert not found.is_bad.any(), found.reasons
    made: list[Any] = found.columns[decoder.names.index(name)].to_pylist()
    return made


def reason(value: bytes, schema: str = '{"a": "long"}') -> str:
    found = decode(JsonDecoder(parse_schema(schema, "the test")), value)
    (told,) = found.reasons
    return told


def test_every_type_is_read() -> None:
    value = {
        "id": 1,
        "small": -5,
        "ratio": 0.1,
        "part": 0.5,
        "ok": True,
        "name": "ü\n",
        "at": "2024-02-29T12:00:00.5+01:00",
        "local": "2024-02-29 12:00:00",
        "day": "2024-02-29",
        "price": "12.50",
        "tags": ["a", None],
        "who": {"age": 7, "home": {"city": "Ulm"}},
    }
    decoder = JsonDecoder(WIDE)
    found = decode(decoder, json.dumps(value).encode())
    row = {name: array[0].as_py() for name, array in zip(decoder.names, found.columns, strict=True)}
    assert row.pop("at").timestamp() == 1_709_204_400.5
    assert row == {
        **{name: given for name, given in value.items() if name != "at"},
        "local": datetime.datetime(2024, 2, 29, 12),
        "day": datetime.date(2024, 2, 29),
        "price": Decimal("12.50"),
        "_rest": None,
    }


def test_types_that_a_block_cannot_hold_are_read_one_by_one() -> None:
    decoder = JsonDecoder(SLOW)
    value = b'{"counts": {"a": 1}, "blob": "AAE=", "noon": "12:00", "times": [0]}'
    found = decode(decoder, value)
    assert [array[0].as_py() for array in found.columns[:3]] == [
        [("a", 1)],
        b"\x00\x01",
        datetime.time(12),
    ]
    assert found.columns[3][0].as_py()[0].timestamp() == 0


def test_a_time_may_be_milliseconds() -> None:
    decoder = JsonDecoder(parse_schema('{"at": "timestamptz"}', "the test"))
    values = (b'{"at": 1500}', b'{"at": "1970-01-01T00:00:02Z"}', b'{"at": null}')
    found = [None if one is None else one.timestamp() for one in column(decoder, "at", *values)]
    assert found == [1.5, 2.0, None]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not an object: list"),
        (b"null", "not an object: NoneType"),
        (b'{"a": 1} {"a": 2}', "not JSON"),
        (b'{"a": 1}}\n{"n": 1, "v": {"a": 2}', "not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"b": Infinity}', "Infinity is not JSON"),
        (b'{"a": "1"}', "not an integer"),
        (b'{"a": 1.0}', "not an integer"),
        (b'{"a": true}', "not an integer"),
        (b'{"a": 9223372036854775808}', "beyond 64 bits"),
        (b'{"x": ' + b"[" * 50_000, "nested too deep"),
        (b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deep"),
    ],
)
def test_a_bad_value_has_a_reason(value: bytes, told: str) -> None:
    assert told in reason(value)


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ("int", "2147483648", "beyond 32 bits"),
        ("string", "1", "not a string"),
        ("string", '"\\ud800"', "surrogate"),
        ("boolean", "1", "not true or false"),
        ("double", '"1"', "not a number"),
        ("double", "1e400", "too large"),
        ("double", "9007199254740993", "more digits than a double holds exactly"),
        ("double", "-9007199254740993", "more digits than a double holds exactly"),
        ("list<double>", "[1.5, 9007199254740993]", "more digits than a double holds exactly"),
        ("date", '"2024-02-30"', "day"),
        ("timestamptz", '"soon"', "Invalid isoformat"),
        ("timestamptz", "1e3", "not a string"),
        ("timestamptz", "999999999999999", "years 1 to 9999"),
        ("timestamp", '"2024-01-01T00:00:00Z"', "it has a time zone"),
        ("time", '"25:00"', "hour"),
        ("decimal(4,2)", "100", "too many digits"),
        ("decimal(4,2)", '"0.001"', "too many digits"),
        ("decimal(4,2)", '"x"', "not a decimal number"),
        ("binary", '"?"', "not base64"),
        ("list<int>", "{}", "not a list"),
        ("map<string, int>", "[]", "not an object"),
        ("struct<a: int>", '{"a": []}', "not an integer"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_bad(schema: str, value: str, told: str) -> None:
    found = reason(f'{{"a": {value}}}'.encode(), json.dumps({"a": schema}))
    assert told in found
    assert found.startswith("field a: ")


def test_an_integer_that_a_double_would_round_is_bad_in_a_block_too() -> None:
    values = [b'{"a": %d.5}' % number for number in range(200)]
    values[17], values[18] = b'{"a": 9007199254740993}', b'{"a": 9007199254740994}'
    found = decode(JsonDecoder(parse_schema('{"a": "double"}', "the test")), *values)
    assert found.is_bad.nonzero()[0].tolist() == [17]
    assert 9007199254740994.0 in found.columns[0].to_pylist()


def test_one_bad_value_among_many_is_found() -> None:
    values = [b'{"a": %d}' % number for number in range(1000)]
    values[617] = b'{"a": "x"}'
    found = decode(JsonDecoder(parse_schema('{"a": "long"}', "the test")), *values)
    assert found.is_bad.nonzero()[0].tolist() == [617]
    assert found.columns[0].to_pylist() == [n for n in range(1000) if n != 617]


def test_other_fields_are_kept_as_text() -> None:
    decoder = JsonDecoder(parse_schema('{"a": "long", "s": "struct<x: int>"}', "the test"))
    rest = column(
        decoder,
        "_rest",
        b'{"a": 1, "b": {"c": [1, 2.50]}, "d": "\xc3\xbc"}',
        b'{"a": 2}',
        b'{"a": 3, "e": null}',
        b'{"a": 4, "s": {"x": 1, "y": 2}}',
        b'{"A": 5}',
    )
    found = [None if one is None else json.loads(one) for one in rest]
    assert found == [{"b": {"c": [1, 2.5]}, "d": "ü"}, None, None, {"s": {"y": 2}}, {"A": 5}]


def test_a_schema_is_read_back_as_it_is_written() -> None:
    for fields in (WIDE, SLOW):
        again = parse_schema(dump_fields(fields), "the test")
        assert dump_fields(again) == dump_fields(fields)
        assert [one.arrow_type for one in again] == [one.arrow_type for one in fields]


def test_a_schema_of_icebergs_own_is_read() -> None:
    document = {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": 1, "name": "id", "required": True, "type": "long"},
            {
                "id": 2,
                "name": "tags",
                "required": False,
                "type": {
                    "type": "list",
                    "element-id": 3,
                    "element": "string",
                    "element-required": True,
                },
            },
        ],
    }
    found = parse_schema(json.dumps(document), "the test")
    assert [one.describe() for one in found] == ["id long required", "tags list<string>"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("oops", "is not JSON"),
        ("[]", "a schema is an object"),
        ("{}", "a schema is an object"),
        ('{"a": 1}', "not a string"),
        ('{"a": "number"}', "there is no type 'number'"),
        ('{"a": "list<long"}', "it has 1 < and 0 >"),
        ('{"a": "list<long>>"}', "it has 1 < and 2 >"),
        ('{"a": "list<int>, long"}', "there is no type"),
        ('{"a": "list<int, long>"}', "a list has one type"),
        ('{"a": "struct<b c: int>"}', "'b c: int' is not NAME: TYPE"),
        ('{"a": "map<int, long>"}', "keys of a map"),
        ('{"a": "decimal(40,2)"}', "there is no type"),
        ('{"a": ""}', "the type is empty"),
        ('{"_offset": "long"}', "has the name of column _offset"),
        ('{"a": "long", "A": "long"}', "has the name of column a"),
        ('{"a b": "long"}', "cannot be a column"),
        ('{"a": "' + "list<" * 30 + "int" + ">" * 30 + '"}', "nested more than"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "not an Iceberg schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse_schema(text, "the test")


def test_a_field_of_two_types_has_no_column() -> None:
    found = infer_fields(
        [
            b'{"a": 1, "b": [1], "c": {"x": 1, "y": 1}, "d": [], "e": 18446744073709551616}',
            b'{"a": 1.5, "b": [{}], "c": {"x": "1", "z": true}, "d": null}',
            b"oops",
        ]
    )
    assert [one.describe() for one in found] == ["a double", "c struct<y: long, z: boolean>"]


@pytest.mark.parametrize("rows", [1, 200])
def test_half_of_a_surrogate_pair_stays_an_escape_in_the_rest(rows: int) -> None:
    decoder = JsonDecoder(parse_schema('{"id": "long"}', "the test"))
    values = [b'{"id": 1, "\\ud800": "\xc3\xa4 \\udfff \\ud83d\\ude00"}', b'{"who": ["\\ud800"]}']
    found = column(decoder, "_rest", *(values * rows))
    assert found[:2] == ['{"\\ud800": "ä \\udfff 😀"}', '{"who": ["\\ud800"]}']
    assert [json.loads(one) for one in found[:2]] == [
        {"\ud800": "ä \udfff 😀"},
        {"who": ["\ud800"]},
    ]


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize(
    ("field", "low", "lowest", "type"),
    [
        ("day", "0000-12-31", "0001-01-01", "date"),
        ("at", "0000-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "timestamptz"),
        ("at", "0001-01-01T00:00:00+01:00", "0001-01-01T01:00:00+01:00", "timestamptz"),
        ("at", "9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59Z", "timestamptz"),
    ],
)
def test_days_and_moments_are_of_the_years_1_to_9999(
    rows: int, field: str, low: str, lowest: str, type: str
) -> None:
    decoder = JsonDecoder(parse_schema(json.dumps({field: type}), "the test"))
    bad = decode(decoder, *[json.dumps({field: low}).encode()] * rows)
    assert bad.is_bad.all()
    good = decode(decoder, *[json.dumps({field: lowest}).encode()] * rows)
    assert not good.is_bad.any()
    assert good.columns[0].to_pylist()[0].year in (1, 9999)


def test_a_number_beyond_all_others_is_told_or_kept_as_text() -> None:
    assert "too large" in reason(b'{"b": 1e9999999999999999999}')
    decoder = JsonDecoder(parse_schema('{"id": "long"}', "the test"))
    (rest,) = column(decoder, "_rest", b'{"far": 1e400, "near": 1.5}')
    assert json.loads(rest) == {"far": "1E+400", "near": 1.5}
