"""Rows cut into Kafka batches, partition by partition, and such batches made part of a transaction.

Invariant  rows of one partition keep their order within a chunk. A batch has timestamps of its own,
           or none in any record: those are given by one number of its header at the commit.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from varve.commit_log import LogSettings
from varve.embedded.packing import Packaging
from varve.foundation.errors import InvalidRecord, InvalidRequest, RecordTooLarge
from varve.jobs.sink.rows import NO_TIMESTAMP, SinkRows
from varve.kernels.crc import crc32c
from varve.kernels.hashes import partition_keys
from varve.records import BinaryColumn, EncodedHeaders, build_batch_from_columns
from varve.records.columns import Integers
from varve.records.header import CRC_START, TRANSACTIONAL_BIT

_RECORD_OVERHEAD: Final = 40  # the most that the numbers of a record take besides its bytes
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21
_TIMES: Final = struct.Struct(">qq")  # base and largest
_TIMES_POSITION: Final = 27
_PRODUCER: Final = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION: Final = 43


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """The topic as writers must know it; travels to executors."""

    topic: str
    topic_id: str
    partition_count: int
    settings: LogSettings


class BuiltBatch(NamedTuple):
    """A batch for a partition, with neither offsets nor producer."""

    partition: int
    data: bytes
    record_count: int


class BatchBuilder:
    """Makes the batches of one task; keyless rows go round from `first_partition` on."""

    def __init__(self, target: SinkTarget, packaging: Packaging, first_partition: int) -> None:
        self._target = target
        self._packaging = packaging
        self._resting = first_partition

    def build(self, rows: SinkRows) -> Iterator[BuiltBatch]:
        """The batches of a chunk in the order of their partitions."""
        sizes = _sizes_of(rows)
        partitions = self._choose(rows, sizes)
        self._check(rows, partitions)
        order = np.argsort(partitions, kind="stable")
        chosen, has_none = partitions[order], rows.timestamps[order] == NO_TIMESTAMP
        ends = np.cumsum(sizes[order])
        changes = (np.diff(chosen) != 0) | (np.diff(has_none.astype(np.int8)) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
        for start, end in pairwise(edges):
            for part in _cut(ends, start, end, self._packaging.payload_bytes):
                yield self._build_one(rows, order[part], int(chosen[start]))

    def _choose(self, rows: SinkRows, sizes: Integers) -> Integers:
        """The partition of every row: the one asked for, the key's, or the one whose turn it is."""
        count = self._target.partition_count
        found = np.full(len(rows), -1, np.int64)
        if rows.keys is not None:
            keys = rows.keys
            fault = partition_keys(keys.data, keys.starts, keys.sizes, count, found)
            if fault >= 0:
                raise InvalidRequest(f"key {fault} lies outside its column")
        found = np.where(rows.partitions >= 0, rows.partitions, found)
        keyless = found < 0
        if keyless.any():
            # As Kafka's producer does: stay until a batch is full, so that batches are big.
            turns = np.cumsum(sizes[keyless]) // self._packaging.payload_bytes
            found[keyless] = (self._resting + turns) % count
            self._resting = int(self._resting + turns[-1] + 1) % count
        return found

    def _check(self, rows: SinkRows, partitions: Integers) -> None:
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
                "demands: set a key (an empty one will do), or filter them out"
            )

    def _build_one(self, rows: SinkRows, chosen: Integers, partition: int) -> BuiltBatch:
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
                f"{self._target.topic}-{partition}: a batch of {len(chosen)} record takes "
                f"{len(data)} bytes, more than the topic's {limit} (max.message.bytes, "
                "segment.bytes): write smaller records or raise the setting"
            )
        return BuiltBatch(partition, data, len(chosen))


def _sizes_of(rows: SinkRows) -> Integers:
    """At most so many bytes does each row take."""
    sizes = np.full(len(rows), _RECORD_OVERHEAD, np.int64)
    for cells in (rows.keys, rows.values, None if rows.headers is None else rows.headers.cells):
        if cells is not None:
            sizes += np.maximum(cells.sizes, 0)
    return sizes


def _cut(ends: Integers, start: int, end: int, payload_bytes: int) -> Iterator[slice]:
    """Stretches of rows that fit into a batch; a row that does not fit is alone."""
    while start < end:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends[:end], before + payload_bytes, side="right"))
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _take(cells: BinaryColumn, chosen: Integers) -> BinaryColumn:
    return BinaryColumn.at(cells.data, starts=cells.starts[chosen], sizes=cells.sizes[chosen])


def _take_headers(headers: EncodedHeaders, chosen: Integers) -> EncodedHeaders:
    return EncodedHeaders(_take(headers.cells, chosen), headers.counts[chosen])


def join_transaction(
    batch: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, now_ms: int
) -> bytearray:
    """The batch as one of a producer's transaction, changed in place.

    Records without a timestamp get this one.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, attributes | TRANSACTIONAL_BIT)
    if _TIMES.unpack_from(batch, _TIMES_POSITION)[1] == NO_TIMESTAMP:
        _TIMES.pack_into(batch, _TIMES_POSITION, now_ms, now_ms)
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    crc = crc32c(np.frombuffer(batch, np.uint8), CRC_START, len(batch))
    _CRC.pack_into(batch, _CRC_POSITION, crc)
    return batch
