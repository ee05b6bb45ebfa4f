"""A stream of records as a stream of those that are new: the plan that Spark runs.

    records -> pack (Python) -> shuffle by bucket -> judge (Python, state) -> shuffle by partition
    -> unpack in order (Python) -> records

Invariant  what leaves `unpack_rows` has, of each source partition, ascending offsets. Between the
           two shuffles there are few rows, each thousands of records.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from varve.dedup.rules import IdKind, IdSource
from varve.spark.dedup.judge import Forwarding, Judge
from varve.spark.dedup.operator import COUNTS, LATE, RESULT_TYPES, DedupProcessor
from varve.spark.dedup.rows import BUCKET, ID, PACKED_TYPES, PARTITION, ROWS, TIME, Packer, unpack

METRICS: Final = "varve-dedup"
"""The name under which a batch's counts are observed."""

STATE_CONF: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A batch without records would move nothing: nothing waits for a timer.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A packed row may have megabytes, and 10,000 of them would be one Arrow batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}
"""What the session of a deduplication is told."""

_EVENT_TIME: Final = "_event_time"


def make_id(source: IdSource) -> Column:
    """The id of a record as bytes, null where it has none."""
    match source.kind:
        case IdKind.KEY:
            return F.col("key")
        case IdKind.HEADER:
            named = F.filter("headers", lambda header: header["key"] == source.name)
            return F.try_element_at(named, F.lit(-1))["value"]
        case IdKind.FIELD:
            path = "$" + "".join(f"['{one}']" for one in source.name.split("."))
            text = F.col("value").cast("string")
            found = F.get_json_object(text, path)
            # What is no UTF-8 is read as U+FFFD: different ids would become one.
            return F.when(F.is_valid_utf8(text) | ~found.contains("\ufffd"), found).cast("binary")


def judge_stream(
    records: DataFrame,
    identity: Column,
    judge: Judge,
    forwarding: Forwarding,
    *,
    bucket_keys: Sequence[int],
    lateness_ms: int,
) -> DataFrame:
    """Rows of RESULT_TYPES; the counts of each batch are observed as METRICS."""
    timestamp = F.col("timestamp")
    latest = F.current_timestamp() + F.expr(f"interval {judge.max_future_ms} milliseconds")
    # A record from the future moves no clock, and neither does one without a time.
    event_time = F.when(timestamp <= latest, timestamp).otherwise(F.timestamp_millis(F.lit(0)))
    packed = (
        records.withColumn(_EVENT_TIME, event_time)
        .withWatermark(_EVENT_TIME, f"{lateness_ms} milliseconds")
        .withColumn(ID, identity)
        .withColumn(TIME, F.unix_millis("timestamp"))
        .drop(_EVENT_TIME)
        .mapInArrow(Packer(tuple(bucket_keys), judge.reach.secret).pack, PACKED_TYPES)
    )
    judged = packed.groupBy(BUCKET).transformWithStateInPandas(
        DedupProcessor(judge, forwarding), RESULT_TYPES, outputMode="Append", timeMode="EventTime"
    )
    return judged.observe(METRICS, *(F.sum(name).alias(name) for name in COUNTS))


def unpack_rows(
    results: DataFrame, schema: StructType, *, is_late: bool, bucket_keys: Sequence[int]
) -> DataFrame:
    """The records that go on, or those that go aside."""
    keys = F.array(*map(F.lit, bucket_keys))
    place = F.get(keys, F.pmod(F.col(PARTITION), F.lit(len(bucket_keys))))
    return (
        results.where(F.col(ROWS).isNotNull() & (F.col(LATE) == is_late))
        .select(ROWS, place.alias("place"))
        .repartition(len(bucket_keys), "place")
        .select(ROWS)
        .mapInArrow(unpack, schema)
    )


def find_bucket_keys(spark_range: DataFrame, count: int) -> tuple[int, ...]:
    """Numbers of which Spark's hash sends one to each of `count` partitions.

    `spark_range` has many numbers as its column `id`.
    """
    place = F.pmod(F.hash(F.col("id").cast("int")), F.lit(count)).alias("place")
    found = spark_range.groupBy(place).agg(F.min("id").cast("int").alias("id")).orderBy("place")
    keys = tuple(row["id"] for row in found.collect())
    assert len(keys) == count
    return keys
