"""Filters a compressed batch by a keep-bitmap: decompress, choose, compress.

Invariant  the fields follow the same rules as those of a batch that is filtered where it lies;
           the codec stays, with its default level.
"""

import struct
from typing import Final, NamedTuple

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
from varve.records import compress
from varve.records.compression import decompress_to_array
from varve.records.header import CODEC_MASK, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, Codec

Bytes = npt.NDArray[np.uint8]

# Attributes, base and max timestamp, record count: all that filtering needs of a header.
_FIELDS: Final = struct.Struct(">21xh4xqq14xi")


class FilteredBatch(NamedTuple):
    """A batch about to be written: its survivors as they were and as they are stored.

    A tuple, because one is made for every compressed batch.
    """

    source: Bytes
    records: Bytes
    packed: bytes
    attributes: int
    base_timestamp: int
    max_timestamp: int
    record_count: int

    @property
    def size(self) -> int:
        return HEADER_SIZE + len(self.packed)

    def write(self, out: Bytes, start: int) -> None:
        """Puts the whole batch into the output, which has the room."""
        source, _, packed, attributes, base_timestamp, max_timestamp, count = self
        end = start + HEADER_SIZE + len(packed)
        out.data[start + HEADER_SIZE : end] = packed
        seal_batch(source, 0, out, start, end, attributes, base_timestamp, max_timestamp, count)


def filter_compressed(
    source: Bytes, *, horizon: int, keep: Bytes, first_bit: int, where: str
) -> FilteredBatch:
    """The batch without the records whose bits are not set; raises Corrupt when it is damaged.

    `horizon` is its new delete horizon, or KEEP_TIMESTAMP.
    """
    data = source.data
    attributes, base_timestamp, max_timestamp, count = _FIELDS.unpack_from(data)
    codec = Codec(attributes & CODEC_MASK)
    payload = decompress_to_array(codec, data[HEADER_SIZE:], where=where)
    if horizon != KEEP_TIMESTAMP:
        attributes |= DELETE_HORIZON_BIT
    elif attributes & DELETE_HORIZON_BIT:
        horizon = base_timestamp
    is_append_time = attributes & LOG_APPEND_TIME_BIT != 0
    records = np.empty(payload.size + count * RECORD_GROWTH_MAX, np.uint8)
    status, end, kept, base_timestamp, largest = filter_records(
        payload,
        0,
        payload.size,
        count,
        base_timestamp,
        max_timestamp,
        is_append_time,
        horizon,
        keep,
        first_bit,
        records,
        0,
    )
    if status != FilterStatus.DONE:
        raise Corrupt(f"{where}: the records cannot be read")
    survivors = records[:end]
    return FilteredBatch(
        source,
        survivors,
        compress(codec, survivors.data),
        attributes,
        base_timestamp,
        max_timestamp if is_append_time else largest,
        kept,
    )
