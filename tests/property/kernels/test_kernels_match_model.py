"""Kernels against a slow reader of the format that knows only Python's own integers and slices."""

import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.record_bytes import sized, varint
from varve.kernels.batch_layout import (
    NO_LOG_APPEND_TIMESTAMP,
    BatchColumn,
    InspectionColumn,
    RecordColumn,
    RecordStatus,
    ScanStatus,
)
from varve.kernels.batch_scan import batch_table, inspect_batch, inspection_row, scan_batches
from varve.kernels.record_parse import count_fits, parse_records, record_table

Headers = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True)
class ModelRecord:
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class ModelFault(Exception):
    """The model refuses the bytes."""


def _wrapped(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _write_record(record: ModelRecord) -> bytes:
    body = b"\0" + varint(record.timestamp_delta) + varint(record.offset_delta)
    body += sized(record.key) + sized(record.value)
    body += varint(len(record.headers))
    body += b"".join(sized(key) + sized(value) for key, value in record.headers)
    return sized(body)


class ModelReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise ModelFault
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self, bits: int) -> int:
        value = 0
        for group in range(-(-bits // 7)):
            byte = self.take(1)[0]
            value += (byte % 128) << (7 * group)
            if byte < 128:
                value %= 1 << bits
                return value // 2 if value % 2 == 0 else -(value + 1) // 2
        raise ModelFault

    def sized(self) -> bytes | None:
        size = self.varint(32)
        return None if size < 0 else self.take(size)

    def header(self) -> tuple[bytes, bytes | None]:
        key = self.sized()
        if key is None:
            raise ModelFault
        return key, self.sized()

    def record(self) -> ModelRecord:
        size = self.varint(32)
        start = self.position
        self.take(1)
        timestamp_delta, offset_delta = self.varint(64), self.varint(32)
        key, value = self.sized(), self.sized()
        header_count = self.varint(32)
        if not 0 <= header_count <= len(self.data) - self.position:
            raise ModelFault
        headers = tuple(self.header() for _ in range(header_count))
        if self.position - start != size:
            raise ModelFault
        return ModelRecord(timestamp_delta, offset_delta, key, value, headers)

    def records(self, count: int) -> list[ModelRecord]:
        if count < 0:
            raise ModelFault
        found: list[ModelRecord] = []
        for _ in range(count):
            found.append(self.record())
        if count and self.position != len(self.data):
            raise ModelFault
        return found


def _write_batch(payload: bytes, count: int, base_offset: int, base_timestamp: int) -> bytes:
    tail = struct.pack(">hiqqqhii", 0, max(count - 1, 0), base_timestamp, -1, -1, -1, -1, count)
    tail += payload
    checksum = google_crc32c.value(tail)
    return struct.pack(">qiibI", base_offset, len(tail) + 9, 5, 2, checksum) + tail


octets = st.binary(max_size=40) | st.binary(min_size=60, max_size=70)
nullable = st.none() | octets
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
model_records = st.lists(
    st.builds(
        ModelRecord,
        timestamp_delta=int64 | st.integers(-100, 100),
        offset_delta=int32 | st.integers(0, 100),
        key=nullable,
        value=nullable,
        headers=st.lists(st.tuples(octets, nullable), max_size=3).map(tuple),
    ),
    max_size=8,
)
edits = st.lists(
    st.tuples(
        st.integers(0, 400), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
    ),
    max_size=4,
)


def _read_columns(
    payload: bytes, start: int, table: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> list[ModelRecord]:
    found = []
    for row in table.tolist():
        reader = ModelReader(payload)
        reader.position = row[RecordColumn.HEADERS_START] - start
        headers = tuple(reader.header() for _ in range(row[RecordColumn.HEADERS_COUNT]))
        parts: list[bytes | None] = []
        for at, size in ((row[2] - start, row[3]), (row[4] - start, row[5])):
            parts.append(None if size < 0 else payload[at : at + size])
        found.append(ModelRecord(row[1], row[0], parts[0], parts[1], headers))
    return found


def _check_parse(payload: bytes, count: int) -> None:
    try:
        expected: list[ModelRecord] | None = ModelReader(payload).records(count)
    except ModelFault:
        expected = None
    surrounded = np.frombuffer(b"\xff" * 16 + payload + b"\xff" * 16, np.uint8)
    end = 16 + len(payload)
    table = record_table(count if count_fits(count, len(payload)) else 0)
    status, filled = parse_records(surrounded, 16, end, count, 0, 0, NO_LOG_APPEND_TIMESTAMP, table)
    assert (status == RecordStatus.OK) == (expected is not None)
    if expected is not None:
        assert filled == count
        assert _read_columns(payload, 16, table) == expected


@given(model_records)
def test_written_records_are_read_back(records: list[ModelRecord]) -> None:
    _check_parse(b"".join(map(_write_record, records)), len(records))


@given(model_records, edits, st.integers(-1, 9), st.integers(0, 400))
@example([], [], (1 << 31) - 1, 0)
def test_damaged_records_get_the_verdict_of_the_model(
    records: list[ModelRecord], damage: list[tuple[int, int]], count: int, cut: int
) -> None:
    payload = bytearray(b"".join(map(_write_record, records)))
    for position, value in damage:
        if payload:
            payload[position % len(payload)] = value
    _check_parse(bytes(payload), len(records))
    _check_parse(bytes(payload), count)
    _check_parse(bytes(payload[:cut]), len(records))


@given(st.binary(max_size=60), st.integers(-2, 10))
def test_any_bytes_get_the_verdict_of_the_model(payload: bytes, count: int) -> None:
    _check_parse(payload, count)


@given(model_records, int64, int64)
def test_inspection_equals_the_model(
    records: list[ModelRecord], base_offset: int, base_timestamp: int
) -> None:
    payload = b"".join(map(_write_record, records))
    batch = _write_batch(payload, len(records), base_offset, base_timestamp)
    row = inspection_row()
    assert inspect_batch(np.frombuffer(batch, np.uint8), 0, len(batch), row) == ScanStatus.OK
    last_offset = base_offset + max(len(records) - 1, 0)
    assert row[BatchColumn.LAST_OFFSET] == _wrapped(last_offset, 64)
    times = [_wrapped(base_timestamp + record.timestamp_delta, 64) for record in records]
    largest = max([-1, *times])
    null_keys = [index for index, record in enumerate(records) if record.key is None]
    deltas = [record.offset_delta for record in records]
    assert row[InspectionColumn.RECORDS_STATUS :].tolist() == [
        RecordStatus.OK,
        -1,
        largest,
        min([time for time in times if time != -1], default=-1),
        len(null_keys),
        null_keys[0] if null_keys else -1,
        int(deltas == list(range(len(records)))),
    ]


@given(st.lists(model_records, max_size=4), st.binary(max_size=11), st.integers(1, 5))
def test_scan_lists_what_was_joined(
    batches: list[list[ModelRecord]], tail: bytes, capacity: int
) -> None:
    parts = [
        _write_batch(b"".join(map(_write_record, records)), len(records), 10 * index, 0)
        for index, records in enumerate(batches)
    ]
    data = np.frombuffer(b"".join(parts) + tail, np.uint8)
    found: list[tuple[int, int, int]] = []
    position, status = 0, int(ScanStatus.FULL)
    while status == ScanStatus.FULL:
        table = batch_table(capacity)
        count, position, status = scan_batches(data, position, data.size, True, table)
        for row in table[:count].tolist():
            found.append(
                (row[BatchColumn.SIZE], row[BatchColumn.BASE_OFFSET], row[BatchColumn.RECORD_COUNT])
            )
    assert found == [
        (len(part), 10 * index, len(records))
        for index, (part, records) in enumerate(zip(parts, batches, strict=True))
    ]
    assert position == data.size - len(tail)
    assert status == (ScanStatus.INCOMPLETE if tail else ScanStatus.END)
