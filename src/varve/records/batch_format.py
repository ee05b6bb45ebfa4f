"""The header of a batch: its fields, attributes and sequences.

Layout     message format 2; the offsets of the fields are declared in `kernels.batch_layout`.
           docs/reference/formats/record-batch.md
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_layout import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    INT32_MAX,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
)

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
# Offset, length, four bytes that depend on the version, magic: the same in every version.
PREFIX = struct.Struct(">qi4xb")


class Codec(IntEnum):
    """How the records area is compressed."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_MAX = max(Codec)


def codec_of(attributes: int, *, where: str) -> Codec:
    """The codec in a batch's attributes; raises `Corrupt` for the undefined numbers 5 to 7."""
    number = attributes & CODEC_MASK
    if number > CODEC_MAX:
        raise Corrupt(f"{where}: codec number {number} is unknown, the largest is {int(CODEC_MAX)}")
    return Codec(number)


class TimestampType(IntEnum):
    """Whose clock the timestamps come from: the producer's, or the log's at the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


# A tuple, not a dataclass: a header is decoded per batch read, and creating a frozen dataclass with
# this many fields takes several times as long.
class BatchHeader(NamedTuple):
    """A decoded batch header; the fields are Kafka's, in their order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def codec(self) -> Codec:
        return codec_of(self.attributes, where=f"batch at offset {self.base_offset}")

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & LOG_APPEND_TIME_BIT) >> 3)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones in the batch may be removed; None if no cleaning has set it."""
        return self.base_timestamp if self.has_delete_horizon else None

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, -1 when the batch carries none."""
        if self.base_sequence == -1:
            return -1
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > -1


def decode_header(buffer: Buffer, position: int = 0, *, where: str = "batch") -> BatchHeader:
    """Decode the header at `position`; the records need not be in the buffer.

    Raises `UnsupportedFormat` for message formats 0 and 1, `Corrupt` for anything else that cannot
    be a batch of format 2.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise _explain(buffer, position, where)
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC or header.batch_length < LENGTH_MIN:
        raise _explain(buffer, position, where)
    return header


def find_header(data: Buffer, offset: int) -> BatchHeader | None:
    """The header of the first batch; None where it does not hold the offset."""
    header = decode_header(data) if len(data) else None
    return header if header and header.base_offset <= offset <= header.last_offset else None


def _explain(buffer: Buffer, position: int, where: str) -> Corrupt:
    """The error for bytes at `position` that are not a header of format 2."""
    available = len(buffer) - position
    if position < 0 or available < PREFIX.size:
        return Corrupt(
            f"{where}: {max(available, 0)} bytes at position {position},"
            f" a batch header takes {HEADER_BYTES}"
        )
    base_offset, length, magic = PREFIX.unpack_from(buffer, position)
    what = f"{where}: batch at position {position} with offset {base_offset}"
    if magic in (0, 1):
        return UnsupportedFormat(
            f"{what} has message format {magic}, varve reads format {MAGIC}. Remedy: with Kafka's"
            " own consumer and producer (the console tools, MirrorMaker) copy the topic into a new"
            f" one; producers since Kafka 0.11 write format {MAGIC}. Cleaning does not convert"
        )
    if magic != MAGIC:
        return Corrupt(f"{what} has magic {magic}, known are 0 to {MAGIC}")
    if length < LENGTH_MIN:
        return Corrupt(f"{what} has length {length}, the least is {LENGTH_MIN}")
    return Corrupt(f"{what}: {available} bytes of a header of {HEADER_BYTES}")


def increment_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records later."""
    if sequence > INT32_MAX - count:
        return count - (INT32_MAX - sequence) - 1
    return sequence + count
