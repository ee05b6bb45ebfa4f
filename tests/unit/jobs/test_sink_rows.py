"""Rows become batches of their partitions in their order; what no record can be is refused."""

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.support.sink_bench import Row, batch_of
from varve.commit_log import LogSettings
from varve.embedded.topic import Packaging
from varve.foundation.errors import InvalidRecord, InvalidRequest, RecordTooLarge
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget, make_rows
from varve.jobs.sink.staging import RowSummary
from varve.jobs.sink.target import parse_sink_options
from varve.records import Batch, Codec, Record
from varve.spark.columns import check_sink_schema

MS = 1_700_000_000_000


def build(
    rows: Sequence[Row],
    *,
    partitions: int = 3,
    codec: Codec = Codec.LZ4,
    payload_bytes: int = 1 << 20,
    settings: LogSettings | None = None,
) -> list[tuple[int, list[Record]]]:
    """Each batch's partition and records."""
    target = SinkTarget("out", "id", partitions, settings or LogSettings())
    builder = BatchBuilder(target, Packaging(codec, None, payload_bytes), 0)
    table = pa.Table.from_batches([batch_of(rows)])
    return [
        (built.partition, list(Batch(built.data).records()))
        for built in builder.build(make_rows(table, "out"))
    ]


def test_text_is_utf8_and_slices_of_columns_are_read_as_such() -> None:
    table = pa.table({"key": ["x", "ä", None], "value": ["1", "2", "3"]}).slice(1)
    rows = make_rows(table, "out")
    target = SinkTarget("out", "id", 1, LogSettings())
    builder = BatchBuilder(target, Packaging(Codec.NONE, None, 1 << 20), 0)
    (built,) = builder.build(rows)
    found = [(record.key, record.value) for record in Batch(built.data).records()]
    assert found == [("ä".encode(), b"2"), (None, b"3")]


def test_keyless_rows_stay_until_a_batch_is_full_and_go_round() -> None:
    rows = [{"value": b"x" * 60} for _ in range(30)]
    found = build(rows, payload_bytes=1000)
    assert {partition for partition, _ in found} == {0, 1, 2}
    assert sum(len(records) for _, records in found) == 30
    assert all(len(records) <= 10 for _, records in found)


def test_a_batch_keeps_to_its_bytes_and_a_large_row_is_alone() -> None:
    rows = [{"value": b"x" * size, "partition": 0} for size in (10, 20, 5000, 10, 10)]
    sizes = [len(records) for _, records in build(rows, payload_bytes=200)]
    assert sizes == [2, 1, 2]


def test_a_row_that_the_topic_cannot_take_is_refused() -> None:
    settings = LogSettings(max_message_bytes=300)
    with pytest.raises(RecordTooLarge, match="more than the topic's 300"):
        build([{"value": b"x" * 400}], codec=Codec.NONE, settings=settings)


def test_a_compacted_topic_takes_no_row_without_a_key() -> None:
    settings = LogSettings(cleanup_policy=("compact",))
    with pytest.raises(InvalidRecord, match="1 rows have no key"):
        build([{"key": b"k"}, {"value": b"v"}], settings=settings)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"partition": 3}, "asks for partition 3 of out, which has 3"),
        ({"partition": -1}, "asks for partition -1"),
        ({"timestamp": -5_000_000}, "before 1970"),
        ({"headers": [{"key": None, "value": b""}]}, "a key is null"),
        ({"headers": [None]}, "a header is null"),
    ],
)
def test_rows_that_no_record_can_be_are_refused(row: Row, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        build([{"value": b"v"}, row])


def test_a_row_of_another_topic_is_refused() -> None:
    table = pa.table({"topic": ["out", "other"], "value": [b"a", b"b"]})
    with pytest.raises(InvalidRecord, match="1 rows have topic 'other'"):
        make_rows(table, "out")


def test_rows_are_told_by_sums_whatever_their_order() -> None:
    rows = [{"value": b"v%d" % number, "timestamp": number * 1000} for number in range(20)]
    sums = [
        RowSummary.of(make_rows(pa.Table.from_batches([batch_of(some)]), "out"))
        for some in (rows, rows[::-1], rows[:10], rows[10:])
    ]
    assert sums[0] == sums[1] == sums[2] + sums[3]


PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


@pytest.mark.parametrize(
    "field",
    [
        StructField("name", StringType()),
        StructField("value", DoubleType()),
        StructField("timestamp", LongType()),
        StructField("headers", ArrayType(StringType())),
    ],
)
def test_columns_that_cannot_be_written_are_refused(field: StructField) -> None:
    with pytest.raises(InvalidRequest, match=f"{field.name}"):
        check_sink_schema(StructType([StructField("key", StringType()), field]))


def test_all_columns_of_a_read_can_be_written() -> None:
    check_sink_schema(
        StructType(
            [
                StructField("value", BinaryType()),
                StructField("headers", ArrayType(PAIR)),
                StructField("timestamp", TimestampType()),
                StructField("partition", IntegerType()),
                StructField("offset", LongType()),
                StructField("timestampType", IntegerType()),
            ]
        )
    )
    with pytest.raises(InvalidRequest, match="neither a column key nor a column value"):
        check_sink_schema(StructType([StructField("partition", IntegerType())]))


def test_options_are_the_same_in_any_case() -> None:
    found = parse_sink_options(
        {
            "Directory": "/d",
            "topic": "t",
            "codec": "ZSTD",
            "createtopic": "true",
            "topic.cleanup.policy": "compact",
            "queryname": "q",
            "checkpointlocation": "/c",
        }
    )
    assert found.directories == ("/d",)
    assert found.codec is Codec.ZSTD
    assert found.topic_settings == (("cleanup.policy", "compact"),)
    assert found.staging.url == "file:/d.staging"
    assert found.query_name == "q"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t"}, "option directory is missing"),
        ({"directory": "/d"}, "option topic is missing"),
        ({"mode": "latest"}, "no option 'mode' of a write"),
        ({"store": "x"}, r"did you mean store\.NAME\?"),
        ({"stagingUri": "memory:"}, r"of a write: did you mean stagingUrl\?"),
        ({"codec": "brotli"}, "codec 'brotli' is unknown"),
        ({"sinkId": "../x"}, "option sinkId='../x'"),
        ({"partitions": "2"}, "add createTopic=true"),
        ({"createTopic": "yes"}, "write true or false"),
        ({"epoch": "-1"}, "at least 0"),
        ({"store.secret": "x"}, "of stagingUrl: give it"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], words: str) -> None:
    whole = {"directory": "/d", "topic": "t"}
    given = options if "missing" in words else {**whole, **options}
    with pytest.raises(InvalidRequest, match=words):
        parse_sink_options(given)
