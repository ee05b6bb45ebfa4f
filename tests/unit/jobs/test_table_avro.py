"""Avro values as columns: bare or framed, resolved to the table's schema, by a registry's help."""

import datetime
import io
import json
import pickle
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from tests.support.http_stub import Answer, Asked, http_stub
from tests.support.table_bench import TableBench
from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    StoreDenied,
    StoreUnavailable,
    Unavailable,
)
from varve.jobs.table.avro_values import (
    AvroDecoder,
    SchemaRegistry,
    avro_fields,
    find_first_schema,
    parse_avro,
)
from varve.jobs.table.decoding import Decoded
from varve.jobs.table.definition import TableSettings, ValueFormat
from varve.records import Record

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": ["null", "string"]}],
}
SECOND = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "total", "type": "double", "default": 0.0}],
}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
HOME = {"type": "record", "name": "Home", "fields": [{"name": "city", "type": "string"}]}
WIDE = {
    "type": "record",
    "name": "Wide",
    "namespace": "shop",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": PRICE},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "shop.Kind"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "home",
            "type": HOME,
        },
    ],
}


def encode(schema: dict[str, Any], row: dict[str, Any], number: int | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    frame = b"" if number is None else struct.pack(">bi", 0, number)
    return frame + stream.getvalue()


def make(schema: dict[str, Any], registry: str | None = None) -> AvroDecoder:
    text = json.dumps(schema)
    fields = avro_fields(parse_avro(text, "the test"), "the test")
    return AvroDecoder(fields, text, None if registry is None else SchemaRegistry(registry))


def decode(decoder: AvroDecoder, *values: bytes) -> Decoded:
    return decoder.decode(pa.array(values, pa.binary()), pa.nulls(len(values)))


def rows(decoder: AvroDecoder, found: Decoded) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = pa.table(list(found.columns), names=decoder.names).to_pylist()
    return made


def serve(asked: Asked) -> Answer:
    schemas = {"/schemas/ids/1": FIRST, "/schemas/ids/2": SECOND}
    if asked.path not in schemas:
        return Answer(404, {}, b'{"error_code": 40403}')
    return Answer(200, {}, json.dumps({"schema": json.dumps(schemas[asked.path])}).encode())


def test_bare_values_are_read_by_the_given_schema() -> None:
    decoder = pickle.loads(pickle.dumps(make(WIDE)))
    assert [one.describe() for one in decoder.fields][:4] == [
        "flag boolean required",
        "day date required",
        "at timestamptz required",
        "price decimal(6, 2) required",
    ]
    row = {
        "flag": True,
        "day": datetime.date(2024, 1, 2),
        "at": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "price": Decimal("1.50"),
        "ref": UUID(int=5),
        "kind": "B",
        "again": None,
        "tags": ["x"],
        "counts": {"a": 1},
        "home": {"city": "Ulm"},
    }
    (found,) = rows(decoder, decode(decoder, encode(WIDE, row)))
    assert found.pop("at").timestamp() == 1_704_153_600
    assert found.pop("ref") == str(UUID(int=5))
    assert found.pop("counts") == [("a", 1)]
    assert found == {name: row[name] for name in found}


def test_bytes_that_are_no_such_value_are_bad() -> None:
    good = encode(FIRST, {"id": 1, "who": "x"})
    found = decode(make(FIRST), good, b"", good + b"\x00", b"\xff" * 20)
    assert found.is_bad.tolist() == [False, True, True, True]
    assert "bytes follow" in found.reasons[1]


def test_framed_values_are_resolved_to_the_schema_of_the_table() -> None:
    with http_stub(serve) as stub:
        decoder = make(SECOND, stub.endpoint)
        found = decode(
            decoder,
            encode(FIRST, {"id": 1, "who": None}, 1),
            encode(SECOND, {"id": 2, "who": "b", "total": 2.5}, 2),
            encode(FIRST, {"id": 3, "who": "c"}, 1),
        )
        assert [(row["id"], row["total"]) for row in rows(decoder, found)] == [
            (1, 0.0),
            (2, 2.5),
            (3, 0.0),
        ]
        assert sorted(asked.path for asked in stub.asked) == ["/schemas/ids/1", "/schemas/ids/2"]


def test_a_number_that_the_registry_does_not_know_makes_a_bad_row() -> None:
    with http_stub(serve) as stub:
        found = decode(
            make(FIRST, stub.endpoint), encode(FIRST, {"id": 1, "who": None}, 9), b"\x01"
        )
    assert found.reasons == (
        "the registry has no schema with id 9",
        "the value does not begin with a schema id",
    )


def test_the_first_schema_that_is_named_is_found() -> None:
    with http_stub(serve) as stub:
        values = [b"plain", encode(FIRST, {"id": 1, "who": None}, 9), b"\x00\x00\x00\x00\x02"]
        found = find_first_schema(values, SchemaRegistry(stub.endpoint))
        assert found is not None
        assert json.loads(found) == SECOND
        assert find_first_schema([b"plain"], SchemaRegistry(stub.endpoint)) is None


def test_a_registry_is_told_who_asks() -> None:
    with http_stub(serve) as stub:
        SchemaRegistry(stub.endpoint.replace("http://", "http://me:secret@")).find_schema(1)
        assert stub.asked[0].headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (Answer(500, {}), StoreUnavailable, "status 500"),
        (Answer(401, {}), StoreDenied, "denied access"),
        (Answer(200, {}, b"{}"), Corrupt, "not an Avro schema.*: correct the registry"),
        (Answer(200, {}, b'{"schema": "{}", "schemaType": "PROTOBUF"}'), Corrupt, "PROTOBUF"),
    ],
)
def test_a_registry_that_fails_ends_the_run(
    answer: Answer, error: type[Exception], told: str
) -> None:
    with http_stub(lambda asked: answer) as stub, pytest.raises(error, match=told):
        decode(make(FIRST, stub.endpoint), encode(FIRST, {"id": 1, "who": None}, 1))


def test_a_registry_that_is_not_there_ends_the_run() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        decode(make(FIRST, "http://127.0.0.1:9"), encode(FIRST, {"id": 1, "who": None}, 1))


def test_a_value_that_no_column_holds_is_bad() -> None:
    schema = {
        "type": "record",
        "name": "Late",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
    }
    bare = {"type": "record", "name": "Late", "fields": [{"name": "at", "type": "long"}]}
    found = decode(make(schema), encode(bare, {"at": 0}), encode(bare, {"at": 1 << 62}))
    assert found.is_bad.tolist() == [False, True]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('"string"', "values must be records"),
        ("oops", "is not an Avro schema"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "thing"}]}',
            "not an Avro",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "a union of 2 types",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
            "the recursive type R cannot",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}',
            "null cannot be a column",
        ),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        avro_fields(parse_avro(schema, "the test"), "the test")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TableBench]:
    made = TableBench(tmp_path)
    yield made
    made.close()


def put(bench: TableBench, *values: bytes) -> None:
    bench.topic.append([Record(b"k", value, timestamp=bench.topic.now) for value in values])


def test_the_first_schema_is_that_of_the_table_until_a_wider_one_is_given(
    bench: TableBench,
) -> None:
    put(bench, encode(FIRST, {"id": 1, "who": None}, 1), b"oops")
    put(bench, encode(SECOND, {"id": 2, "who": "b", "total": 2.5}, 2))
    with http_stub(serve) as stub:
        framed = TableSettings(format=ValueFormat.AVRO, registry=stub.endpoint)
        result = bench.sync(framed)
        assert (result.records, result.bad) == (3, 1)
        assert result.columns == ("id long required", "who string")
        put(bench, encode(SECOND, {"id": 3, "who": "c", "total": 7.5}, 2))
        wider = TableSettings(
            registry=stub.endpoint, schema=json.dumps(SECOND), is_adding_columns=True
        )
        assert bench.sync(wider).added_columns == ("total double",)
        put(bench, encode(FIRST, {"id": 4, "who": "d"}, 1))
        assert bench.sync(TableSettings(registry=stub.endpoint)).records == 1
    rows = [(row["id"], row["who"], row["total"]) for row in bench.rows()]
    assert rows == [(1, None, None), (2, "b", None), (3, "c", 7.5), (4, "d", 0.0)]


def test_a_registry_that_is_down_changes_nothing(bench: TableBench) -> None:
    put(bench, encode(FIRST, {"id": 1, "who": None}, 1))
    with http_stub(serve) as stub:
        framed = TableSettings(format=ValueFormat.AVRO, registry=stub.endpoint)
        bench.sync(framed)
    put(bench, encode(SECOND, {"id": 2, "who": None, "total": 0.0}, 2))
    with pytest.raises(Unavailable, match="cannot be reached"):
        bench.sync(framed)
    assert len(bench.rows()) == 1
    assert bench.bad_rows() == []
    assert bench.files() == bench.named_files()


def test_the_registry_cannot_be_forgotten(bench: TableBench) -> None:
    put(bench, encode(FIRST, {"id": 1, "who": None}, 1))
    with http_stub(serve) as stub:
        bench.sync(TableSettings(format=ValueFormat.AVRO, registry=stub.endpoint))
        with pytest.raises(InvalidRequest, match="give the registry's URL"):
            bench.sync()
        bare = TableSettings(format=ValueFormat.AVRO, schema=json.dumps(FIRST))
        bench.sync(bare, name="shop.bare")
        with pytest.raises(InvalidRequest, match="leave the registry out"):
            bench.sync(TableSettings(registry=stub.endpoint), name="shop.bare")


def test_avro_needs_a_schema(bench: TableBench) -> None:
    put(bench, b"x")
    with pytest.raises(InvalidRequest, match="need a schema"):
        bench.sync(TableSettings(format=ValueFormat.AVRO))
