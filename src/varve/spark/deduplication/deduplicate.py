"""The streaming plan of a deduplication, and its stateful operator.

    records -> pack (Python) -> shuffle by bucket -> judge (Python, state) -> shuffle by partition
    -> unpack in order (Python) -> records

Spark hands rows to Python's stateful operators one by one, at microseconds each. Packed, a few
thousand rows are one row: an Arrow batch as bytes, with the folded ids as further columns.

Invariant  `unpack_rows` returns the records of each source partition in the order of offsets, cell
           by cell as they were packed. Few rows are shuffled, each with thousands of records.
Cache      a worker process caches the id sets of its buckets, up to _CACHE_BYTES. The cache only
           saves reads: an id set is compared with the state store before it is used.
Memory     all rows of a batch in one bucket are in memory until they are judged.
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
from varve.spark.deduplication.state import (
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
_ADDED_COLUMNS: Final = (_FIRST, _SECOND, _KIND, TIME)
_PACKED_BYTES: Final = 4 << 20
_PENDING_BYTES_MAX: Final = 64 << 20
_UNPACKED_ROWS: Final = 10_000
"""As `spark.sql.execution.arrow.maxRecordsPerBatch` by default."""
_UNPACKED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Packer:
    """Splits rows by the bucket of their id; runs on executors."""

    bucket_keys: tuple[int, ...]
    secret: tuple[int, int]

    def pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of PACKED_TYPES for about _PACKED_BYTES of a bucket."""
        pending: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            pending.append(self._fold(batch))
            size += batch.nbytes
            if size >= min(_PACKED_BYTES * len(self.bucket_keys), _PENDING_BYTES_MAX):
                yield from self._split_by_bucket(pending)
                pending, size = [], 0
        if pending:
            yield from self._split_by_bucket(pending)

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
        added = {
            _FIRST: pa.array(words[:, 0]),
            _SECOND: pa.array(words[:, 1]),
            _KIND: pa.array(kinds),
        }
        kept = {
            field.name: batch.column(index)
            for index, field in enumerate(batch.schema)
            if field.name not in (ID, TIME)
        }
        return pa.RecordBatch.from_pydict({**kept, **added, TIME: times})

    def _split_by_bucket(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
    """The records of packed rows, in the order of partition and offset."""
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
    """Row rows[i] of batch owners[i] for each i; copies these rows only."""
    by_owner = np.argsort(owners, kind="stable")
    parts = [
        batches[owner].take(pa.array(rows[by_owner[owners[by_owner] == owner]]))
        for owner in np.unique(owners).tolist()
    ]
    if len(parts) == 1:
        return parts[0]
    positions = np.empty(len(rows), np.int64)
    positions[by_owner] = np.arange(len(rows))
    return pa.concat_batches(parts).take(pa.array(positions))


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition."""
    partitions = batch.column(PARTITION).to_numpy()
    for partition in np.unique(partitions).tolist():
        yield partition, batch.filter(pa.array(partitions == partition))


def choose(batch: pa.RecordBatch, chosen: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The chosen rows of a packed batch, without the columns that packing added."""
    names = [name for name in batch.schema.names if name not in _ADDED_COLUMNS]
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
    """Id sets that a worker process keeps between batches; drops the least recently used first."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._id_sets: OrderedDict[tuple[DedupWindow, int], IdSet] = OrderedDict()

    def take(self, window: DedupWindow, bucket: int) -> IdSet:
        """Removes the id set of a bucket from the cache, or creates one; `give` puts it back."""
        return self._id_sets.pop((window, bucket), None) or IdSet(window)

    def give(self, window: DedupWindow, bucket: int, ids: IdSet) -> None:
        self._id_sets[window, bucket] = ids
        size = sum(id_set.size for id_set in self._id_sets.values())
        while size > self._size_max:
            size -= self._id_sets.popitem(last=False)[1].size


_cache = IdSetCache(_CACHE_BYTES)  # of the process: Spark creates a processor for every batch


class SparkChunks:
    """Spark's state of the bucket that is processed now, as a ChunkStore."""

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
    """Judges the rows of each bucket."""

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
        """Yields rows of RESULT_TYPES: the counts, and one for each group of rows to forward.

        Spark passes the arguments by these names.
        """
        bucket = int(key[0])
        batches = [decode_batch(cell) for frame in rows for cell in frame[ROWS]]
        batch_time = BatchTime(
            timerValues.getCurrentWatermarkInMs(), timerValues.getCurrentProcessingTimeInMs()
        )
        window = self._judge.window
        ids = _cache.take(window, bucket)
        arrivals = IdBatch.join(
            [IdBatch(read_ids(batch), *read_locations(batch)) for batch in batches]
        )
        verdicts = self._judge.judge(arrivals, batch_time, ids, self._store)
        _cache.give(window, bucket, ids)
        yield make_result(batches, verdicts, self._routes)

    def close(self) -> None:
        """Does nothing: Spark closes the state."""


def make_result(
    batches: Sequence[pa.RecordBatch], verdicts: Verdicts, routes: Verdicts
) -> pd.DataFrame:
    """Rows of RESULT_TYPES: the counts, then the forwarded and the side rows of each batch."""
    counts = Counts.of(verdicts)
    results: list[tuple[Any, ...]] = [
        (-1, False, None, *(getattr(counts, name) for name in COUNTS))
    ]
    no_counts = (0,) * len(COUNTS)
    ends = np.cumsum([batch.num_rows for batch in batches])
    for batch, part in zip(batches, np.split(verdicts, ends[:-1]), strict=True):
        results += (
            (partition, is_late, encode_batch(rows), *no_counts)
            for is_late, route in ((False, Route.OUTPUT), (True, Route.SIDE))
            for partition, rows in split_by_partition(choose(batch, routes[part] == route))
        )
    return pd.DataFrame(results, columns=[PARTITION, LATE, ROWS, *COUNTS])


# The plan of a stream


METRICS: Final = "varve-dedup"
"""The name under which a batch's counts are observed."""

STATE_CONF: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A batch without records would change nothing: there are no timers.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A packed row may have megabytes; by default an Arrow batch has up to 10,000 rows.
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
            path = "$" + "".join(f"['{part}']" for part in source.name.split("."))
            text = F.col("value").cast("string")
            column = F.get_json_object(text, path)
            # Invalid UTF-8 is read as U+FFFD: different ids would become equal.
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
    # Records from the future or without a timestamp do not advance the watermark.
    event_time = F.when(timestamp <= latest, timestamp).otherwise(F.timestamp_millis(F.lit(0)))
    packed = (
        records.withColumn(_EVENT_TIME, event_time)
        .withWatermark(_EVENT_TIME, f"{lateness_ms} milliseconds")
        .withColumn(ID, identity)
        .withColumn(TIME, F.unix_millis("timestamp"))
        .drop(_EVENT_TIME)
        .mapInArrow(Packer(tuple(bucket_keys), judge.window.secret).pack, PACKED_TYPES)
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
    target = F.get(keys, F.pmod(F.col(PARTITION), F.lit(len(bucket_keys))))
    return (
        results.where(F.col(ROWS).isNotNull() & (F.col(LATE) == is_late))
        .select(ROWS, target.alias("target"))
        .repartition(len(bucket_keys), "target")
        .select(ROWS)
        .mapInArrow(unpack, schema)
    )


def find_bucket_keys(spark_range: DataFrame, count: int) -> tuple[int, ...]:
    """A key for each of `count` partitions, to which Spark's hash assigns it.

    `spark_range` has many numbers in its column `id`.
    """
    partition = F.pmod(F.hash(F.col("id").cast("int")), F.lit(count)).alias("partition")
    frame = (
        spark_range.groupBy(partition).agg(F.min("id").cast("int").alias("id")).orderBy("partition")
    )
    keys = tuple(row["id"] for row in frame.collect())
    assert len(keys) == count
    return keys
