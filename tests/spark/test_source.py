"""The data source `varve` in a session: rows, filters that go down, columns, the latest state."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.functions import col, lit

from tests.support.source_topic import NAME, SourceTopic
from tests.support.spark_session import spark as spark
from varve.records import Codec, Record
from varve.spark.data_source import register

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceTopic]:
    """Two partitions of two cold segments and a hot one each, 30 records to a segment."""
    made = SourceTopic(tmp_path_factory.mktemp("source"), partitions=2, cleanup_policy="compact")
    for partition in (0, 1):
        for segment in range(3):
            records = [
                Record(b"k%d" % key, b"p%d s%d" % (partition, segment), (("h", b"1"),), made.now)
                for key in range(segment, 30 + segment)
            ]
            made.append(records, partition=partition, codec=Codec.ZSTD)
            if segment < 2:
                made.roll(partition)
        made.copy(partition)
    made.flush()
    yield made
    made.close()


def load(spark: SparkSession, topic: SourceTopic, **options: str) -> DataFrame:
    given = {"url": topic.url, "Topic": NAME, **options}
    return spark.read.format("varve").options(**given).load()


def test_all_rows_come_in_spark_types(spark: SparkSession, topic: SourceTopic) -> None:
    frame = load(spark, topic)
    rows = frame.collect()
    assert len(rows) == 120
    first = min(rows, key=lambda row: (row.partition, row.offset))
    assert (first.topic, first.partition, first.offset) == (NAME, 0, 0)
    assert (bytes(first.key), bytes(first.value)) == (b"k0", b"p0 s0")
    assert first.headers[0].key == "h"
    assert frame.schema["timestamp"].dataType.simpleString() == "timestamp"


def test_the_hot_directory_is_read_behind_the_remote_end(
    spark: SparkSession, topic: SourceTopic
) -> None:
    frame = load(spark, topic, directory=topic.kit.path)
    assert frame.count() == 180
    assert frame.select("partition", "offset").distinct().count() == 180


def test_filters_go_down_to_the_source(spark: SparkSession, topic: SourceTopic) -> None:
    frame = load(spark, topic, pushFilters="true")
    narrow = frame.where((col("partition") == 1) & (col("offset") >= 50) & (col("offset") < 53))
    assert sorted(row.offset for row in narrow.collect()) == [50, 51, 52]
    key = frame.where(col("key") == lit(b"k30")).select("partition", "value")
    assert sorted(bytes(row.value) for row in key.collect()) == [b"p0 s1", b"p1 s1"]
    late = datetime.datetime.fromtimestamp((START_MS + 60_000) / 1000, datetime.UTC)
    times = frame.where((col("timestamp") >= lit(late)) & (col("partition") == 0))
    assert {bytes(row.value) for row in times.collect()} == {b"p0 s1"}


def test_a_frame_that_was_filtered_is_whole_again(spark: SparkSession, topic: SourceTopic) -> None:
    frame = load(spark, topic)
    assert frame.where("offset < 3 AND partition = 0").count() == 3
    assert frame.count() == 120


def test_only_the_columns_of_a_schema_are_made(spark: SparkSession, topic: SourceTopic) -> None:
    given = {"url": topic.url, "topic": NAME}
    reader = spark.read.format("varve").options(**given).schema("offset long, size int")
    assert reader.load().columns == ["offset", "size"]
    assert reader.load().where("size > 0").count() == 120
    extra = load(spark, topic, columns="producerId,leaderEpoch")
    assert extra.columns[-2:] == ["producerId", "leaderEpoch"]


def test_the_latest_state_is_one_row_for_each_key(spark: SparkSession, topic: SourceTopic) -> None:
    frame = load(spark, topic, mode="latest", directory=topic.kit.path)
    rows = frame.where("partition = 0").select("key", "value").collect()
    assert len({bytes(row.key) for row in rows}) == len(rows) == 32
    assert {bytes(row.value) for row in rows if bytes(row.key) == b"k5"} == {b"p0 s2"}
    assert frame.where("offset < 1").collect()[0].offset == 0


def test_a_session_that_found_the_format_is_not_given_it_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, source: object) -> None:
        raise AssertionError("Spark warns about a format that is registered again")

    monkeypatch.setattr(DataSourceRegistration, "register", refuse)
    register(spark)


def test_what_is_wrong_is_named(spark: SparkSession, topic: SourceTopic) -> None:
    with pytest.raises(PySparkException, match="no topic 'none'"):
        load(spark, topic, Topic="none").collect()
    with pytest.raises(PySparkException, match="no option 'colour'"):
        load(spark, topic, colour="red").collect()


def test_an_empty_range_has_no_rows(spark: SparkSession, topic: SourceTopic) -> None:
    assert load(spark, topic, startingOffset="1000").collect() == []
    assert load(spark, topic).where("partition = 7").collect() == []


def stream_sizes(spark: SparkSession, topic: SourceTopic, place: Path, **options: str) -> list[int]:
    """The rows of each batch of a query that reads what there is now."""
    sizes: list[int] = []
    given = {"url": topic.url, "Topic": NAME, "directory": topic.kit.path, **options}
    frame = spark.readStream.format("varve").options(**given).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(place))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    return sizes


def test_a_stream_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    topic = SourceTopic(tmp_path / "store")
    topic.put(*[(f"k{number}", "1") for number in range(50)])
    topic.roll()
    topic.copy()
    topic.put(*[(f"k{number}", "2") for number in range(10)])
    topic.flush()
    place = tmp_path / "checkpoint"
    assert stream_sizes(spark, topic, place, maxOffsetsPerTrigger="25") == [25, 25, 10]
    topic.put(("late", "3"), ("later", "4"))
    topic.flush()
    assert stream_sizes(spark, topic, place) == [2]
    topic.close()
