"""Build batches from records or from columns.

Layout     61 bytes of header, then the records or their compressed form.
           docs/formats/record-batch.md
Invariant  what is built can be read back: everything is checked before a byte is written.
"""

import io
import struct
from collections.abc import Sequence
from typing import Any, NoReturn, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import InvalidRecord, InvalidRequest
from varve.kernels.batch_build import BuildStatus, measure_records, write_records
from varve.kernels.crc import crc32c
from varve.records.columns import (
    NO_CELLS,
    NO_HEADERS,
    NO_INTEGERS,
    BinaryColumn,
    EncodedHeaders,
    HeaderColumns,
    Integers,
    frozen_integers,
)
from varve.records.compression import DECOMPRESSED_BYTES_MAX, compress
from varve.records.header import (
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
    TimestampType,
)
from varve.records.record import Record
from varve.records.sequence import INT_MAX

LONG_MAX = 2**63 - 1
_CRC = struct.Struct(">I")
_CRC_POSITION = 17

_PROBLEMS = {
    BuildStatus.BAD_CELL: "has a key, value or header outside its column, or larger than 2 GiB",
    BuildStatus.BAD_TIMESTAMP: "has a timestamp below -1, which means none",
    BuildStatus.BAD_OFFSET_DELTA: "has an offset delta that is negative, above INT_MAX or no larger"
    " than the one before",
    BuildStatus.BAD_HEADER_COUNT: "has a header count that its headers cannot have",
    BuildStatus.TOO_LARGE: f"ends beyond INT_MAX ({INT_MAX}) bytes of records: use several batches",
    BuildStatus.NO_ROOM: "changed while it was written",
}


class BatchFields(TypedDict, total=False):
    """What a batch says besides its records; meanings at `build_batch_from_columns`."""

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
    """A batch of `records`, whose own offsets are not looked at: they count from `base_offset`."""
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
    """A batch of the records whose keys, values and timestamps stand in the columns.

    No column of keys or values means null for every record; a single timestamp goes for all.
    `log_append_time` counts with `LOG_APPEND_TIME` only, and becomes the batch's largest timestamp.
    `delete_horizon_ms` takes the place of the base timestamp. `offset_deltas` and
    `last_offset_delta` are for batches with holes; without them offsets are consecutive.

    Raises `InvalidRecord` for a record that cannot be encoded or a batch without records (see
    `empty_batch`), `InvalidRequest` for fields or columns that do not fit together.
    """
    cells_of_keys, cells_of_values = keys or NO_CELLS, values or NO_CELLS
    encoded = headers.encode() if isinstance(headers, HeaderColumns) else headers or NO_HEADERS
    times = _timestamp_column(timestamps, keys, values, headers)
    deltas = NO_INTEGERS if offset_deltas is None else frozen_integers(offset_deltas)
    count = len(times)
    for column in (keys, values, headers, None if offset_deltas is None else deltas):
        if column is not None and len(column) != count:
            raise InvalidRequest(f"a column of {len(column)} cells beside {count} timestamps")
    if count == 0:
        raise InvalidRecord("a batch without records: keep a cleaned one with empty_batch")
    base_timestamp = int(times[0]) if delete_horizon_ms is None else delete_horizon_ms
    columns = (
        times,
        base_timestamp,
        deltas,
        cells_of_keys.data,
        cells_of_keys.starts,
        cells_of_keys.sizes,
        cells_of_values.data,
        cells_of_values.starts,
        cells_of_values.sizes,
        encoded.cells.data,
        encoded.cells.starts,
        encoded.cells.sizes,
        encoded.counts,
    )
    if not -(2**63) <= base_timestamp <= LONG_MAX:
        raise InvalidRequest(f"delete horizon {base_timestamp} is no 64-bit number")
    status, index, size, max_timestamp = measure_records(*columns)
    if status != BuildStatus.OK:
        _refuse(status, index)
    last = int(deltas[-1]) if len(deltas) else count - 1
    if last_offset_delta is not None:
        if last_offset_delta < last:
            raise InvalidRequest(f"last offset delta {last_offset_delta} is below record's {last}")
        last = last_offset_delta
    attributes = int(codec)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        if log_append_time < 0:
            raise InvalidRequest(
                f"log append time {log_append_time} with LOG_APPEND_TIME: give one"
            )
        max_timestamp = log_append_time
        attributes |= LOG_APPEND_TIME_BIT
    attributes |= TRANSACTIONAL_BIT if transactional else 0
    attributes |= CONTROL_BIT if control else 0
    attributes |= 0 if delete_horizon_ms is None else DELETE_HORIZON_BIT
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return _assemble(header, codec, level, size, columns)


def empty_batch(original: BatchHeader) -> bytes:
    """What cleaning keeps of a batch without survivors: its offsets and its producer's state."""
    kept = original.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    header = original._replace(attributes=kept, base_timestamp=-1, records_count=0)
    return _assemble(header, Codec.NONE, None, 0, None)


def _timestamps_of(records: Sequence[Record]) -> Integers:
    try:
        return np.fromiter((record.timestamp for record in records), np.int64, len(records))
    except OverflowError as error:
        raise InvalidRecord(f"a timestamp is no 64-bit number: {error}") from error


def _timestamp_column(
    timestamps: npt.ArrayLike, *columns: BinaryColumn | HeaderColumns | EncodedHeaders | None
) -> Integers:
    if not isinstance(timestamps, int):
        return frozen_integers(timestamps)
    if not -1 <= timestamps <= LONG_MAX:
        raise InvalidRecord(f"timestamp {timestamps} is outside -1 to {LONG_MAX}")
    count = next((len(column) for column in columns if column is not None), 0)
    return frozen_integers(np.full(count, timestamps, np.int64))


def _refuse(status: int, index: int) -> NoReturn:
    raise InvalidRecord(f"record {index} {_PROBLEMS[BuildStatus(status)]}")


def _assemble(
    header: BatchHeader, codec: Codec, level: int | None, size: int, columns: Any
) -> bytes:
    """Header and records as bytes; `columns` are the arguments of `write_records`."""
    payload: bytes | None = None
    if codec is not Codec.NONE:
        payload = _compressed(codec, level, size, columns)
        size = len(payload)
    total = HEADER_BYTES + size
    if total - LENGTH_OVERHEAD > INT_MAX:
        raise InvalidRecord(f"a batch of {total} bytes exceeds INT_MAX: use several batches")
    # A BytesIO lets go of the very bytes that were written into its buffer, so that a batch is
    # neither built in one place and copied to another, nor ever a mutable object.
    sheet = io.BytesIO(bytes(total))
    with sheet.getbuffer() as view:
        _pack_header(view, header._replace(batch_length=total - LENGTH_OVERHEAD))
        out = np.frombuffer(view, np.uint8)
        if payload is not None:
            view[HEADER_BYTES:] = payload
        elif columns is not None:
            _write(out, HEADER_BYTES, columns)
        _CRC.pack_into(view, _CRC_POSITION, crc32c(out, CRC_START, total))
        del out
    return sheet.getvalue()


def _pack_header(view: memoryview, header: BatchHeader) -> None:
    if header.base_offset < 0 or header.base_offset > LONG_MAX - header.last_offset_delta:
        raise InvalidRequest(
            f"base offset {header.base_offset} with last offset delta {header.last_offset_delta} is"
            f" outside 0 to {LONG_MAX}"
        )
    try:
        HEADER.pack_into(view, 0, *header)
    except struct.error as error:
        raise InvalidRequest(
            f"a field does not fit the batch header: {error}, of {header}"
        ) from error


def _write(out: npt.NDArray[np.uint8], position: int, columns: Any) -> None:
    status, end = write_records(out, position, *columns)
    if status != BuildStatus.OK or end != len(out):
        raise InvalidRequest("the columns changed while the batch was built")


def _compressed(codec: Codec, level: int | None, size: int, columns: Any) -> bytes:
    if size > DECOMPRESSED_BYTES_MAX:
        raise InvalidRecord(
            f"{size} bytes of records to compress, at most {DECOMPRESSED_BYTES_MAX} are read back:"
            " use several batches"
        )
    records = np.empty(size, np.uint8)
    _write(records, 0, columns)
    return compress(codec, records.data, level)
