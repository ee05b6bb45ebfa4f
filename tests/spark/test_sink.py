"""The sink of `varve` in a session: rows of one topic are written to another, exactly once."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import varve
from tests.support.spark_session import spark as spark
from varve.disk import RealFileSystem
from varve.foundation.errors import InvalidRecord, InvalidRequest
from varve.jobs.sink.sink_state import SinkStateFile
from varve.records import Record
from varve.spark.errors import explain_failure

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def fill(directory: Path, count: int) -> None:
    """A topic of two partitions with headers, nulls, tombstones and keyless records."""
    records = [
        Record(
            None if number % 7 == 0 else b"k%d" % (number % 11),
            None if number % 5 == 0 else b"v%d" % number,
            (("h", b"%d" % number), ("empty", None)) if number % 3 == 0 else (),
            START_MS + number,
        )
        for number in range(count)
    ]
    with varve.open(directory, maintain=False) as store:
        topic = store.create_topic("in", partitions=2, exist_ok=True)
        topic.append_many(records)


def load(spark: SparkSession, directory: Path, topic: str) -> DataFrame:
    given = {"directory": str(directory), "topic": topic}
    return spark.read.format("varve").options(**given).load()


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.select(*COLUMNS).collect())


def staged(directory: Path) -> list[Path]:
    return list(directory.with_name(f"{directory.name}.staging").rglob("*-0*"))


def test_rows_written_are_the_rows_read(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    fill(directory, 200)
    source = load(spark, directory, "in")
    given = {"directory": str(directory), "topic": "out", "createTopic": "true", "partitions": "2"}
    written = source.drop("topic").repartitionByRange(2, "partition", "offset")
    write = written.sortWithinPartitions("partition", "offset").write.format("varve")
    write.options(**given, **{"topic.cleanup.policy": "delete"}).mode("append").save()
    assert rows_of(load(spark, directory, "out")) == rows_of(source)
    assert staged(directory) == []


def test_a_failed_task_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with varve.open(directory, maintain=False) as store:
        store.create_topic("out", partitions=2, settings={"cleanup.policy": "compact"})
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "if(id = 999, null, cast(id as string)) as key", "cast(id as string) as value"
    )
    given = {"directory": str(directory), "topic": "out"}
    with pytest.raises(PySparkException) as caught:
        frame.write.format("varve").options(**given).mode("append").save()
    found = explain_failure(caught.value)
    assert isinstance(found, InvalidRecord)
    assert "1 rows have no key" in str(found)
    with varve.open(directory, maintain=False) as store:
        assert [one.offsets().end for one in store.topic("out").partitions] == [0, 0]
    with pytest.raises(PySparkException) as caught:
        frame.write.format("varve").options(**given).mode("overwrite").save()
    assert isinstance(explain_failure(caught.value), InvalidRequest)


def run(spark: SparkSession, directory: Path, checkpoint: Path, **more: str) -> str:
    """Copies what there is from `in` to `out`; gives the query's id."""
    stream = spark.readStream.format("varve").options(directory=str(directory), topic="in").load()
    given = {"directory": str(directory), "topic": "out", "createTopic": "true", "partitions": "2"}
    query = (
        stream.drop("topic")
        .writeStream.format("varve")
        .options(**given, checkpointLocation=str(checkpoint), **more)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


def test_a_stream_goes_on_from_its_checkpoint_and_writes_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    fill(directory, 100)
    query_id = run(spark, directory, tmp_path / "checkpoint", sinkId="copy")
    fill(directory, 60)
    for left in (tmp_path / "checkpoint/commits").iterdir():
        left.unlink()  # as if the driver had died before Spark noted what was committed
    run(spark, directory, tmp_path / "checkpoint", sinkId="copy")
    source = load(spark, directory, "in").drop("offset").collect()
    copied = load(spark, directory, "out").drop("offset").collect()
    assert sorted(str(row[2:]) for row in copied) == sorted(str(row[2:]) for row in source)
    assert len(copied) == 160
    ledger = SinkStateFile(RealFileSystem(), [str(directory)]).read()
    assert (ledger["copy"].query, ledger["copy"].epoch) == (query_id, 1)
    assert staged(directory) == []
