"""One stream through an operator into no sink, timed from its start to its end.

Both sides have the same source, RocksDB with change-log checkpointing, two state partitions, no
batches without data, and the same delay of the watermark.
"""

import shutil
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from benchmarks.dedup.event_files import Events
from benchmarks.spark.runs import Taken, Timer
from varve.dedup.rules import DedupRules, make_routes, parse_id_source
from varve.spark.deduplication.deduplicate import (
    METRICS,
    STATE_CONF,
    find_bucket_keys,
    judge_stream,
    unpack_rows,
)
from varve.spark.deduplication.state import DedupWindow, Judge

STATE_PARTITIONS = 2
_SCHEMA = "id binary, timestamp timestamp, partition int, offset long"
_KEYS_TRIED = 1000
_SECRET = (11, 12)


@dataclass(frozen=True, slots=True)
class StreamRun:
    """An operator by its name; `checkpoint` is removed before and after."""

    operator: str
    events: Events
    checkpoint: str

    def run(self, spark: SparkSession) -> Taken:
        """Raises AssertionError when the exact operator keeps other events than the model."""
        session = spark.newSession()
        for name, value in STATE_CONF.items():
            session.conf.set(name, value)
        session.conf.set("spark.sql.shuffle.partitions", str(STATE_PARTITIONS))
        rows = OPERATORS[self.operator](session, self.events)
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        timer = Timer(spark)
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        taken = timer.taken()
        shutil.rmtree(self.checkpoint)
        if self.operator == "exact":
            found = [one.observedMetrics[METRICS]["kept"] for one in query.recentProgress]
            if sum(found) != self.events.kept:
                raise AssertionError(f"{sum(found)} events kept, not {self.events.kept}")
        return taken


def _read(spark: SparkSession, events: Events) -> DataFrame:
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
    return stream.parquet(events.place)


def _exact(spark: SparkSession, events: Events) -> DataFrame:
    records = _read(spark, events)
    keys = find_bucket_keys(spark.range(_KEYS_TRIED), STATE_PARTITIONS)
    window = events.window_ms
    reach = DedupWindow(before_ms=window, after_ms=window, is_refreshing=False, secret=_SECRET)
    rules = DedupRules(
        by=parse_id_source("key"), before_ms=window, after_ms=window, lateness_ms=window
    )
    results = judge_stream(
        records,
        F.col("id"),
        Judge(reach, 3_600_000),
        make_routes(rules),
        bucket_keys=keys,
        lateness_ms=window,
    )
    return unpack_rows(results, records.schema, is_late=False, bucket_keys=keys)


def _builtin(spark: SparkSession, events: Events) -> DataFrame:
    delay = f"{events.window_ms} milliseconds"
    return (
        _read(spark, events).withWatermark("timestamp", delay).dropDuplicatesWithinWatermark(["id"])
    )


OPERATORS = {"exact": _exact, "builtin": _builtin}
