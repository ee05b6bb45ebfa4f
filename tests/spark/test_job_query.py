"""`varve job query` in a session: what rows look like, what is reported, how it stops."""

import csv
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import varve
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.foundation.settings import GivenValue
from varve.spark import console

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("spark"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten keys, each written in the cold tier and again in the hot one, one of them deleted."""
    path = tmp_path_factory.mktemp("job")
    settings: dict[str, GivenValue] = {"remote.storage.enable": True, "cleanup.policy": "compact"}
    with varve.open(path / "data", maintain=False) as store:
        topic = store.create_topic("orders", settings=settings)
        for number in range(10):
            topic.append(
                key=f"k{number}", value=b"\xff\x00" if number == 3 else f'"{number}, café"'
            )
    assert (
        CliRunner().invoke(app, ["tier", "copy", "-d", str(path / "data"), "--roll"]).exit_code == 0
    )
    with varve.open(path / "data", maintain=False) as store:
        for number in range(9):
            store.topic("orders").append(key=f"k{number}", value=f"newer {number}")
        store.topic("orders").append(key="k9", value=None)
    return path


def run(place: Path, *arguments: str, topic: str = "orders") -> Result:
    place_of = ["--dir", str(place / "data")]
    found = CliRunner().invoke(
        app, ["job", "query", topic, *place_of, *arguments], env={"COLUMNS": "180"}
    )
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def test_rows_of_both_tiers_as_json(place: Path) -> None:
    found = run(place, "--json", "--where", "offset IN (3, 4, 19)")
    assert found.exit_code == 0, found.stderr
    *objects, report = map(json.loads, found.stdout.splitlines())
    assert [row["type"] for row in objects] == ["row"] * 3
    rows = {row["offset"]: row for row in objects}
    assert [rows[offset]["value"] for offset in (3, 4, 19)] == ["base64:/wA=", '"4, café"', None]
    assert rows[4]["key"] == "k4"
    assert rows[4]["timestamp"].endswith("Z")
    assert (report["type"], report["rows"]) == ("report", 3)


def test_csv_can_be_read_back(place: Path) -> None:
    found = run(place, "--format", "csv", "--from", "4", "--to", "6", "--select", "offset, value")
    rows = list(csv.reader(found.stdout.splitlines()))
    assert "2 rows" in found.stderr
    assert rows == [["offset", "value"], ["4", '"4, café"'], ["5", '"5, café"']]


def test_a_table_shows_so_many_rows_and_that_there_are_more(place: Path) -> None:
    found = run(place, "--limit", "5", "--key", "k1", "--latest")
    assert "newer 1" in found.stdout
    assert "more rows" not in found.stdout
    found = run(place, "--limit", "5")
    assert "more rows than the 5" in found.stdout


def test_parquet_keeps_bytes_and_the_report_counts_rows(
    spark: SparkSession, place: Path, tmp_path: Path
) -> None:
    output, report = tmp_path / "rows", tmp_path / "report.json"
    arguments = ("--latest", "--format", "parquet", "-o", str(output), "--report", str(report))
    found = run(place, *arguments)
    assert found.exit_code == 0, found.stderr
    rows = spark.read.parquet(str(output)).collect()
    assert sorted(bytes(row.key) for row in rows) == [b"k%d" % number for number in range(9)]
    document = json.loads(report.read_text())
    assert (document["job"], document["rows"]) == ("query", 9)
    assert sum(stage["written_rows"] for stage in document["stages"]) == 9
    assert document["tasks"] == sum(stage["tasks"] for stage in document["stages"]) > 0
    again = run(place, *arguments)
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    listed = CliRunner().invoke(
        app, ["output", "list", "orders", "--dir", str(place / "data"), "--json"]
    )
    assert ("files", str(output)) in [
        (one["kind"], one["place"]) for one in map(json.loads, listed.stdout.splitlines())
    ]


def test_sql_sees_the_topic_as_a_table(place: Path) -> None:
    sql = "SELECT count(*) AS rows, count(DISTINCT key) AS keys FROM records"
    assert json.loads(run(place, "--format", "json", "--sql", sql).stdout) == {
        "rows": 20,
        "keys": 10,
    }


def test_wrong_sql_is_one_line(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = run(place, "--where", "nope = 1")
    assert found.exit_code == 1
    assert found.stderr.startswith("error: Spark refuses the query: A column")
    assert len(found.stderr.splitlines()) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_sql_over_the_name_of_the_topic_is_told_the_table(place: Path) -> None:
    found = run(place, "--sql", "SELECT count(*) FROM orders")
    assert found.exit_code == 1
    assert "no table `orders`; the topic is the table `records`" in found.stderr


@pytest.fixture
def interrupt_when_it_runs(spark: SparkSession) -> Iterator[None]:
    def interrupt() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not tracker.getActiveStageIds():
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    yield
    thread.join(10)


@pytest.mark.usefixtures("interrupt_when_it_runs")
def test_an_interrupt_cancels_what_spark_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_start", lambda *_: (spark, False))
    with console.SparkLog() as log:
        job = console.SparkJob("sleep", console.SparkOptions(), log)

        def work() -> object:
            slow = job.spark.sparkContext.parallelize([1, 2], 2).map(
                lambda one: threading.Event().wait(90)
            )
            return slow.collect()

        with pytest.raises(KeyboardInterrupt):
            job.run(work)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
