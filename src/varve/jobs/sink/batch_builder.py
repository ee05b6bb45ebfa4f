"""Builds Kafka batches from the Arrow rows of a write, partition by partition.

Invariant  cells are neither copied nor converted to Python objects. A row that cannot be written
           raises with the reason. Rows of a partition keep their order within a chunk. The records
           of a batch all have timestamps, or none has: those get the time of the commit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from varve.commit_log import LogSettings
from varve.embedded.topic import Packaging
from varve.foundation.errors import InvalidRecord, InvalidRequest, RecordTooLarge
from varve.kernels.hashes import partition_keys
from varve.records import BinaryColumn, EncodedHeaders, HeaderColumns, build_batch_from_columns
from varve.records.columns import Integers

_RECORD_OVERHEAD: Final = 40  # upper bound of the length, delta and count fields of a record
NO_TIMESTAMP: Final = -1

WRITTEN_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "topic")
"""The columns that are written; the log assigns the other columns of a read."""
_MICROS_PER_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class SinkRows:
    """The columns of a chunk, all of the same length.

    Timestamp -1 stands for the time of the commit, partition -1 for no requested partition.
    """

    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: EncodedHeaders | None
    timestamps: Integers
    partitions: Integers

    def __len__(self) -> int:
        return len(self.timestamps)


def make_rows(table: pa.Table, topic: str) -> SinkRows:
    """Converts a chunk; raises InvalidRecord for a row of another topic."""
    columns = {
        name: _combine_chunks(table.column(name))
        for name in table.column_names
        if name in WRITTEN_COLUMNS
    }
    if "topic" in columns:
        _check_topic(columns["topic"], topic)
    return SinkRows(
        _cells(columns["key"]) if "key" in columns else None,
        _cells(columns["value"]) if "value" in columns else None,
        _headers(columns["headers"]) if "headers" in columns else None,
        _timestamps(columns.get("timestamp"), len(table)),
        _partitions(columns.get("partition"), len(table)),
    )


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array


def _check_topic(column: pa.Array, topic: str) -> None:
    others = column.filter(pc.fill_null(pc.not_equal(column, topic), True))
    if len(others):
        raise InvalidRecord(
            f"{len(others)} rows have topic {others[0].as_py()!r:.260}, but the write is to "
            f"{topic}: drop the column, or write each topic separately"
        )


def _flat(buffer: pa.Buffer | None, dtype: type[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(b"" if buffer is None else buffer, dtype)


def _cells(column: pa.Array) -> BinaryColumn:
    wide = column.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    edges = _flat(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    if not len(edges):
        edges = np.zeros(1, np.int64)
    return BinaryColumn(_flat(data, np.uint8), edges, _valid_cells(wide))


def _valid_cells(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    is_valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return is_valid


def _headers(column: pa.Array) -> EncodedHeaders | None:
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(counts.astype(np.int64))
    if not len(ends) or not ends[-1]:
        return None
    pairs = column.flatten()
    if pairs.null_count:
        raise InvalidRecord("a header is null: leave it out of the array")
    keys, values = _cells(pairs.field("key")), _cells(pairs.field("value"))
    return HeaderColumns(ends, keys, values).encode()


def _timestamps(column: pa.Array | None, count: int) -> Integers:
    if column is None:
        return np.full(count, NO_TIMESTAMP, np.int64)
    micros = pc.fill_null(column.cast(pa.int64()), NO_TIMESTAMP).to_numpy(zero_copy_only=False)
    times: Integers = micros.astype(np.int64) // _MICROS_PER_MS
    if column.null_count == 0 and count and times.min() < 0:
        raise _too_old(times)
    valid = _valid_cells(column)
    if valid is not None:
        if times[valid].size and times[valid].min() < 0:
            raise _too_old(times[valid])
        times = np.where(valid, times, NO_TIMESTAMP)
    return times


def _too_old(times: Integers) -> InvalidRecord:
    return InvalidRecord(
        f"timestamp {int(times.min())} ms is before 1970, which Kafka does not allow: set it to "
        "null to use the time of the commit"
    )


def _partitions(column: pa.Array | None, count: int) -> Integers:
    if column is None:
        return np.full(count, -1, np.int64)
    wide = column.cast(pa.int64())
    lowest = pc.min(wide).as_py()
    if lowest is not None and lowest < 0:
        raise InvalidRecord(
            f"a row asks for partition {lowest}; the first is 0, and null leaves the choice to key"
        )
    partitions: Integers = pc.fill_null(wide, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return partitions


# Batches


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """The topic of a write, with the settings that its batches must meet; sent to executors."""

    topic: str
    topic_id: str
    partition_count: int
    settings: LogSettings


class BuiltBatch(NamedTuple):
    """A batch for a partition, without offsets and producer."""

    partition: int
    data: bytes
    record_count: int


class BatchBuilder:
    """Builds the batches of a task; rows without a key take turns from `first_partition` on."""

    def __init__(self, target: SinkTarget, packaging: Packaging, first_partition: int) -> None:
        self._target = target
        self._packaging = packaging
        self._sticky_partition = first_partition

    def build(self, rows: SinkRows) -> Iterator[BuiltBatch]:
        """The batches of a chunk in the order of their partitions."""
        sizes = _row_sizes(rows)
        partitions = self._choose_partitions(rows, sizes)
        self._check_rows(rows, partitions)
        order = np.argsort(partitions, kind="stable")
        ordered, is_untimed = partitions[order], rows.timestamps[order] == NO_TIMESTAMP
        ends = np.cumsum(sizes[order])
        changes = (np.diff(ordered) != 0) | (np.diff(is_untimed.astype(np.int8)) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
        for start, end in pairwise(edges):
            for part in _cut_batches(ends, start, end, self._packaging.payload_bytes):
                yield self._build_batch(rows, order[part], int(ordered[start]))

    def _choose_partitions(self, rows: SinkRows, sizes: Integers) -> Integers:
        """The partition of each row: the requested one, that of its key, or the sticky one."""
        count = self._target.partition_count
        partitions = np.full(len(rows), -1, np.int64)
        if rows.keys is not None:
            keys = rows.keys
            fault = partition_keys(keys.data, keys.starts, keys.sizes, count, partitions)
            if fault >= 0:
                raise InvalidRequest(f"key {fault} is outside the data of its column")
        partitions = np.where(rows.partitions >= 0, rows.partitions, partitions)
        keyless = partitions < 0
        if keyless.any():
            # KIP-480, sticky partitioner: change the partition only when a batch is full.
            turns = np.cumsum(sizes[keyless]) // self._packaging.payload_bytes
            partitions[keyless] = (self._sticky_partition + turns) % count
            self._sticky_partition = int(self._sticky_partition + turns[-1] + 1) % count
        return partitions

    def _check_rows(self, rows: SinkRows, partitions: Integers) -> None:
        target = self._target
        if len(partitions) and partitions.max() >= target.partition_count:
            raise InvalidRecord(
                f"a row asks for partition {int(partitions.max())} of {target.topic}, which has "
                f"{target.partition_count}: 0 to {target.partition_count - 1}"
            )
        null_count = len(rows) if rows.keys is None else int((rows.keys.sizes < 0).sum())
        if target.settings.is_compacted and null_count:
            raise InvalidRecord(
                f"{null_count} rows have no key, which cleanup.policy=compact of {target.topic} "
                "requires: set a key (an empty one is valid), or filter them out"
            )

    def _build_batch(self, rows: SinkRows, chosen: Integers, partition: int) -> BuiltBatch:
        data = build_batch_from_columns(
            None if rows.keys is None else _take(rows.keys, chosen),
            None if rows.values is None else _take(rows.values, chosen),
            rows.timestamps[chosen],
            None if rows.headers is None else _take_headers(rows.headers, chosen),
            codec=self._packaging.codec,
            level=self._packaging.level,
        )
        settings = self._target.settings
        limit = min(settings.max_message_bytes, settings.segment_bytes)
        if len(data) > limit:
            raise RecordTooLarge(
                f"{self._target.topic}-{partition}: a batch of {len(chosen)} records takes "
                f"{len(data)} bytes, more than the topic's {limit} (max.message.bytes, "
                "segment.bytes): write smaller records or raise the setting"
            )
        return BuiltBatch(partition, data, len(chosen))


def _row_sizes(rows: SinkRows) -> Integers:
    """Upper bounds of the bytes of each row."""
    sizes = np.full(len(rows), _RECORD_OVERHEAD, np.int64)
    for cells in (rows.keys, rows.values, None if rows.headers is None else rows.headers.cells):
        if cells is not None:
            sizes += np.maximum(cells.sizes, 0)
    return sizes


def _cut_batches(ends: Integers, start: int, end: int, payload_bytes: int) -> Iterator[slice]:
    """Slices of rows that fit into a batch; a row that does not fit is alone."""
    while start < end:
        start_bytes = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends[:end], start_bytes + payload_bytes, side="right"))
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _take(cells: BinaryColumn, chosen: Integers) -> BinaryColumn:
    return BinaryColumn.at(cells.data, starts=cells.starts[chosen], sizes=cells.sizes[chosen])


def _take_headers(headers: EncodedHeaders, chosen: Integers) -> EncodedHeaders:
    return EncodedHeaders(_take(headers.cells, chosen), headers.counts[chosen])
