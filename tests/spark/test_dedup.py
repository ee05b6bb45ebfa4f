"""Deduplication on Structured Streaming: state across runs, edges, late and null ids, outputs."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import varve
from tests.support.dedup_model import Arrival, DedupModel
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.dedup.rules import LatePolicy, Verdict, parse_id_source
from varve.foundation.errors import InvalidRequest
from varve.jobs.source.arrow_columns import ArrowColumns, list_columns
from varve.jobs.source.options import SourceFilters, parse_options
from varve.jobs.source.plan import plan_tasks
from varve.jobs.source.read import read_task
from varve.jobs.table.catalog import CatalogAddress, get_table
from varve.jobs.table.definition import TableSettings, ValueFormat
from varve.jobs.tier.location import TopicLocation
from varve.records import Record, build_batch
from varve.spark.deduplication.functions import DedupPlan, DedupResult, DedupSettings
from varve.spark.deduplication.job import DedupOutput
from varve.spark.deduplication.outputs import TableOutput, TopicOutput
from varve.topics.outputs import LocalOutputRegistry

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000
FUTURE_MS = 4_000_000_000_000
NOW_MS = 2_000_000_000_000
WINDOW_MS = 10_000
Row = tuple[int, bytes | None, int]
"""Partition, id and time; the value tells partition and offset."""


class Stream:
    """A topic of two partitions, and the model of what becomes of it."""

    def __init__(self, root: Path, *, ids: str = "key") -> None:
        self.directory = root / "data"
        self.ids = ids
        self.ends = [0, 0]
        with varve.open(self.directory, maintain=False) as store:
            store.create_topic("in", partitions=2)

    def put(self, *rows: Row) -> list[Arrival]:
        """Records as one micro-batch will read them."""
        arrivals = []
        with varve.open(self.directory, maintain=False) as store:
            for partition, identity, time in rows:
                offset = self.ends[partition]
                self.ends[partition] += 1
                log = store.topic("in").partition(partition).log
                log.append(build_batch([self._record(partition, offset, identity, time)]))
                arrivals.append(Arrival(partition, offset, identity, time))
        return arrivals

    def _record(self, partition: int, offset: int, identity: bytes | None, time: int) -> Record:
        name = f"{partition}:{offset}"
        match self.ids:
            case "key":
                return Record(identity, name.encode(), (("h", b"1"),), time)
            case "header":
                headers = () if identity is None else (("id", b"old"), ("id", identity))
                return Record(b"k", name.encode(), headers, time)
            case _:
                told: dict[str, Any] = {"name": name}
                if identity is not None:
                    told["order"] = {"id": identity.decode()}
                return Record(b"k", json.dumps(told).encode(), (), time)

    def output(self) -> TopicOutput:
        return TopicOutput(directories=(str(self.directory),), topic="out")

    def run(
        self, spark: SparkSession, checkpoint: Path, settings: DedupSettings, output: DedupOutput
    ) -> DedupResult:
        plan = DedupPlan(
            location=TopicLocation(dir=self.directory),
            topic="in",
            output=output,
            settings=settings,
            checkpoint=str(checkpoint),
        )
        return plan.run(spark)

    def read(self, topic: str) -> list[dict[str, Any]]:
        options = parse_options({"directory": str(self.directory), "topic": topic})
        columns = ArrowColumns(list_columns())
        rows: list[dict[str, Any]] = []
        for task in plan_tasks(options, SourceFilters()):
            for batch in read_task(task, columns, options, SourceFilters()):
                rows += batch.to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def values(self, topic: str) -> list[str]:
        return [row["value"].decode() for row in self.read(topic)]


def make_settings(by: str = "key", **more: Any) -> DedupSettings:
    given = {
        "by": parse_id_source(by),
        "before_ms": WINDOW_MS,
        "after_ms": WINDOW_MS,
        "lateness_ms": WINDOW_MS,
        "state_partitions": 2,
        **more,
    }
    return DedupSettings(**given)


def names(
    arrivals: Sequence[Arrival], verdicts: dict[tuple[int, int], Verdict], *wanted: Verdict
) -> list[str]:
    places = sorted((one.partition, one.offset) for one in arrivals)
    return [f"{p}:{o}" for p, o in places if verdicts[p, o] in wanted]


def test_state_survives_restarts_and_late_records_go_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream, checkpoint = Stream(tmp_path), tmp_path / "checkpoint"
    model = DedupModel(before=WINDOW_MS, after=WINDOW_MS, lateness=WINDOW_MS)
    settings = make_settings(late=LatePolicy.SIDE, side_topic="late")
    t, w = START_MS, WINDOW_MS
    story: list[list[Row]] = [
        [
            (0, b"x", t),
            (0, b"x", t + w),  # at the edge: a duplicate
            (0, b"x", t + w + 1),  # one beyond: new
            (1, b"a longer id than sixteen bytes", t + 5),
            (1, b"a longer id than sixteen bytes", t + 4),
            (0, None, t),
            (0, None, t),  # no id: never merged
            (1, b"f", FUTURE_MS),
        ],
        [
            (1, b"x", t + w + 2),  # from another partition, after a restart: a duplicate
            (1, b"y", t + 1),  # the watermark: not late
            (1, b"z", t),  # below it: late, though never seen
            (0, b"x", t + 3 * w),
        ],
    ]
    kept: list[str] = []
    late: list[str] = []
    for rows in story:
        arrivals = stream.put(*rows)
        expected = model.batch(arrivals, NOW_MS)
        result = stream.run(spark, checkpoint, settings, stream.output())
        verdicts = list(expected.values())
        counts = result.counts
        assert counts.total == len(rows)
        assert (counts.kept, counts.duplicates) == (
            verdicts.count(Verdict.KEPT),
            verdicts.count(Verdict.DUPLICATE),
        )
        assert (counts.late, counts.future, counts.no_id) == (
            verdicts.count(Verdict.LATE),
            verdicts.count(Verdict.FUTURE),
            verdicts.count(Verdict.NO_ID),
        )
        kept += names(arrivals, expected, Verdict.KEPT, Verdict.NO_ID)
        late += names(arrivals, expected, Verdict.LATE, Verdict.FUTURE)
    assert stream.values("out") == sorted(kept)
    assert stream.values("late") == sorted(late) == ["1:2", "1:5"]
    first = stream.read("out")[0]
    assert (first["partition"], first["key"]) == (0, b"x")
    assert first["headers"] == [{"key": "h", "value": b"1"}]
    noted = LocalOutputRegistry(str(stream.directory))._read()
    assert sorted((note.kind, note.name.split(" in ")[0]) for note in noted) == [
        ("checkpoint", "out"),
        ("topic", "late"),
        ("topic", "out"),
    ]

    with pytest.raises(InvalidRequest, match="was created with before_ms=10000"):
        stream.run(spark, checkpoint, make_settings(before_ms=5), stream.output())


@pytest.mark.java
def test_refresh_by_header_goes_straight_to_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(tmp_path, ids="header")
    t, w = START_MS, WINDOW_MS
    arrivals = stream.put(
        *((0, b"x", t + step * w) for step in range(4)), (1, None, t), (1, b"y", t)
    )
    settings = make_settings("header:id", is_refreshing=True)
    result = stream.run(spark, tmp_path / "checkpoint", settings, stream.output())
    assert (result.counts.kept, result.counts.duplicates, result.counts.no_id) == (2, 3, 1)
    assert stream.values("out") == ["0:0", "1:0", "1:1"]
    assert len(arrivals) == result.counts.total == 6


@pytest.mark.java
def test_a_table_gets_each_record_once_with_bad_values_beside(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream, checkpoint = Stream(tmp_path, ids="field"), tmp_path / "checkpoint"
    catalog = CatalogAddress(str(tmp_path / "tables"))
    output = TableOutput(
        catalog=catalog, name="shop.orders", settings=TableSettings(format=ValueFormat.JSON)
    )
    stream.put((0, b"a", START_MS), (1, b"a", START_MS + 1), (0, b"b", START_MS))
    settings = make_settings("field:order.id")
    assert stream.run(spark, checkpoint, settings, output).counts.duplicates == 1
    with varve.open(stream.directory, maintain=False) as store:
        log = store.topic("in").partition(0).log
        log.append(build_batch([Record(b"k", b"no json", (), START_MS + 2)]))
    assert stream.run(spark, checkpoint, settings, output).counts.no_id == 1
    shutil.rmtree(checkpoint / "commits")  # as if the driver had died before Spark noted the end
    stream.run(spark, checkpoint, settings, output)
    opened = catalog.open()
    table = get_table(opened, "shop.orders").scan().to_arrow()
    assert sorted(table["name"].to_pylist()) == ["0:0", "0:1"]
    assert {"_partition", "_offset", "_key"} <= set(table.column_names)
    bad = get_table(opened, "shop.orders__bad").scan().to_arrow()
    assert bad["_offset"].to_pylist() == [2]


@pytest.mark.usefixtures("spark")
def test_the_command_tells_counts_of_batches_and_of_the_run(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.put((0, b"x", START_MS), (0, b"x", START_MS + 1), (1, None, START_MS))
    given = ["dedup", "in", "--to", "out", "--by", "key", "--window", "10s", "--no-id", "drop"]
    place = ["--dir", str(stream.directory), "--checkpoint", str(tmp_path / "checkpoint")]
    done = CliRunner().invoke(app, ["job", *given, *place, "--json"])
    assert done.exit_code == 0, done.stderr
    batch, total, report = map(json.loads, done.stdout.splitlines())
    assert (batch["type"], total["type"], report["type"]) == ("batch", "dedup", "report")
    counts = {"kept": 1, "duplicates": 1, "late": 0, "future": 0, "no_id": 1, "records": 3}
    for told in (batch, total):
        assert {name: told[name] for name in counts} == counts
    assert stream.values("out") == ["0:0"]
