"""What a user of PySpark calls: the format without registration, and jobs on his own session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import varve
import varve.spark as vs
from tests.support.source_topic import NAME, SourceTopic
from tests.support.spark_session import spark as spark
from varve.foundation.errors import InvalidRequest
from varve.jobs.results import JobIncomplete

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path, cleanup_policy="compact")
    for version in range(3):
        made.put(*((f"k{number}", f"{version}") for number in range(4)))
        made.roll()
    made.copy()
    yield made
    made.close()


def test_the_format_is_known_without_registration(spark: SparkSession, topic: SourceTopic) -> None:
    reader = spark.newSession().read.format("varve")
    assert reader.options(url=topic.url, topic=NAME).load().count() == 12


def test_jobs_run_on_the_users_session(
    spark: SparkSession, topic: SourceTopic, tmp_path: Path
) -> None:
    location = varve.TopicLocation(store=topic.url)
    done = vs.compact(spark, location, [NAME], settings={"min.cleanable.dirty.ratio": 0.0})
    done.raise_for_failures()
    assert [one.error for one in done.partitions] == [None]
    assert done.to_json()["job"] == done.job_id
    assert vs.snapshot(spark, location, NAME, to=str(tmp_path / "state")).rows == 4
    earlier = vs.snapshot(spark, location, NAME, to=str(tmp_path / "early"), at="1970-01-02")
    assert earlier.rows == 0
    assert vs.open_snapshot(str(tmp_path / "state")).document.rows == 4
    catalog = vs.Catalog(str(tmp_path / "tables"))
    table = vs.table(spark, location, NAME, to="shop.orders", catalog=catalog)
    assert table.failures == ()
    assert vs.read_table(spark, catalog, "shop.orders").count() == 4
    assert [one.table for one in vs.expire_table(catalog, "shop.orders", older_than="1d")]
    assert vs.verify(spark, location, [NAME]).failures == ()
    latest = vs.query(spark, location, NAME, latest=True, columns=["offset", "key"])
    assert latest.columns == ["offset", "key"]
    assert latest.count() == 4
    assert vs.query(spark, location, NAME, start=8, end="10", key="k1").count() == 1
    erased = vs.erase(spark, location, [NAME], keys=["k1"], deadline="30d", grace="0s")
    assert erased.receipt is not None
    assert vs.query(spark, location, NAME, key=b"k1").count() == 0
    rows = spark.read.format("varve").options(url=topic.url, topic=NAME).load().collect()
    assert {bytes(row["key"]) for row in rows} == {b"k0", b"k2", b"k3"}


def test_damage_is_among_the_failures(spark: SparkSession, topic: SourceTopic) -> None:
    (path,) = list(Path(topic.url.removeprefix("file://")).rglob("*/log"))[:1]
    path.write_bytes(path.read_bytes()[:-1])
    result = vs.verify(spark, varve.TopicLocation(store=topic.url), [NAME])
    assert result.failures
    with pytest.raises(JobIncomplete):
        result.raise_for_failures()


def test_a_live_session_is_not_altered(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    before = dict(spark.sparkContext.getConf().getAll())
    try:
        found = vs.get_session(conf={"spark.sql.shuffle.partitions": "77"})
        assert found.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert found.conf.get("spark.sql.shuffle.partitions") != "77"
        assert dict(found.sparkContext.getConf().getAll()) == before
        with pytest.raises(InvalidRequest, match="master local"):
            vs.get_session(master="local[7]")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_checkpoint_of_another_topic_ends_the_query_with_both_names(
    spark: SparkSession, topic: SourceTopic, tmp_path: Path
) -> None:
    topic.kit.store.create_topic("payments").append(key="k", value="v")
    topic.flush()

    def run(name: str) -> None:
        stream = spark.readStream.format("varve")
        frame = stream.options(directory=topic.kit.path, url=topic.url, topic=name).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run(NAME)
    run(NAME)
    with pytest.raises(PySparkException, match=f"belongs to topic {NAME} .*reads topic payments"):
        run("payments")
