"""Builds batches from records or from columns, and the markers that end transactions.

Layout     61 bytes of header, then the records or their compressed form.
           docs/reference/formats/record-batch.md
           The key of a control record: version and type (int16 each); the value of a marker:
           version (int16), coordinator epoch (int32).
Invariant  a built batch can be read back; one invalid record rejects the whole batch.
"""

import ctypes
import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt, InvalidRecord, InvalidRequest
from varve.kernels.batch_build import BuildStatus, measure_records, write_records
from varve.kernels.batch_layout import (
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    INT32_MAX,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from varve.kernels.crc import crc32c
from varve.records.batch import Record, RecordColumns
from varve.records.batch_format import HEADER, BatchHeader, Codec, TimestampType
from varve.records.columns import (
    NO_CELLS,
    NO_HEADERS,
    NO_INTEGERS,
    BinaryColumn,
    Bytes,
    EncodedHeaders,
    HeaderColumns,
    Integers,
    frozen_integers,
    plain_integers,
)
from varve.records.compression import DECOMPRESSED_BYTES_MAX, compress

LONG_MAX = 2**63 - 1
_uncleared_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_OK = int(BuildStatus.OK)
_CRC = struct.Struct(">I")
_CRC_POSITION = 17

_PROBLEMS = {
    BuildStatus.BAD_COLUMN: "is in columns of different lengths",
    BuildStatus.BAD_CELL: "has a key, value or header outside its column, or larger than 2 GiB",
    BuildStatus.BAD_TIMESTAMP: "has a timestamp below -1, which means none",
    BuildStatus.BAD_OFFSET_DELTA: "has an offset delta that is negative, above INT_MAX or no larger"
    " than the one before",
    BuildStatus.BAD_HEADER_COUNT: "has a header count that its headers cannot have",
    BuildStatus.TOO_LARGE: f"exceeds INT_MAX ({INT32_MAX}) bytes",
    BuildStatus.NO_ROOM: "changed while it was written",
}


# Plain tuples on the way to the header and to the kernel: small batches pay for every object.
_Columns = tuple[Any, ...]  # the arguments of `write_records` after the position
_Head = tuple[int, ...]  # the header's fields from the leader epoch to the base timestamp
_Tail = tuple[int, ...]  # the header's fields after the largest timestamp


class BatchFields(TypedDict, total=False):
    """The optional fields of a batch; `build_batch_from_columns` documents them."""

    base_offset: int
    codec: Codec
    level: int | None
    timestamp_type: TimestampType
    log_append_time: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    delete_horizon_ms: int | None
    offset_deltas: npt.ArrayLike | None
    last_offset_delta: int | None


def build_batch(records: Sequence[Record], **fields: Unpack[BatchFields]) -> bytes:
    """A batch of `records`; offsets count from `base_offset`, those of the records are ignored."""
    headers = [record.headers for record in records]
    return build_batch_from_columns(
        BinaryColumn.of([record.key for record in records]),
        BinaryColumn.of([record.value for record in records]),
        _timestamps_of(records),
        HeaderColumns.of(headers) if any(headers) else None,
        **fields,
    )


def build_batch_from_columns(
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    timestamps: npt.ArrayLike,
    headers: HeaderColumns | EncodedHeaders | None = None,
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time: int = -1,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    offset_deltas: npt.ArrayLike | None = None,
    last_offset_delta: int | None = None,
) -> bytes:
    """A batch of the records in the columns of keys, values, timestamps and headers.

    Without a column of keys or values they are null for every record; a single timestamp applies to
    all. `log_append_time` applies to `LOG_APPEND_TIME` only, and becomes the largest timestamp.
    `delete_horizon_ms` replaces the base timestamp. `offset_deltas` and `last_offset_delta` are for
    batches with offset gaps; without them offsets are consecutive.

    Raises `InvalidRecord` for a record that cannot be encoded or a batch without records (see
    `empty_batch`), `InvalidRequest` for fields or columns that do not fit together.
    """
    times = _timestamp_column(timestamps, keys, values, headers)
    count = len(times)
    if count == 0:
        raise InvalidRecord("a batch without records: keep a cleaned one with empty_batch")
    key_cells = NO_CELLS if keys is None else _checked(keys, count)
    value_cells = NO_CELLS if values is None else _checked(values, count)
    encoded = NO_HEADERS
    if headers is not None:
        encoded = headers.encode() if isinstance(headers, HeaderColumns) else headers
        _checked(encoded.cells, count)
    deltas = NO_INTEGERS
    if offset_deltas is not None:
        deltas = frozen_integers(offset_deltas)
        if len(deltas) != count:
            raise InvalidRequest(f"{len(deltas)} offset deltas beside {count} timestamps")
    base_timestamp = int(times[0]) if delete_horizon_ms is None else delete_horizon_ms
    if not -(2**63) <= base_timestamp <= LONG_MAX:
        raise InvalidRequest(f"delete horizon {base_timestamp} is not a 64-bit number")
    size = measure_records(
        times,
        base_timestamp,
        deltas,
        key_cells.sizes,
        value_cells.sizes,
        encoded.cells.sizes,
        encoded.counts,
    )
    if not 0 <= size <= INT32_MAX - HEADER_BYTES:
        raise InvalidRecord(
            f"{count} records take more than INT_MAX ({INT32_MAX}) bytes: use several batches"
        )
    columns = (
        times,
        base_timestamp,
        deltas,
        key_cells.data,
        key_cells.starts,
        key_cells.sizes,
        value_cells.data,
        value_cells.starts,
        value_cells.sizes,
        encoded.cells.data,
        encoded.cells.starts,
        encoded.cells.sizes,
        encoded.counts,
    )
    last = int(deltas[-1]) if len(deltas) else count - 1
    if last_offset_delta is not None:
        if last_offset_delta < last:
            raise InvalidRequest(f"last offset delta {last_offset_delta} is below record's {last}")
        last = last_offset_delta
    attributes = int(codec)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        if not 0 <= log_append_time <= LONG_MAX:
            raise InvalidRequest(
                f"log append time {log_append_time} with LOG_APPEND_TIME: give one"
            )
        attributes |= LOG_APPEND_TIME_BIT
    attributes |= TRANSACTIONAL_BIT if transactional else 0
    attributes |= CONTROL_BIT if control else 0
    attributes |= 0 if delete_horizon_ms is None else DELETE_HORIZON_BIT
    head = (leader_epoch, MAGIC, 0, attributes, last, base_timestamp)
    tail = (producer_id, producer_epoch, base_sequence, count)
    if codec is not Codec.NONE:
        payload, max_timestamp = _compressed_records(size, columns, codec, level)
        size = len(payload)
    # BytesIO returns the bytes object that it was built on, without a copy, so the batch is written
    # into it directly. The bytes are not cleared first, since all of them are written.
    output = io.BytesIO(_uncleared_bytes(None, HEADER_BYTES + size))
    out = np.frombuffer(output.getbuffer(), np.uint8)
    if codec is Codec.NONE:
        max_timestamp = _write(out, HEADER_BYTES, columns)
    else:
        out[HEADER_BYTES:] = np.frombuffer(payload, np.uint8)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = log_append_time
    _write_header(out, base_offset, head, max_timestamp, tail)
    del out  # BytesIO returns a copy while its buffer is still exported
    return output.getvalue()


def build_batch_of(columns: RecordColumns, **fields: Unpack[BatchFields]) -> bytes:
    """A batch of records that were parsed; their offsets are ignored, as those of `build_batch`."""
    return build_batch_from_columns(
        columns.keys_column(),
        columns.values_column(),
        columns.timestamps,
        columns.headers_column(),
        **fields,
    )


def fields_of(header: BatchHeader) -> BatchFields:
    """The fields of a batch, with which its records are built again."""
    return BatchFields(
        base_offset=header.base_offset,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        log_append_time=header.max_timestamp,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon_ms=header.delete_horizon_ms,
    )


def empty_batch(original: BatchHeader) -> bytes:
    """The batch without records that cleaning keeps for its offsets and producer state."""
    kept = original.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    batch = np.empty(HEADER_BYTES, np.uint8)
    head = (original.partition_leader_epoch, MAGIC, 0, kept, original.last_offset_delta, -1)
    tail = (original.producer_id, original.producer_epoch, original.base_sequence, 0)
    _write_header(batch, original.base_offset, head, original.max_timestamp, tail)
    return batch.tobytes()


def _timestamps_of(records: Sequence[Record]) -> Integers:
    try:
        return np.fromiter((record.timestamp for record in records), np.int64, len(records))
    except OverflowError as error:
        raise InvalidRecord(f"a timestamp is not a 64-bit number: {error}") from error


def _checked(cells: BinaryColumn, count: int) -> BinaryColumn:
    if len(cells.sizes) != count:
        raise InvalidRequest(f"a column of {len(cells.sizes)} cells beside {count} timestamps")
    return cells


def _timestamp_column(
    timestamps: npt.ArrayLike, *columns: BinaryColumn | HeaderColumns | EncodedHeaders | None
) -> Integers:
    if not isinstance(timestamps, int):
        return plain_integers(timestamps)
    if not -1 <= timestamps <= LONG_MAX:
        raise InvalidRecord(f"timestamp {timestamps} is outside -1 to {LONG_MAX}")
    count = next((len(column) for column in columns if column is not None), 0)
    return np.full(count, timestamps, np.int64)


def _compressed_records(
    size: int, columns: _Columns, codec: Codec, level: int | None
) -> tuple[bytes, int]:
    """The records' compressed form, and their largest timestamp."""
    if size > DECOMPRESSED_BYTES_MAX:
        raise InvalidRecord(
            f"{size} bytes of records to compress, at most {DECOMPRESSED_BYTES_MAX} are read back:"
            " use several batches"
        )
    records = np.empty(size, np.uint8)
    max_timestamp = _write(records, 0, columns)
    return compress(codec, records.data, level), max_timestamp


def _write(out: Bytes, position: int, columns: _Columns) -> int:
    """Write the records, which fill `out` from `position`; return their largest timestamp."""
    status, end, max_timestamp, index = write_records(out, position, *columns)
    if status != _OK or end != len(out):
        problem = _PROBLEMS[BuildStatus(status) or BuildStatus.NO_ROOM]
        raise InvalidRecord(f"record {index} {problem}")
    return max_timestamp


def _write_header(
    batch: Bytes, base_offset: int, head: _Head, max_timestamp: int, tail: _Tail
) -> None:
    """Write the header of a batch whose records are already written."""
    last_offset_delta = head[4]
    if not 0 <= base_offset <= LONG_MAX - last_offset_delta:
        raise InvalidRequest(
            f"base offset {base_offset} with last offset delta {last_offset_delta} is outside"
            f" 0 to {LONG_MAX}"
        )
    length = len(batch) - LENGTH_OVERHEAD
    try:
        HEADER.pack_into(batch, 0, base_offset, length, *head, max_timestamp, *tail)
    except struct.error as error:
        raise InvalidRequest(f"a field does not fit the batch header: {error}") from error
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(batch, CRC_START, len(batch)))


# Control records

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlType(IntEnum):
    """Types of control records; those of Kafka's metadata log are named, but not decoded."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded control record; only ABORT and COMMIT have a coordinator epoch."""

    type: ControlType
    version: int
    coordinator_epoch: int | None = None


def decode_control_record(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Decode a control record; versions above 0 are read as 0, other types become UNKNOWN."""
    if key is None or len(key) < _KEY.size:
        size = "null" if key is None else f"{len(key)} bytes"
        raise Corrupt(f"control record with a key of {size}, at least {_KEY.size} are needed")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise Corrupt(f"control record with key version {version}, the least is 0")
    is_known = ControlType.ABORT <= number <= ControlType.KRAFT_VOTERS
    kind = ControlType(number) if is_known else ControlType.UNKNOWN
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(kind, version)
    return ControlRecord(kind, version, _decode_coordinator_epoch(kind, value))


def _decode_coordinator_epoch(kind: ControlType, value: bytes | None) -> int:
    if value is None or len(value) < _MARKER.size:
        size = "null" if value is None else f"{len(value)} bytes"
        raise Corrupt(f"{kind.name} marker with a value of {size}, {_MARKER.size} are needed")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise Corrupt(f"{kind.name} marker with value version {version}, the least is 0")
    return int(coordinator_epoch)


def end_transaction_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends the producer's transaction."""
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    record = Record(_KEY.pack(0, kind), _MARKER.pack(0, coordinator_epoch), timestamp=timestamp)
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
