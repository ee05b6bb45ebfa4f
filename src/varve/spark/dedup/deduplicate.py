"""A stream of records as a stream of those that are new: its plan, and its stateful operator.

    records -> pack (Python) -> shuffle by bucket -> judge (Python, state) -> shuffle by partition
    -> unpack in order (Python) -> records

Spark hands rows to Python's stateful operators one by one, at microseconds each. Packed, a few
thousand rows are one: an Arrow batch as bytes, with the folded ids beside the columns.

Invariant  what leaves `unpack_rows` has, of each source partition, ascending offsets, and is what
           was packed, cell by cell. Between the two shuffles there are few rows, each thousands of
           records.
Cache      a worker process keeps the windows of the buckets it saw, up to _CACHE_BYTES. They only
           spare reads: each is compared with the state store before it is used.
Memory     the rows of a batch that fall to a bucket are held until they are judged.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd  # type: ignore[import-untyped]  # its stubs are not installed
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from varve.dedup.kernels.id_table import deal_ids
from varve.dedup.kernels.id_words import NO_ID, fold_ids
from varve.dedup.rules import Counts, IdKind, IdSource, Route, Verdicts
from varve.spark.dedup.state import (
    BatchTime,
    DedupWindow,
    FoldedIds,
    IdBatch,
    IdSet,
    Judge,
)

Numbers = npt.NDArray[np.int64]

BUCKET: Final = "bucket"
ROWS: Final = "rows"
PARTITION: Final = "partition"
PACKED_TYPES: Final = f"{BUCKET} int, {ROWS} binary"
ID: Final = "_id"
NO_TIME: Final = -(1 << 62)
"""The time of a record that has none: before every watermark."""

TIME: Final = "_time"
_FIRST, _SECOND, _KIND = "_word0", "_word1", "_kind"
_OWN: Final = (_FIRST, _SECOND, _KIND, TIME)
_PACKED_BYTES: Final = 4 << 20
_WAITING_BYTES: Final = 64 << 20
_UNPACKED_ROWS: Final = 10_000
_UNPACKED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Packer:
    """Splits rows by the bucket of their id; runs on executors."""

    bucket_keys: tuple[int, ...]
    secret: tuple[int, int]

    def pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of PACKED_TYPES for about _PACKED_BYTES of a bucket."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            waiting.append(self._fold(batch))
            size += batch.nbytes
            if size >= min(_PACKED_BYTES * len(self.bucket_keys), _WAITING_BYTES):
                yield from self._deal(waiting)
                waiting, size = [], 0
        if waiting:
            yield from self._deal(waiting)

    def _fold(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column(ID)
        count = batch.num_rows
        words = np.empty((count, 2), np.uint64)
        kinds = np.where(ids.is_null().to_numpy(zero_copy_only=False), NO_ID, 0).astype(np.uint8)
        _, ends, data = ids.buffers()
        payload = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        offsets = np.frombuffer(ends, np.int32, count + 1, 4 * ids.offset)
        k0, k1 = (np.uint64(word) for word in self.secret)
        fold_ids(payload, offsets, k0, k1, words, kinds)
        times = pc.fill_null(batch.column(TIME), NO_TIME)
        own = {
            _FIRST: pa.array(words[:, 0]),
            _SECOND: pa.array(words[:, 1]),
            _KIND: pa.array(kinds),
        }
        kept = {
            field.name: batch.column(place)
            for place, field in enumerate(batch.schema)
            if field.name not in (ID, TIME)
        }
        return pa.RecordBatch.from_pydict({**kept, **own, TIME: times})

    def _deal(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = pa.concat_batches(batches)
        ids = read_ids(batch)
        buckets = np.zeros(ids.count, np.uint8)
        k0, k1 = (np.uint64(word) for word in self.secret)
        deal_ids(ids.words, ids.kinds, k0, k1, len(self.bucket_keys), buckets)
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=len(self.bucket_keys)))
        start = 0
        for key, end in zip(self.bucket_keys, ends.tolist(), strict=True):
            if end > start:
                yield _row(key, encode_batch(batch.take(pa.array(order[start:end]))))
            start = end


def _row(bucket: int, data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([bucket], pa.int32()), pa.array([data], pa.binary())], names=[BUCKET, ROWS]
    )


def read_ids(batch: pa.RecordBatch) -> FoldedIds:
    """The folded ids and times of packed rows."""
    words = np.empty((batch.num_rows, 2), np.uint64)
    words[:, 0] = batch.column(_FIRST).to_numpy()
    words[:, 1] = batch.column(_SECOND).to_numpy()
    return FoldedIds(
        words, batch.column(_KIND).to_numpy().copy(), batch.column(TIME).to_numpy().copy()
    )


def read_locations(batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Partition and offset of packed rows."""
    return (
        batch.column(PARTITION).to_numpy().astype(np.int64),
        batch.column("offset").to_numpy().astype(np.int64),
    )


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_batch(data: Any) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a column of packed ones, by partition and offset."""
    packed = [decode_batch(cell.as_buffer()) for batch in batches for cell in batch.column(ROWS)]
    if not packed:
        return
    partitions, offsets = (
        np.concatenate(part) for part in zip(*map(read_locations, packed), strict=True)
    )
    owners = np.repeat(np.arange(len(packed)), [batch.num_rows for batch in packed])
    rows = np.concatenate([np.arange(batch.num_rows) for batch in packed])
    order = np.lexsort((offsets, partitions))
    row_bytes = sum(batch.nbytes for batch in packed) // len(order) + 1
    step = max(1, min(_UNPACKED_ROWS, _UNPACKED_BYTES // row_bytes))
    for start in range(0, len(order), step):
        part = order[start : start + step]
        yield _gather(packed, owners[part], rows[part])


def _gather(batches: Sequence[pa.RecordBatch], owners: Numbers, rows: Numbers) -> pa.RecordBatch:
    """Row rows[i] of batch owners[i], one after the other; no more than these are copied."""
    by_owner = np.argsort(owners, kind="stable")
    parts = [
        batches[owner].take(pa.array(rows[by_owner[owners[by_owner] == owner]]))
        for owner in np.unique(owners).tolist()
    ]
    if len(parts) == 1:
        return parts[0]
    back = np.empty(len(rows), np.int64)
    back[by_owner] = np.arange(len(rows))
    return pa.concat_batches(parts).take(pa.array(back))


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition."""
    partitions = batch.column(PARTITION).to_numpy()
    for partition in np.unique(partitions).tolist():
        yield partition, batch.filter(pa.array(partitions == partition))


def choose(batch: pa.RecordBatch, chosen: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The chosen rows of a packed batch without the folded ids."""
    names = [name for name in batch.schema.names if name not in _OWN]
    return batch.select(names).filter(pa.array(chosen))


# The stateful operator


COUNTS: Final = ("kept", "duplicates", "late", "future", "no_id")
"""Columns of counts, in the order of Verdict."""
LATE: Final = "is_late"
RESULT_TYPES: Final = f"{PARTITION} int, {LATE} boolean, {ROWS} binary, " + ", ".join(
    f"{name} long" for name in COUNTS
)
_CACHE_BYTES: Final = 2 << 30


class IdSetCache:
    """Windows that a worker process holds between batches, the least used dropped first."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._windows: OrderedDict[tuple[DedupWindow, int], IdSet] = OrderedDict()

    def take(self, reach: DedupWindow, bucket: int) -> IdSet:
        """The window, or a new one; it is not in the cache until it is given back."""
        return self._windows.pop((reach, bucket), None) or IdSet(reach)

    def give(self, reach: DedupWindow, bucket: int, window: IdSet) -> None:
        self._windows[reach, bucket] = window
        size = sum(id_set.size for id_set in self._windows.values())
        while size > self._size_max:
            size -= self._windows.popitem(last=False)[1].size


_cache = IdSetCache(_CACHE_BYTES)  # of this process: Spark makes a processor for every batch


class SparkChunks:
    """The state of the bucket that Spark has chosen for this processor."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", "data binary")
        self._chunks = handle.getMapState("chunks", "number long", "data binary")

    def find_head(self) -> bytes | None:
        row = self._head.get()
        return None if row is None else bytes(row[0])

    def put_head(self, data: bytes) -> None:
        self._head.update((data,))

    def find_chunk(self, number: int) -> bytes | None:
        row = self._chunks.getValue((number,))
        return None if row is None else bytes(row[0])

    def put_chunk(self, number: int, data: bytes) -> None:
        self._chunks.updateValue((number,), (data,))

    def remove_chunk(self, number: int) -> None:
        self._chunks.removeKey((number,))


class DedupProcessor(StatefulProcessor):
    """Judges the rows of one bucket after the other."""

    def __init__(self, judge: Judge, routes: Verdicts) -> None:
        self._judge = judge
        self._routes = routes

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkChunks(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Spark passes the arguments by these names; one row of RESULT_TYPES comes for each group
        of rows to forward, and one with the counts."""
        bucket = int(key[0])
        batches = [decode_batch(cell) for frame in rows for cell in frame[ROWS]]
        moment = BatchTime(
            timerValues.getCurrentWatermarkInMs(), timerValues.getCurrentProcessingTimeInMs()
        )
        reach = self._judge.reach
        window = _cache.take(reach, bucket)
        arrivals = IdBatch.join(
            [IdBatch(read_ids(batch), *read_locations(batch)) for batch in batches]
        )
        verdicts = self._judge.judge(arrivals, moment, window, self._store)
        _cache.give(reach, bucket, window)
        yield make_result(batches, verdicts, self._routes)

    def close(self) -> None:
        """Nothing is open."""


def make_result(
    batches: Sequence[pa.RecordBatch], verdicts: Verdicts, routes: Verdicts
) -> pd.DataFrame:
    """Rows of RESULT_TYPES: the counts, then the forwarded and the side rows of each batch."""
    counts = Counts.of(verdicts)
    found: list[tuple[Any, ...]] = [(-1, False, None, *(getattr(counts, name) for name in COUNTS))]
    none = (0,) * len(COUNTS)
    ends = np.cumsum([batch.num_rows for batch in batches])
    for batch, part in zip(batches, np.split(verdicts, ends[:-1]), strict=True):
        found += (
            (partition, is_late, encode_batch(rows), *none)
            for is_late, route in ((False, Route.ON), (True, Route.ASIDE))
            for partition, rows in split_by_partition(choose(batch, routes[part] == route))
        )
    return pd.DataFrame(found, columns=[PARTITION, LATE, ROWS, *COUNTS])


# The plan of a stream


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
"""Settings of the session while a query starts."""

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
            column = F.get_json_object(text, path)
            # What is no UTF-8 is read as U+FFFD: different ids would become one.
            return F.when(F.is_valid_utf8(text) | ~column.contains("\ufffd"), column).cast("binary")


def judge_stream(
    records: DataFrame,
    identity: Column,
    judge: Judge,
    routes: Verdicts,
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
        DedupProcessor(judge, routes), RESULT_TYPES, outputMode="Append", timeMode="EventTime"
    )
    return judged.observe(METRICS, *(F.sum(name).alias(name) for name in COUNTS))


def unpack_rows(
    results: DataFrame, schema: StructType, *, is_late: bool, bucket_keys: Sequence[int]
) -> DataFrame:
    """The forwarded records, or those for the side topic."""
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
    frame = spark_range.groupBy(place).agg(F.min("id").cast("int").alias("id")).orderBy("place")
    keys = tuple(row["id"] for row in frame.collect())
    assert len(keys) == count
    return keys
