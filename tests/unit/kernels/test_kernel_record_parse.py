"""Records into columns: limits of the variable-length integers, and every fault by its name."""

import numpy as np
import pytest

from tests.support.record_bytes import sized, varint
from varve.kernels.batch_layout import (
    INSPECTION_COLUMN_COUNT,
    NO_LOG_APPEND_TIMESTAMP,
    RECORD_SIZE_MIN,
    InspectionColumn,
    RecordColumn,
    RecordStatus,
)
from varve.kernels.record_parse import (
    Table,
    count_fits,
    parse_records,
    record_table,
    summarize_records,
)

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
FOREVER = b"\xff" * 12


def _record(
    *,
    timestamp: bytes = b"\0",
    offset: bytes = b"\0",
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\0",
) -> bytes:
    return sized(b"\0" + timestamp + offset + key + value + headers)


def _parse(
    payload: bytes,
    count: int = 1,
    *,
    base_offset: int = 0,
    base_timestamp: int = 0,
    log_append: int = NO_LOG_APPEND_TIMESTAMP,
) -> tuple[int, int, Table]:
    table = record_table(max(0, min(count, 64)))
    array = np.frombuffer(payload, np.uint8)
    arguments = (count, base_offset, base_timestamp, log_append, table)
    status, index = parse_records(array, 0, len(payload), *arguments)
    row = np.empty(INSPECTION_COLUMN_COUNT, np.int64)
    assert summarize_records(array, 0, len(payload), count, base_timestamp, row) == status
    assert row[InspectionColumn.RECORDS_STATUS] == status
    assert row[InspectionColumn.RECORDS_FAULT_INDEX] == (-1 if status == RecordStatus.OK else index)
    return status, index, table


def test_columns_point_at_key_value_and_headers() -> None:
    first = _record()
    second = _record(
        timestamp=varint(5), offset=varint(1), value=sized(None), headers=b"\x02\x02h\x02x"
    )
    status, count, table = _parse(first + second, 2, base_offset=40, base_timestamp=1000)
    assert (status, count) == (RecordStatus.OK, 2)
    assert table.tolist() == [
        [40, 1000, 5, 1, 7, 1, 9, 0, 0, 9],
        [41, 1005, 14, 1, 16, -1, 17, 1, 9, 21],
    ]
    assert first[5:6] == b"k"
    assert (first + second)[17:21] == b"\x02h\x02x"


def test_log_append_time_replaces_every_timestamp() -> None:
    payload = _record(timestamp=varint(3)) + _record(timestamp=varint(-9))
    table = _parse(payload, 2, base_timestamp=1000, log_append=7777)[2]
    assert table[:, RecordColumn.TIMESTAMP].tolist() == [7777, 7777]


@pytest.mark.parametrize("delta", [0, -1, 63, 64, -64, -65, 8191, 8192, LONG_MAX, -LONG_MAX - 1])
def test_timestamp_deltas_at_their_limits(delta: int) -> None:
    table = _parse(_record(timestamp=varint(delta)))[2]
    assert table[0, RecordColumn.TIMESTAMP] == delta


@pytest.mark.parametrize("delta", [0, -1, 63, 64, -64, -65, 1 << 20, INT_MAX, -INT_MAX - 1])
def test_offset_deltas_at_their_limits(delta: int) -> None:
    table = _parse(_record(offset=varint(delta)), base_offset=1 << 40)[2]
    assert table[0, RecordColumn.OFFSET] == (1 << 40) + delta


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 100_000])
def test_key_and_value_sizes_around_each_length_of_varint(size: int) -> None:
    table = _parse(_record(key=sized(b"k" * size), value=sized(b"v" * size)))[2]
    assert table[0, RecordColumn.KEY_SIZE] == table[0, RecordColumn.VALUE_SIZE] == size


@pytest.mark.parametrize("size", [-2, -INT_MAX - 1])
def test_any_negative_length_of_key_or_value_reads_as_null(size: int) -> None:
    status, _, table = _parse(_record(key=varint(size), value=varint(size)))
    assert status == RecordStatus.OK
    assert table[0, [RecordColumn.KEY_SIZE, RecordColumn.VALUE_SIZE]].tolist() == [-1, -1]


def test_padded_varints_are_read() -> None:
    padded = b"\x82\x80\x80\x80\x00"
    table = _parse(_record(offset=padded, timestamp=b"\x84" + b"\x80" * 8 + b"\x00"))[2]
    assert table[0, [RecordColumn.OFFSET, RecordColumn.TIMESTAMP]].tolist() == [1, 2]


def test_bits_beyond_thirty_two_are_dropped() -> None:
    table = _parse(_record(offset=b"\x82\x80\x80\x80\x70"))[2]
    assert table[0, RecordColumn.OFFSET] == 1


def test_smallest_record_has_seven_bytes() -> None:
    smallest = _record(key=b"\x01", value=b"\x01")
    assert len(smallest) == RECORD_SIZE_MIN
    assert _parse(smallest * 3, 3)[:2] == (RecordStatus.OK, 3)
    assert count_fits(3, 21)
    assert not count_fits(4, 27)
    assert not count_fits(-1, 27)


@pytest.mark.parametrize(
    ("payload", "count", "status", "index"),
    [
        (b"", -1, RecordStatus.NEGATIVE_COUNT, 0),
        (b"", 1, RecordStatus.COUNT_TOO_LARGE, 0),
        (_record() * 4, INT_MAX, RecordStatus.COUNT_TOO_LARGE, 0),
        (_record() + b"\0", 1, RecordStatus.TRAILING_BYTES, 1),
        (_record() + _record()[:-1], 2, RecordStatus.TRUNCATED, 1),
        (b"\x80" * 4 + b"\x80\x80\x00", 1, RecordStatus.VARINT_TOO_LONG, 0),
        (varint(INT_MAX) + bytes(20), 1, RecordStatus.TRUNCATED, 0),
        (varint(-1) + bytes(20), 1, RecordStatus.CORRUPT_LENGTH, 0),
        (varint(5) + bytes(20), 1, RecordStatus.CORRUPT_LENGTH, 0),
        (_record(timestamp=FOREVER), 1, RecordStatus.VARINT_TOO_LONG, 0),
        (_record(offset=FOREVER), 1, RecordStatus.VARINT_TOO_LONG, 0),
        (_record(key=FOREVER), 1, RecordStatus.VARINT_TOO_LONG, 0),
        (_record(value=FOREVER), 1, RecordStatus.VARINT_TOO_LONG, 0),
        (_record(headers=FOREVER), 1, RecordStatus.VARINT_TOO_LONG, 0),
        (_record(key=varint(INT_MAX)), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(value=varint(INT_MAX)), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(key=varint(3)) + _record(), 2, RecordStatus.FIELD_OVERRUN, 0),
        (_record(headers=b"\x80"), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(headers=b""), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(headers=b"\0\0"), 1, RecordStatus.LENGTH_MISMATCH, 0),
        (_record(headers=varint(-1)), 1, RecordStatus.HEADER_COUNT, 0),
        (_record(headers=varint(INT_MAX)), 1, RecordStatus.HEADER_COUNT, 0),
        (_record(headers=varint(3) + b"\x02h"), 1, RecordStatus.HEADER_COUNT, 0),
        (_record(headers=varint(2) + b"\0\0\0"), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(headers=varint(1) + b"\x01\x01"), 1, RecordStatus.NEGATIVE_HEADER_KEY, 0),
        (_record(headers=varint(1) + b"\x08h\0"), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(headers=varint(1) + b"\0\x08h"), 1, RecordStatus.FIELD_OVERRUN, 0),
        (_record(headers=varint(1) + FOREVER), 1, RecordStatus.VARINT_TOO_LONG, 0),
    ],
)
def test_fault_is_named(payload: bytes, count: int, status: RecordStatus, index: int) -> None:
    assert _parse(payload, count)[:2] == (status, index)


def _summary(payload: bytes, count: int, base_timestamp: int = 0) -> list[int]:
    row = np.empty(INSPECTION_COLUMN_COUNT, np.int64)
    array = np.frombuffer(payload, np.uint8)
    summarize_records(array, 0, len(payload), count, base_timestamp, row)
    return [int(value) for value in row[InspectionColumn.RECORDS_STATUS :]]


def test_summary_of_times_keys_and_deltas() -> None:
    times = [5, 9, -11, 9, 3]
    payload = b"".join(
        _record(
            timestamp=varint(time),
            offset=varint(index),
            key=sized(None) if index in (2, 4) else sized(b"k"),
        )
        for index, time in enumerate(times)
    )
    assert _summary(payload, 5, base_timestamp=10) == [0, -1, 19, 13, 2, 2, 1]


def test_summary_without_timestamps() -> None:
    payload = _record(offset=varint(1)) * 2
    assert _summary(payload, 2, base_timestamp=-1) == [0, -1, -1, -1, 0, -1, 0]


def test_range_outside_the_payload_is_refused() -> None:
    payload = np.frombuffer(_record(), np.uint8)
    row = np.empty(INSPECTION_COLUMN_COUNT, np.int64)
    for start, end in [(-1, 5), (3, 2), (0, payload.size + 1)]:
        with pytest.raises(IndexError):
            parse_records(payload, start, end, 1, 0, 0, 0, record_table(1))
        with pytest.raises(IndexError):
            summarize_records(payload, start, end, 1, 0, row)


def test_table_that_is_too_small_is_refused() -> None:
    payload = np.frombuffer(_record() * 2, np.uint8)
    with pytest.raises(IndexError):
        parse_records(payload, 0, payload.size, 2, 0, 0, 0, record_table(1))
    with pytest.raises(IndexError):
        summarize_records(payload, 0, payload.size, 2, 0, np.empty(3, np.int64))
