"""Rows of a stream on their way through a stateful operator: many in one, and out again.

Spark hands rows to Python's stateful operators one by one, at microseconds each. Packed, a few
thousand rows are one: an Arrow batch as bytes, with the folded ids beside the columns.

Invariant  what comes out of `unpack` are the columns that went into `pack`, cell by cell.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from varve.kernels.window_ids import NO_ID, fold_ids
from varve.kernels.window_table import deal_ids
from varve.spark.dedup.state import FoldedIds

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


def read_places(batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
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
        np.concatenate(part) for part in zip(*map(read_places, packed), strict=True)
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
