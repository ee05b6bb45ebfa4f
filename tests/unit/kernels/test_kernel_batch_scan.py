"""Scanning and inspecting batches: the format's byte vectors, and every way a scan can end."""

import struct

import numpy as np
import pytest
from numba.core.errors import TypingError

from tests.support.cases import case
from tests.support.record_bytes import CLEANED, COMMIT, EMPTY, TWO_RECORDS
from varve.kernels.batch_layout import (
    BATCH_COLUMN_COUNT,
    INSPECTION_COLUMN_COUNT,
    BatchColumn,
    InspectionColumn,
    RecordStatus,
    ScanStatus,
    status_text,
)
from varve.kernels.batch_scan import batch_table, inspect_batch, inspection_row, scan_batches
from varve.kernels.crc import crc32c
from varve.kernels.memory import Bytes

ALL = [TWO_RECORDS, CLEANED, COMMIT, EMPTY]


def _array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _scan(data: bytes, *, verify_crc: bool = True, capacity: int = 8) -> tuple[int, int, int]:
    return scan_batches(_array(data), 0, len(data), verify_crc, batch_table(capacity))


def _with_crc(batch: bytes) -> bytes:
    checksum = crc32c(_array(batch), 21, len(batch))
    return batch[:17] + struct.pack(">I", checksum) + batch[21:]


def _replace(batch: bytes, at: int, data: bytes) -> bytes:
    return batch[:at] + data + batch[at + len(data) :]


def test_fields_and_summary_are_numbered_without_gap_or_overlap() -> None:
    numbers = [*BatchColumn, *InspectionColumn]
    assert sorted(numbers) == list(range(INSPECTION_COLUMN_COUNT))
    assert len(BatchColumn) == BATCH_COLUMN_COUNT


def test_every_status_has_a_sentence() -> None:
    for status in [*ScanStatus, *RecordStatus]:
        assert status_text(status)
    assert not set(ScanStatus) - {0} & set(RecordStatus)


def test_scan_reads_the_headers_of_the_byte_vectors() -> None:
    data = b"".join(ALL)
    table = batch_table(8)
    assert scan_batches(_array(data), 0, len(data), True, table) == (4, 300, ScanStatus.END)
    assert table[:4].tolist() == [
        [0, 85, 0, 1, 0, 0x276E9C41, 0, 1000, 1005, -1, -1, -1, 2],
        [85, 76, 0, 1, 0, 0x12A1146D, 0x40, 90000, 1005, -1, -1, -1, 1],
        [161, 78, 2, 2, 0, 0xCF3EDF11, 0x30, 2000, 2000, 9, 1, -1, 1],
        [239, 61, 3, 5, 4, 0x5EC2B05D, 0, -1, 1234, 23, 5, 10, 0],
    ]


def test_scan_without_verification_lists_a_damaged_batch() -> None:
    table = batch_table(1)
    damaged = _replace(TWO_RECORDS, 80, b"\x99")
    assert scan_batches(_array(damaged), 0, 85, False, table) == (1, 85, ScanStatus.END)
    assert table[0, BatchColumn.RECORD_COUNT] == 2


def test_tail_shorter_than_its_batch_is_incomplete() -> None:
    for size in range(1, 61):
        with case(size=size):
            assert _scan(TWO_RECORDS + EMPTY[:size]) == (1, 85, ScanStatus.INCOMPLETE)


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 13])
def test_length_below_every_format_is_corrupt(length: int) -> None:
    batch = _replace(TWO_RECORDS, 8, struct.pack(">i", length))
    assert _scan(EMPTY + batch) == (1, 61, ScanStatus.CORRUPT_SIZE)
    assert _scan(batch[:12]) == (0, 0, ScanStatus.CORRUPT_SIZE)


@pytest.mark.parametrize("length", [14, 48])
def test_length_below_the_header_of_magic_two_is_corrupt(length: int) -> None:
    batch = _replace(TWO_RECORDS, 8, struct.pack(">i", length))
    assert _scan(batch) == (0, 0, ScanStatus.CORRUPT_SIZE)


def test_largest_length_is_only_incomplete() -> None:
    batch = _replace(TWO_RECORDS, 8, struct.pack(">i", (1 << 31) - 1))
    assert _scan(batch) == (0, 0, ScanStatus.INCOMPLETE)


def test_only_magic_two_is_read() -> None:
    for magic in range(256):
        with case(magic=magic):
            expected = {0: ScanStatus.OLD_MAGIC, 1: ScanStatus.OLD_MAGIC, 2: ScanStatus.END}
            status = _scan(_replace(TWO_RECORDS, 16, bytes([magic])))[2]
            assert status == expected.get(magic, ScanStatus.BAD_MAGIC)


@pytest.mark.parametrize("position", [17, 20, 21, 60, 61, 84])
def test_wrong_crc_stops_the_scan_before_the_batch(position: int) -> None:
    damaged = _replace(TWO_RECORDS, position, bytes([TWO_RECORDS[position] ^ 1]))
    assert _scan(EMPTY + damaged + EMPTY) == (1, 61, ScanStatus.BAD_CRC)


def test_offset_and_leader_epoch_lie_outside_the_crc() -> None:
    batch = (
        struct.pack(">q", 1 << 40) + TWO_RECORDS[8:12] + struct.pack(">i", 77) + TWO_RECORDS[16:]
    )
    row = inspection_row()
    assert inspect_batch(_array(batch), 0, 85, row) == ScanStatus.OK
    assert row[BatchColumn.LAST_OFFSET] == (1 << 40) + 1
    assert row[BatchColumn.LEADER_EPOCH] == 77


def test_inspection_summarizes_the_records() -> None:
    row = inspection_row()
    assert inspect_batch(_array(b"xy" + TWO_RECORDS + b"z"), 2, 88, row) == ScanStatus.OK
    assert row[BatchColumn.POSITION] == 2
    assert row[BatchColumn.SIZE] == 85
    assert row[len(BatchColumn) :].tolist() == [RecordStatus.OK, -1, 1005, 1000, 0, -1, 1]


def test_inspection_of_a_cleaned_batch_sees_the_gap() -> None:
    row = inspection_row()
    inspect_batch(_array(CLEANED), 0, 76, row)
    assert row[InspectionColumn.RECORDS_STATUS] == RecordStatus.OK
    assert row[InspectionColumn.RECORDS_CONSECUTIVE] == 0
    assert row[InspectionColumn.RECORDS_MAX_TIMESTAMP] == 1005


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 7])
def test_compressed_records_are_not_parsed(codec: int) -> None:
    row = inspection_row()
    batch = _with_crc(_replace(TWO_RECORDS, 21, struct.pack(">h", codec)))
    assert inspect_batch(_array(batch), 0, 85, row) == ScanStatus.OK
    assert row[InspectionColumn.RECORDS_STATUS] == RecordStatus.NOT_PARSED


def test_control_records_are_not_parsed() -> None:
    row = inspection_row()
    assert inspect_batch(_array(COMMIT), 0, 78, row) == ScanStatus.OK
    assert row[InspectionColumn.RECORDS_STATUS] == RecordStatus.NOT_PARSED


def test_inspection_tells_a_wrong_crc_and_still_gives_the_header() -> None:
    row = inspection_row()
    assert inspect_batch(_array(_replace(TWO_RECORDS, 84, b"y")), 0, 85, row) == ScanStatus.BAD_CRC
    assert row[BatchColumn.RECORD_COUNT] == 2
    assert row[InspectionColumn.RECORDS_STATUS] == RecordStatus.NOT_PARSED


@pytest.mark.parametrize(
    ("count", "status"),
    [
        (-1, RecordStatus.NEGATIVE_COUNT),
        (-(1 << 31), RecordStatus.NEGATIVE_COUNT),
        ((1 << 31) - 1, RecordStatus.COUNT_TOO_LARGE),
        (4, RecordStatus.COUNT_TOO_LARGE),
        (3, RecordStatus.TRUNCATED),
        (1, RecordStatus.TRAILING_BYTES),
    ],
)
def test_inspection_refuses_a_wrong_record_count(count: int, status: RecordStatus) -> None:
    row = inspection_row()
    batch = _with_crc(_replace(TWO_RECORDS, 57, struct.pack(">i", count)))
    assert inspect_batch(_array(batch), 0, 85, row) == ScanStatus.OK
    assert row[InspectionColumn.RECORDS_STATUS] == status


@pytest.mark.parametrize(("start", "end"), [(-1, 85), (3, 2), (0, 86), (86, 86)])
def test_range_outside_the_buffer_is_refused(start: int, end: int) -> None:
    with pytest.raises(IndexError):
        scan_batches(_array(TWO_RECORDS), start, end, True, batch_table(1))
    with pytest.raises(IndexError):
        inspect_batch(_array(TWO_RECORDS), start, end, inspection_row())


def test_output_with_too_few_fields_is_refused() -> None:
    with pytest.raises(IndexError):
        scan_batches(_array(EMPTY), 0, 61, True, np.empty((1, BATCH_COLUMN_COUNT - 1), np.int64))
    with pytest.raises(IndexError):
        inspect_batch(_array(EMPTY), 0, 61, np.empty(INSPECTION_COLUMN_COUNT - 1, np.int64))


def test_buffers_with_a_stride_are_refused() -> None:
    with pytest.raises(TypingError):
        inspect_batch(_array(TWO_RECORDS * 2)[::2], 0, 85, inspection_row())
