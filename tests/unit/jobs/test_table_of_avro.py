"""A topic of Avro values becomes a table: by a registry, wider when asked, without it an error."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_stub import http_stub
from tests.support.table_bench import TableBench
from tests.unit.jobs.test_table_avro import FIRST, SECOND, encode, serve
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.jobs.table.definition import TableSettings, ValueFormat
from varve.records import Record


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
