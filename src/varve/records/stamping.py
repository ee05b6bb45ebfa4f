"""What a log changes in a batch it was handed: offsets, epoch, timestamps, codec.

Invariant  offsets and epoch lie outside the CRC; every other change comes with a new one.
"""

import struct

import numpy as np

from varve.foundation.errors import InvalidRequest
from varve.kernels.crc import crc32c
from varve.records.batch import Batch
from varve.records.building import LONG_MAX, build_batch_from_columns
from varve.records.header import (
    CRC_START,
    LOG_APPEND_TIME_BIT,
    Codec,
    TimestampType,
    decode_header,
)

_BASE_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_LEADER_EPOCH_POSITION = 12
_CRC_POSITION = 17
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP_POSITION = 35


def assign_offsets(batch: bytes | bytearray, base_offset: int, leader_epoch: int) -> bytearray:
    """The batch at another offset and epoch; a bytearray is changed in place, bytes are copied."""
    header = decode_header(batch)
    if not 0 <= base_offset <= LONG_MAX - header.last_offset_delta:
        raise InvalidRequest(
            f"base offset {base_offset} with last offset delta {header.last_offset_delta} is"
            f" outside 0 to {LONG_MAX}"
        )
    if not -(2**31) <= leader_epoch < 2**31:
        raise InvalidRequest(f"leader epoch {leader_epoch} is no 32-bit number")
    stamped = _writable(batch)
    _BASE_OFFSET.pack_into(stamped, 0, base_offset)
    _INT32.pack_into(stamped, _LEADER_EPOCH_POSITION, leader_epoch)
    return stamped


def with_log_append_time(batch: bytes | bytearray, now_ms: int) -> bytearray:
    """The batch under LogAppendTime: flag, largest timestamp and CRC; deltas stay as sent."""
    attributes = decode_header(batch).attributes | LOG_APPEND_TIME_BIT
    return _with_timestamps(batch, attributes, now_ms)


def with_max_timestamp(batch: bytes | bytearray, max_timestamp: int) -> bytearray:
    """The batch under CreateTime with the largest timestamp its records really have."""
    attributes = decode_header(batch).attributes & ~LOG_APPEND_TIME_BIT
    return _with_timestamps(batch, attributes, max_timestamp)


def rebuild_batch(
    batch: bytes | bytearray | memoryview,
    *,
    codec: Codec,
    level: int | None = None,
    timestamp_type: TimestampType | None = None,
    log_append_time: int | None = None,
    where: str = "batch",
) -> bytes:
    """The batch with another codec and consecutive offsets; all other fields are kept.

    Without a timestamp type that of the batch stays. Under LogAppendTime the producer's deltas stay
    as sent, and a batch that has its append time keeps it unless another is given.
    """
    source = Batch(batch, where)
    header = source.header
    was_appended = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    chosen = header.timestamp_type if timestamp_type is None else timestamp_type
    # Turned into CreateTime, the append time is what the records' timestamps have been so far.
    is_kept = chosen is TimestampType.LOG_APPEND_TIME
    columns = source.columns_as_sent() if is_kept else source.columns()
    if log_append_time is None:
        log_append_time = header.max_timestamp if was_appended else -1
    return build_batch_from_columns(
        columns.keys_column(),
        columns.values_column(),
        columns.timestamps,
        columns.headers_column(),
        base_offset=header.base_offset,
        codec=codec,
        level=level,
        timestamp_type=chosen,
        log_append_time=log_append_time,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon_ms=header.delete_horizon_ms,
    )


def _with_timestamps(batch: bytes | bytearray, attributes: int, max_timestamp: int) -> bytearray:
    if not -1 <= max_timestamp <= LONG_MAX:
        raise InvalidRequest(f"largest timestamp {max_timestamp} is outside -1 to {LONG_MAX}")
    stamped = _writable(batch)
    _INT16.pack_into(stamped, _ATTRIBUTES_POSITION, attributes)
    _BASE_OFFSET.pack_into(stamped, _MAX_TIMESTAMP_POSITION, max_timestamp)
    crc = crc32c(np.frombuffer(stamped, np.uint8), CRC_START, len(stamped))
    _UINT32.pack_into(stamped, _CRC_POSITION, crc)
    return stamped


def _writable(batch: bytes | bytearray) -> bytearray:
    return batch if isinstance(batch, bytearray) else bytearray(batch)
