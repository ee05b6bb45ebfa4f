"""Reads a batch: header, checksum, records as columns or as objects.

Layout     docs/reference/formats/record-batch.md
Invariant  records are returned only if they use every byte of the records area.
Threads    immutable; a batch refers to its buffer, which must not change either.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.kernels.batch_layout import (
    CRC_START,
    HEADER_BYTES,
    NO_LOG_APPEND_TIMESTAMP,
    RecordColumn,
    RecordStatus,
    status_text,
)
from varve.kernels.crc import crc32c
from varve.kernels.hashes import hash_keys
from varve.kernels.record_parse import count_fits, parse_records, record_table
from varve.records.batch_format import BatchHeader, Buffer, Codec, TimestampType, decode_header
from varve.records.columns import BinaryColumn, EncodedHeaders, frozen_bytes, frozen_integers
from varve.records.compression import DECOMPRESSED_BYTES_MAX, decompress

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

_TOPIC_ID = struct.Struct("<QQ")


Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record; timestamp -1 means none, offset -1 that the record is not yet in a log."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1
    offset: int = -1


class RecordColumns:
    """Records as bytes, and a table with the position of each part of each record."""

    __slots__ = ("payload", "table")

    def __init__(self, payload: Bytes, table: npt.NDArray[np.int64]) -> None:
        self.payload = payload
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def offsets(self) -> Integers:
        """The offsets of the records."""
        return self.table[:, RecordColumn.OFFSET]

    @property
    def timestamps(self) -> Integers:
        """Milliseconds since 1970; -1 for none."""
        return self.table[:, RecordColumn.TIMESTAMP]

    @property
    def key_starts(self) -> Integers:
        """The position of each key in `payload`."""
        return self.table[:, RecordColumn.KEY_START]

    @property
    def key_sizes(self) -> Integers:
        """-1 is a null key."""
        return self.table[:, RecordColumn.KEY_SIZE]

    @property
    def value_starts(self) -> Integers:
        """The position of each value in `payload`."""
        return self.table[:, RecordColumn.VALUE_START]

    @property
    def value_sizes(self) -> Integers:
        """-1 is a null value, a tombstone where keys are compacted."""
        return self.table[:, RecordColumn.VALUE_SIZE]

    @property
    def header_counts(self) -> Integers:
        """How many headers each record has."""
        return self.table[:, RecordColumn.HEADERS_COUNT]

    def key(self, index: int) -> bytes | None:
        """The key of a record by its row; None without one."""
        return self._cell(index, RecordColumn.KEY_START, RecordColumn.KEY_SIZE)

    def value(self, index: int) -> bytes | None:
        """The value of a record by its row; None for a tombstone."""
        return self._cell(index, RecordColumn.VALUE_START, RecordColumn.VALUE_SIZE)

    def headers(self, index: int) -> Headers:
        """The record's headers; key bytes that are not UTF-8 become U+FFFD, as in Kafka."""
        row = self.table[index]
        start = int(row[RecordColumn.HEADERS_START])
        area = self.payload[start : int(row[RecordColumn.RECORD_END])].tobytes()
        return _decode_headers(area, int(row[RecordColumn.HEADERS_COUNT]))

    def keys_column(self) -> BinaryColumn:
        """The keys as a column to build batches from, without a copy of their bytes."""
        return BinaryColumn.at(self.payload, starts=self.key_starts, sizes=self.key_sizes)

    def values_column(self) -> BinaryColumn:
        """The values as one binary column."""
        return BinaryColumn.at(self.payload, starts=self.value_starts, sizes=self.value_sizes)

    def headers_column(self) -> EncodedHeaders:
        """The headers of all records as columns."""
        starts = self.table[:, RecordColumn.HEADERS_START]
        sizes = self.table[:, RecordColumn.RECORD_END] - starts
        cells = BinaryColumn.at(self.payload, starts=starts, sizes=sizes)
        return EncodedHeaders(cells, frozen_integers(self.header_counts))

    def hash_keys(self, topic_id: bytes) -> npt.NDArray[np.uint64]:
        """SipHash-128 of each key under the topic's id, as two words; 0, 0 for null."""
        if len(topic_id) != _TOPIC_ID.size:
            raise InvalidRequest(f"a topic id has {_TOPIC_ID.size} bytes, not {len(topic_id)}")
        k0, k1 = _TOPIC_ID.unpack(topic_id)
        out = np.empty((len(self), 2), np.uint64)
        hash_keys(self.payload, self.table, np.uint64(k0), np.uint64(k1), out)
        return out

    def records(self) -> list[Record]:
        """The records as objects."""
        payload = self.payload.tobytes()
        records = []
        for row in self.table.tolist():
            offset, timestamp, key, key_size, value, value_size, headers, header_count, _, end = row
            records.append(
                Record(
                    key=None if key_size < 0 else payload[key : key + key_size],
                    value=None if value_size < 0 else payload[value : value + value_size],
                    headers=_decode_headers(payload[headers:end], header_count),
                    timestamp=timestamp,
                    offset=offset,
                )
            )
        return records

    def _cell(
        self, index: int, start_field: RecordColumn, size_field: RecordColumn
    ) -> bytes | None:
        start, size = int(self.table[index, start_field]), int(self.table[index, size_field])
        return None if size < 0 else self.payload[start : start + size].tobytes()


class Batch:
    """The batch at `position` of a buffer; other bytes may follow it.

    Errors begin with `where`, the name of the source of the bytes.
    """

    __slots__ = ("_buffer", "_where", "header")

    def __init__(self, buffer: Buffer, where: str = "batch", *, position: int = 0) -> None:
        self.header: BatchHeader = decode_header(buffer, position, where=where)
        self._where = where
        end = position + self.header.size
        if end > len(buffer):
            raise Corrupt(
                f"{where}: batch at position {position} has {self.header.size} bytes,"
                f" {len(buffer) - position} are there"
            )
        self._buffer = memoryview(buffer)[position:end]

    @property
    def data(self) -> memoryview:
        """The bytes of the whole batch, header included."""
        return self._buffer

    def is_valid_crc(self) -> bool:
        """Whether the batch matches its CRC."""
        computed = crc32c(frozen_bytes(self._buffer), CRC_START, len(self._buffer))
        return bool(computed == self.header.crc)

    def columns(self, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> RecordColumns:
        """The records; raises `Corrupt` naming the first that breaks the format. No CRC check."""
        log_append_timestamp = NO_LOG_APPEND_TIMESTAMP
        if self.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            log_append_timestamp = self.header.max_timestamp
        return self._parse(log_append_timestamp, limit_bytes)

    def columns_as_sent(self) -> RecordColumns:
        """`columns` with the producer's timestamps, even under LogAppendTime."""
        return self._parse(NO_LOG_APPEND_TIMESTAMP, DECOMPRESSED_BYTES_MAX)

    def records(self) -> list[Record]:
        """The records as objects, those of a control batch with their raw keys and values."""
        return self.columns().records()

    def _parse(self, log_append_timestamp: int, limit_bytes: int) -> RecordColumns:
        header = self.header
        payload, start = self._payload(limit_bytes)
        count = header.records_count
        size = len(payload) - start
        if count != 0 and not count_fits(count, size):
            raise Corrupt(f"{self._describe()} has {count} records in {size} bytes")
        table = record_table(count)
        status, index = parse_records(
            payload,
            start,
            len(payload),
            count,
            header.base_offset,
            header.base_timestamp,
            log_append_timestamp,
            table,
        )
        if status != RecordStatus.OK:
            raise Corrupt(f"{self._describe()}, record {index} of {count}: {status_text(status)}")
        return RecordColumns(payload, table)

    def _payload(self, limit_bytes: int) -> tuple[Bytes, int]:
        """The bytes that contain the records, and the position of the first."""
        codec = self.header.codec
        if codec is Codec.NONE or self.header.records_count == 0:
            return frozen_bytes(self._buffer), HEADER_BYTES
        payload = self._buffer[HEADER_BYTES:]
        records = decompress(codec, payload, where=self._describe(), limit_bytes=limit_bytes)
        return frozen_bytes(records), 0

    def _describe(self) -> str:
        return f"{self._where}: batch with offset {self.header.base_offset}"


def _decode_headers(area: bytes, count: int) -> Headers:
    """Headers from bytes that the parser has already validated."""
    headers = []
    position = 0
    for _ in range(count):
        key, position = _decode_cell(area, position)
        value, position = _decode_cell(area, position)
        assert key is not None
        headers.append((key.decode(errors="replace"), value))
    return tuple(headers)


def _decode_cell(area: bytes, position: int) -> tuple[bytes | None, int]:
    """A byte string after its size, a zigzag varint; -1 is null. Also the position after it."""
    zigzag = shift = 0
    while True:
        byte = area[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    zigzag &= 0xFFFFFFFF
    size = (zigzag >> 1) ^ -(zigzag & 1)
    if size < 0:
        return None, position
    return area[position : position + size], position + size
