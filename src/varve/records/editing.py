"""Edits encoded batches: offsets, leader epoch, timestamps, producer, codec.

Invariant  offsets and leader epoch lie outside the CRC; every other change updates it. A batch is
           changed completely or, if a value does not fit its field, not at all.
"""

from collections.abc import Sequence
from typing import NamedTuple

from varve.foundation.errors import InvalidRequest
from varve.kernels.batch_layout import CRC_START, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from varve.kernels.crc import crc32c_of
from varve.records.batch import Batch
from varve.records.batch_format import (
    HEADER,
    BatchHeader,
    Codec,
    TimestampType,
    decode_header,
    increment_sequence,
)
from varve.records.building import LONG_MAX, build_batch_of, fields_of

_NO_TIMESTAMP = -1
_FIRST_FIELD_IN_CRC = BatchHeader._fields.index("attributes")
_RANGES = {
    "attributes": (-(2**15), 2**15 - 1),
    "base_offset": (0, LONG_MAX),
    "partition_leader_epoch": (-(2**31), 2**31 - 1),
    "base_timestamp": (-(2**63), LONG_MAX),
    "max_timestamp": (-1, LONG_MAX),
    "producer_id": (-1, LONG_MAX),
    "producer_epoch": (-1, 2**15 - 1),
    "base_sequence": (-1, 2**31 - 1),
}


class Producer(NamedTuple):
    """An idempotent or transactional producer; a higher epoch fences the lower ones."""

    id: int
    epoch: int


def edit_batch(
    batch: bytes | bytearray,
    *,
    base_offset: int | None = None,
    leader_epoch: int | None = None,
    timestamp_type: TimestampType | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer: Producer | None = None,
    base_sequence: int | None = None,
    transactional: bool | None = None,
) -> bytearray:
    """The batch with other header fields; None keeps a field, the records do not change.

    A bytearray is changed in place, bytes are copied. Raises InvalidRequest for a value that does
    not fit its field.
    """
    before = decode_header(batch)
    changes = {
        "attributes": _edit_attributes(before.attributes, timestamp_type, transactional),
        "base_offset": base_offset,
        "partition_leader_epoch": leader_epoch,
        "base_timestamp": base_timestamp,
        "max_timestamp": max_timestamp,
        "producer_id": None if producer is None else producer.id,
        "producer_epoch": None if producer is None else producer.epoch,
        "base_sequence": base_sequence,
    }
    fields = {name: value for name, value in changes.items() if value is not None}
    for name, value in fields.items():
        _check_range(name, value, last_offset_delta=before.last_offset_delta)
    after = before._replace(**fields)
    edited = batch if isinstance(batch, bytearray) else bytearray(batch)
    HEADER.pack_into(edited, 0, *after)
    if after[_FIRST_FIELD_IN_CRC:] != before[_FIRST_FIELD_IN_CRC:]:
        crc = crc32c_of(memoryview(edited)[CRC_START:])
        HEADER.pack_into(edited, 0, *after._replace(crc=crc))
    return edited


def stamp_producer(
    batch: bytes | bytearray,
    producer: Producer,
    base_sequence: int,
    *,
    transactional: bool = True,
    default_timestamp: int | None = None,
) -> bytearray:
    """The batch as the producer sends it, with the offsets and epoch of a batch not yet appended.

    `default_timestamp` is for a batch whose records have no timestamps. A bytearray is changed in
    place, bytes are copied.
    """
    timestamp = None
    if decode_header(batch).max_timestamp == _NO_TIMESTAMP:
        timestamp = default_timestamp
    return edit_batch(
        batch,
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer=producer,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def stamp_producer_all(
    batches: Sequence[bytes | bytearray],
    producer: Producer,
    base_sequence: int,
    *,
    default_timestamp: int | None = None,
) -> tuple[list[bytearray], int]:
    """Stamps consecutive batches; returns them, and the sequence of the record after the last."""
    stamped = []
    for batch in batches:
        stamped.append(
            stamp_producer(batch, producer, base_sequence, default_timestamp=default_timestamp)
        )
        count = decode_header(batch).last_offset_delta + 1
        base_sequence = increment_sequence(base_sequence, count)
    return stamped, base_sequence


def with_log_append_time(batch: bytes | bytearray, now_ms: int) -> bytearray:
    """The batch under LogAppendTime; the records keep the timestamp deltas of their producer."""
    return edit_batch(batch, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=now_ms)


def with_max_timestamp(batch: bytes | bytearray, max_timestamp: int) -> bytearray:
    """The batch under CreateTime with the largest timestamp of its records."""
    return edit_batch(batch, timestamp_type=TimestampType.CREATE_TIME, max_timestamp=max_timestamp)


def rebuild_batch(
    batch: bytes | bytearray | memoryview,
    *,
    codec: Codec,
    level: int | None = None,
) -> bytes:
    """The batch with another codec, its records at consecutive offsets from the base offset.

    All other fields are kept, under LogAppendTime also the timestamp deltas that the producer sent.
    """
    source = Batch(batch)
    fields = fields_of(source.header)
    fields["codec"], fields["level"] = codec, level
    return build_batch_of(source.columns_as_sent(), **fields)


def _edit_attributes(
    attributes: int, timestamp_type: TimestampType | None, transactional: bool | None
) -> int:
    if timestamp_type is not None:
        is_append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
        attributes = _with_bit(attributes, LOG_APPEND_TIME_BIT, is_append_time)
    if transactional is not None:
        attributes = _with_bit(attributes, TRANSACTIONAL_BIT, transactional)
    return attributes


def _with_bit(attributes: int, bit: int, is_set: bool) -> int:
    return attributes | bit if is_set else attributes & ~bit


def _check_range(name: str, value: int, *, last_offset_delta: int) -> None:
    low, high = _RANGES[name]
    if name == "base_offset":
        high -= last_offset_delta
    if not low <= value <= high:
        raise InvalidRequest(f"{name} {value} of a batch is outside {low} to {high}")
