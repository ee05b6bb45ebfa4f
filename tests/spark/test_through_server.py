"""The data source and the sink of `varve` by way of a running server, in a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.serving import Serving
from tests.support.source_topic import NAME, SourceTopic
from tests.support.spark_session import spark as spark

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.filterwarnings("ignore")]

COUNT = 60


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    """Two partitions, the first with a cold part."""
    made = SourceTopic(tmp_path, partitions=2)
    for number in range(COUNT):
        if number == COUNT // 2:
            made.roll()
        made.put((f"k{number % 7}", f"v{number}"), partition=number % 2)
    made.copy()
    made.move()
    made.flush()
    yield made
    made.close()


def given(serving: Serving, topic: str) -> dict[str, str]:
    return {"bootstrap.servers": serving.bootstrap, "topic": topic}


def load(spark: SparkSession, serving: Serving, topic: str, **more: str) -> DataFrame:
    return spark.read.format("varve").options(**given(serving, topic), **more).load()


def stored(topic: SourceTopic, name: str) -> list[str]:
    """What readers of committed records find behind the server."""
    partitions = topic.kit.store.topic(name).partitions
    records = [one for some in partitions for one in some.read(isolation="read_committed")]
    return sorted((one.value or b"").decode() for one in records)


def copy(spark: SparkSession, serving: Serving, folder: Path) -> None:
    """Appends what is new in the one topic to the other."""
    stream = spark.readStream.format("varve").options(**given(serving, NAME)).load()
    query = (
        stream.drop("topic")
        .writeStream.format("varve")
        .options(**given(serving, "copied"), createTopic="true", partitions="2")
        .options(stagingUrl=f"file://{folder}/staging", sinkId="copy")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_rows_are_read_and_written_while_a_server_holds_the_directory(
    spark: SparkSession, topic: SourceTopic, tmp_path: Path
) -> None:
    (tmp_path / "staging").mkdir()
    expected = sorted(f"v{number}" for number in range(COUNT))
    with Serving(topic.kit.store) as serving:
        frame = load(spark, serving, NAME).where("offset < 20").select("key", "value")
        options = {"createTopic": "true", "stagingUrl": f"file://{tmp_path}/staging"}
        out = frame.write.format("varve").mode("append").options(**options)
        out.options(**given(serving, "written")).save()
        assert stored(topic, "written") == sorted(f"v{number}" for number in range(40))
        copy(spark, serving, tmp_path)
        topic.put(("new", "w"))
        topic.flush()
        for left in (tmp_path / "checkpoint/commits").iterdir():
            left.unlink()  # as if the driver had died before Spark noted what was committed
        copy(spark, serving, tmp_path)
        assert stored(topic, "copied") == [*expected, "w"]
    assert list((tmp_path / "staging").rglob("*-0*")) == []
