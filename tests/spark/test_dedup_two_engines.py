"""The Spark job and the processor agree on one topic where docs/how-to/deduplicate.md says so."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import varve
from tests.support.spark_session import spark as spark
from varve.dedup import Deduplicator
from varve.dedup.rules import Counts, DedupRules, LatePolicy, NullPolicy, parse_id_source
from varve.jobs.tier.location import TopicLocation
from varve.records import Record, build_batch
from varve.spark.deduplication.functions import DedupPlan, DedupSettings
from varve.spark.deduplication.outputs import TopicOutput

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000
WINDOW_MS = 10_000
HOUR_MS = 3_600_000
PARTITIONS = 2
Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


@dataclass
class Stage:
    """One topic, and an output of each engine; both go on where they ended."""

    root: Path
    by: str
    shared: dict[str, Any]

    def __post_init__(self) -> None:
        self.directory = str(self.root / "data")
        self.shared = {"before_ms": WINDOW_MS, "after_ms": WINDOW_MS, **self.shared}
        with varve.open(self.directory, maintain=False) as store:
            store.create_topic("in", partitions=PARTITIONS)

    def put(self, records: dict[int, list[Record]], *, step: int = 9) -> None:
        with varve.open(self.directory, maintain=False) as store:
            topic = store.topic("in")
            for partition, given in records.items():
                for start in range(0, len(given), step):
                    topic.append_batch(build_batch(given[start : start + step]), partition)

    def run_job(self, spark: SparkSession) -> Counts:
        """The counts of this run."""
        settings = DedupSettings(by=parse_id_source(self.by), state_partitions=2, **self.shared)
        plan = DedupPlan(
            location=TopicLocation(dir=self.directory),
            topic="in",
            output=TopicOutput(directories=(self.directory,), topic="by-spark"),
            settings=settings,
            checkpoint=str(self.root / "checkpoint"),
        )
        return plan.run(spark).counts

    def run_processor(self) -> Counts:
        """The counts of all runs."""
        late = self.shared.get("late", LatePolicy.FORWARD)
        given = {**self.shared, "future": late, "missing": late}
        rules = DedupRules(by=parse_id_source(self.by), **given)
        with (
            varve.open(self.directory, maintain=False) as store,
            Deduplicator.open(store, "in", "by-processor", rules) as processor,
        ):
            processor.run_once()
            return sum((one.counts for one in processor.states()), Counts())

    def rows(self, topic: str) -> list[list[Row]]:
        """What a reader of committed records finds in each partition, in order."""
        with varve.open(self.directory, maintain=False) as store:
            return [
                [
                    (one.key, one.value, one.headers, one.timestamp)
                    for one in store.topic(topic).partition(number).read(isolation="read_committed")
                ]
                for number in range(PARTITIONS)
            ]


def draw(by: str, count: int, *, seed: int, first: int = 0) -> dict[int, list[Record]]:
    """Copies near and far, out of order by up to three windows; an id stays in its partition."""
    source = random.Random(seed)
    made: dict[int, list[Record]] = {partition: [] for partition in range(PARTITIONS)}
    for number in range(first, first + count):
        time = START_MS + number * 200 + source.randrange(-WINDOW_MS, 2 * WINDOW_MS)
        place = source.randrange(40)
        name = f"id {place}" if place % 4 else f"an id of more than sixteen bytes, {place}"
        identity = None if source.random() < 0.05 else name.encode()
        made[place % PARTITIONS].append(make_record(by, number, identity, time))
    return made


def make_record(by: str, number: int, identity: bytes | None, time: int) -> Record:
    note = ("n", b"%d" % number)
    match by:
        case "key":
            return Record(identity, None if number % 7 == 0 else b"%d" % number, (note,), time)
        case "header:id":
            held = () if identity is None else (("id", b"old"), ("id", identity))
            return Record(b"k", b"%d" % number, (*held, note, ("empty", None)), time)
        case _:
            if number % 31 == 0:
                latin = b"\xf6" if number % 2 else b"\xfc"
                return Record(None, b'{"order":{"id":"M%sller"}}' % latin, (note,), time)
            told: dict[str, Any] = {"n": number}
            if identity is not None:
                told["order"] = {"id": identity.decode()}
            return Record(None, json.dumps(told).encode(), (note,), time)


@pytest.mark.parametrize(
    ("by", "rules", "rounds"),
    [
        ("key", {}, 2),
        ("header:id", {"is_refreshing": True, "before_ms": 4_000, "after_ms": 1_500}, 1),
        ("field:order.id", {"after_ms": 0, "null": NullPolicy.DROP}, 1),
    ],
    ids=["key", "header-refreshed", "field-looking-back"],
)
def test_both_write_the_same_records(
    spark: SparkSession, tmp_path: Path, by: str, rules: dict[str, Any], rounds: int
) -> None:
    stage = Stage(tmp_path, by, {"lateness_ms": 4 * WINDOW_MS, **rules})
    found = Counts()
    for number in range(rounds):
        stage.put(draw(by, 400, seed=number, first=number * 400))
        found = found + stage.run_job(spark)
        counts = stage.run_processor()
    assert stage.rows("by-spark") == stage.rows("by-processor")
    assert (found.kept, found.duplicates) == (counts.kept, counts.duplicates)
    assert (found.late, found.future, found.no_id) == (0, 0, counts.no_id)
    assert (counts.late, counts.future, counts.missing) == (0, 0, 0)
    assert min(counts.kept, counts.duplicates, counts.no_id) > 10


def test_clocks_and_partitions_tell_them_apart(spark: SparkSession, tmp_path: Path) -> None:
    """The table of docs/how-to/deduplicate.md: lateness, clock, copies in several partitions."""
    stage = Stage(tmp_path, "key", {"lateness_ms": WINDOW_MS, "late": LatePolicy.DROP})
    later = START_MS + HOUR_MS

    def record(key: bytes, time: int) -> Record:
        return Record(key, key, timestamp=time)

    stage.put({0: [record(b"both", later), record(b"behind", START_MS)]}, step=1)
    stage.put({1: [record(b"both", later)]})
    first = stage.run_job(spark)
    counts = stage.run_processor()
    assert (first.kept, first.duplicates, first.late) == (2, 1, 0)
    assert (counts.kept, counts.duplicates, counts.late) == (2, 0, 1)
    stage.put({0: [record(b"slow", later - WINDOW_MS - 1)]})
    stage.put({1: [record(b"fast", later + HOUR_MS)]})
    stage.run_job(spark)
    stage.put({0: [record(b"on time", later)]})
    assert stage.run_job(spark).late == 1
    counts = stage.run_processor()
    assert counts == Counts(kept=4, late=2)
    assert [key for key, *_ in stage.rows("by-processor")[0]] == [b"both", b"on time"]
