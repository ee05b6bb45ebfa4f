"""Filters a compressed batch by a keep-bitmap: decompress, choose, compress.

Invariant  the fields follow the same rules as those of a batch that is filtered where it lies;
           the codec stays, with its default level.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt
from varve.kernels.batch_filter import (
    HEADER_SIZE,
    KEEP_TIMESTAMP,
    RECORD_GROWTH_MAX,
    FilterStatus,
    filter_records,
    seal_batch,
)
from varve.records import compress, decode_header
from varve.records.compression import decompress_to_array
from varve.records.header import DELETE_HORIZON_BIT, BatchHeader, Codec, TimestampType

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FilteredBatch:
    """A batch about to be written: its survivors as they were and as they are stored."""

    source: Bytes
    header: BatchHeader
    records: Bytes
    packed: bytes
    has_horizon: bool
    base_timestamp: int
    max_timestamp: int
    count: int

    @property
    def size(self) -> int:
        return HEADER_SIZE + len(self.packed)

    def write(self, out: Bytes, start: int) -> None:
        """Puts the whole batch into the output, which has the room."""
        end = start + self.size
        out[start + HEADER_SIZE : end] = np.frombuffer(self.packed, np.uint8)
        attributes = self.header.attributes | (DELETE_HORIZON_BIT if self.has_horizon else 0)
        seal_batch(
            self.source,
            0,
            out,
            start,
            end,
            attributes,
            self.base_timestamp,
            self.max_timestamp,
            self.count,
        )


def filter_compressed(
    source: Bytes, *, horizon: int, keep: Bytes, first_bit: int, where: str
) -> FilteredBatch:
    """The batch without the records whose bits are not set; raises Corrupt when it is damaged.

    `horizon` is its new delete horizon, or KEEP_TIMESTAMP.
    """
    header = decode_header(memoryview(source), where=where)
    payload = decompress_to_array(
        Codec(header.codec), memoryview(source)[HEADER_SIZE:], where=where
    )
    has_horizon = horizon != KEEP_TIMESTAMP or header.has_delete_horizon
    if horizon == KEEP_TIMESTAMP and has_horizon:
        horizon = header.base_timestamp
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    room = payload.size + header.records_count * RECORD_GROWTH_MAX
    records = np.empty(room, np.uint8)
    status, end, count, base_timestamp, largest = filter_records(
        payload,
        0,
        payload.size,
        header.records_count,
        header.base_timestamp,
        header.max_timestamp,
        is_append_time,
        horizon,
        keep,
        first_bit,
        records,
        0,
    )
    if status != FilterStatus.DONE:
        raise Corrupt(f"{where}: the records cannot be read")
    return FilteredBatch(
        source,
        header,
        records[:end],
        compress(Codec(header.codec), memoryview(records)[:end]),
        has_horizon,
        base_timestamp,
        header.max_timestamp if is_append_time else largest,
        count,
    )
