"""One run of a job or a query in a Spark session, timed there; starting the session is left out.

Invariant  a run can be pickled: it is sent to the process that has the session.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, max_by, struct

from benchmarks.spark.cold_topic import TOPIC
from benchmarks.spark.cpu_time import count_cpu_seconds, read_cpu_seconds
from varve.cleaning.removals.removal import Reason
from varve.commit_log import LogSettings
from varve.jobs.compact.job import compact
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.erase.erasure import erase, new_erasure_id
from varve.jobs.erase.request import ErasureRequest, RescanMode
from varve.jobs.tier.bucket import Bucket
from varve.spark.runner import HERE_BYTES, SparkRunner
from varve.spark.stages import get_step_log, watch_session


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run took: seconds by the wall and of the processor, and bytes between processes.

    `sent_bytes` went from the driver to tasks and back, `store_bytes` from and to the bucket.
    """

    wall_seconds: float
    cpu_seconds: float
    shuffled_bytes: int = 0
    sent_bytes: int = 0
    store_bytes: int = 0


class Run(Protocol):
    """Work that travels to a session."""

    def run(self, spark: SparkSession) -> Taken: ...


class Timer:
    """Measures from its making to `taken`."""

    def __init__(self, spark: SparkSession) -> None:
        self._session = watch_session(spark)
        self._cpu = read_cpu_seconds()
        self._wall = time.perf_counter()

    def taken(self) -> Taken:
        wall, cpu = time.perf_counter() - self._wall, count_cpu_seconds(since=self._cpu)
        stages = self._session.stages()
        return Taken(wall, cpu, sum(one.shuffle_written_bytes for one in stages))


@dataclass(frozen=True, slots=True)
class CompactRun:
    """Compacts a bucket, which is changed by it; raises unless one record of each key is left."""

    url: str
    key_count: int
    segment_bytes: int
    here_bytes: int = HERE_BYTES

    def run(self, spark: SparkSession) -> Taken:
        log = LogSettings(cleanup_policy=("compact",), segment_bytes=self.segment_bytes)
        settings = CompactSettings(log=log, is_forced=True)
        runner = SparkRunner(spark, here_bytes=self.here_bytes)
        ledger = get_step_log(spark)
        before, timer = ledger.count, Timer(spark)
        result = compact(Bucket(self.url), [TOPIC], settings=settings, runner=runner)
        taken = timer.taken()
        kept = sum(one.records.get(Reason.KEPT, 0) for one in result.partitions)
        if result.failures or kept != self.key_count:
            raise AssertionError(f"{kept} records of {self.key_count} keys: {result.to_json()}")
        return replace(taken, sent_bytes=sum(one.sent_bytes for one in ledger.steps(after=before)))


@dataclass(frozen=True, slots=True)
class EraseRun:
    """Erases keys from a bucket, which is changed by it; raises unless that changes so many
    segments.
    """

    url: str
    keys: frozenset[bytes]
    segment_count: int

    def run(self, spark: SparkSession) -> Taken:
        # What it found by key indexes is proved by them: the full proof reads all data.
        request = ErasureRequest(
            topics=(TOPIC,), id=new_erasure_id(), keys=self.keys, rescan=RescanMode.KEYS
        )
        ledger = get_step_log(spark)
        before, timer = ledger.count, Timer(spark)
        result = erase(request, runner=SparkRunner(spark), address=Bucket(self.url))
        taken = timer.taken()
        found = sum(one.segments_matched for one in result.partitions)
        erased = sum(one.records for one in result.partitions)
        if (found, erased) != (self.segment_count, len(self.keys)):
            raise AssertionError(f"{erased} records in {found} segments were erased for {self}")
        stores = [one.store for one in ledger.steps(after=before)]
        moved = sum(one.read_bytes + one.written_bytes for one in stores)
        return replace(taken, store_bytes=moved)


def open_rows(spark: SparkSession, place: str, columns: Sequence[str] = ()) -> DataFrame:
    """The rows of a topic by the URL of its bucket, or by a path where they are as Parquet."""
    if not place.startswith("file:"):
        rows = spark.read.parquet(place)
        return rows.select(*columns) if columns else rows
    reader = spark.read.format("varve").option("url", place).option("topic", TOPIC)
    if columns:
        every = reader.load().schema
        reader = reader.schema(type(every)([every[name] for name in columns]))
    return reader.load()


@dataclass(frozen=True, slots=True)
class LatestRun:
    """What one would write without varve: the row of the highest offset per key, as Parquet."""

    place: str
    target: str

    def run(self, spark: SparkSession) -> Taken:
        timer = Timer(spark)
        rows = open_rows(spark, self.place)
        latest = rows.groupBy("key").agg(max_by(struct(*rows.columns), col("offset")).alias("row"))
        latest.select("row.*").write.parquet(self.target)
        return timer.taken()


@dataclass(frozen=True, slots=True)
class ScanRun:
    """Reads all rows and lets them go."""

    place: str
    columns: tuple[str, ...] = ()

    def run(self, spark: SparkSession) -> Taken:
        timer = Timer(spark)
        open_rows(spark, self.place, self.columns).write.format("noop").mode("overwrite").save()
        return timer.taken()


@dataclass(frozen=True, slots=True)
class ParquetRun:
    """Writes the rows of a topic as Parquet."""

    url: str
    target: str

    def run(self, spark: SparkSession) -> Taken:
        timer = Timer(spark)
        open_rows(spark, self.url).write.parquet(self.target)
        return timer.taken()
