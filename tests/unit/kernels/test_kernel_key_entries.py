"""Keys of whole chunks as entries: what is listed, what is skipped, what is refused."""

import struct

import numpy as np
import numpy.typing as npt
import pytest

from varve.kernels.batch_layout import BatchColumn, RecordStatus, ScanStatus
from varve.kernels.batch_scan import batch_table, scan_batches
from varve.kernels.hashes import hash_bytes
from varve.kernels.key_entries import digest_entries, scan_keys, scan_payload_keys
from varve.records import Record, build_batch

SECRET = (np.uint64(3), np.uint64(4))
RECORDS = [
    Record(b"a", b"1"),
    Record(None, b"2"),
    Record(b"", None, headers=(("h", b"x"), ("i", None))),
    Record(b"key of more than sixteen bytes", b"v" * 300),
]
SIZES = [9, 8, 14, 339]


def _rows(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    table = batch_table(100)
    count, _, status = scan_batches(data, 0, data.size, True, table)
    assert status == ScanStatus.END
    return table[:count]


def _scan(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], room: int = 100, **given: int
) -> tuple[list[list[int]], tuple[int, ...]]:
    out = np.empty((room, 4), np.uint64)
    skip = np.zeros(len(rows), np.uint8)
    if "skip" in given:
        skip[given["skip"]] = 1
    count, *rest = scan_keys(
        data,
        0,
        rows,
        given.get("first", 0),
        len(rows),
        given.get("base_offset", 0),
        given.get("number", 0),
        skip,
        *SECRET,
        out,
    )
    return out[:count].tolist(), tuple(rest)


def _words(key: bytes, offset: int, record: int, size: int, flags: int = 0) -> list[int]:
    buffer = np.frombuffer(key, np.uint8)
    high, low = hash_bytes(buffer, 0, len(key), *SECRET)
    return [high, low, offset | record << 32, size | flags << 32]


def _data(*batches: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(batches), np.uint8)


def _entries_of(record: int, offset: int) -> list[list[int]]:
    return [
        _words(b"a", offset, record, SIZES[0]),
        _words(b"", offset + 2, record + 2, SIZES[2], 1),
        _words(RECORDS[3].key or b"", offset + 3, record + 3, SIZES[3]),
    ]


def test_entries_carry_hash_offset_record_size_and_tombstone() -> None:
    data = _data(build_batch(RECORDS, base_offset=50), build_batch(RECORDS, base_offset=60))
    entries, (records, nulls, record_bytes, status, row) = _scan(
        data, _rows(data), base_offset=40, number=7
    )
    assert entries == [*_entries_of(7, 10), *_entries_of(11, 20)]
    assert (records, nulls, status, row) == (8, 2, RecordStatus.OK, 2)
    assert record_bytes == 2 * sum(SIZES) == data.size - 2 * 61


def test_skipped_batches_are_only_counted() -> None:
    data = _data(*(build_batch(RECORDS, base_offset=at) for at in (0, 4, 8)))
    entries, (records, nulls, record_bytes, status, _) = _scan(data, _rows(data), skip=1)
    assert entries == [*_entries_of(0, 0), *_entries_of(8, 8)]
    assert (records, nulls, status) == (12, 2, RecordStatus.OK)
    assert record_bytes == 2 * sum(SIZES)


def test_full_names_the_batch_to_go_on_with() -> None:
    data = _data(*(build_batch(RECORDS, base_offset=at) for at in (0, 4, 8)))
    rows = _rows(data)
    entries, (records, _, _, status, row) = _scan(data, rows, room=9)
    assert entries == [*_entries_of(0, 0), *_entries_of(4, 4)]
    assert (records, status, row) == (8, ScanStatus.FULL, 2)
    entries, (records, _, _, status, row) = _scan(data, rows, first=row, number=records)
    assert entries == _entries_of(8, 8)
    assert (records, status, row) == (4, RecordStatus.OK, 3)


def test_a_batch_of_no_records_has_no_entries() -> None:
    data = _data(build_batch(RECORDS))
    rows = _rows(data)
    rows[0, BatchColumn.RECORD_COUNT] = 0
    assert _scan(data, rows) == ([], (0, 0, 0, RecordStatus.OK, 1))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (BatchColumn.RECORD_COUNT, -1, RecordStatus.NEGATIVE_COUNT),
        (BatchColumn.RECORD_COUNT, 3, RecordStatus.TRAILING_BYTES),
        (BatchColumn.RECORD_COUNT, 5, RecordStatus.TRUNCATED),
        (BatchColumn.RECORD_COUNT, 2**31 - 1, RecordStatus.COUNT_TOO_LARGE),
        (BatchColumn.LAST_OFFSET, 102, RecordStatus.OFFSET_DELTA),
        (BatchColumn.LAST_OFFSET, 2**33, RecordStatus.OFFSET_DELTA),
        (BatchColumn.BASE_OFFSET, 99, RecordStatus.OFFSET_DELTA),
    ],
)
def test_headers_that_their_records_belie_are_refused(
    field: BatchColumn, value: int, expected: RecordStatus
) -> None:
    data = _data(build_batch(RECORDS, base_offset=100))
    rows = _rows(data)
    rows[0, field] = value
    _, (*_, status, row) = _scan(data, rows, base_offset=100)
    assert (status, row) == (expected, 0)


def test_offsets_that_do_not_ascend_are_refused() -> None:
    record = struct.Struct("7B")
    payload = _data(record.pack(12, 0, 0, 2, 0, 1, 0), record.pack(12, 0, 0, 2, 0, 1, 0))
    out = np.empty((4, 4), np.uint64)
    _, _, status, position, index, _ = scan_payload_keys(
        payload, 0, 14, 0, 2, -1, 9, 0, 0, *SECRET, out
    )
    assert (status, position, index) == (RecordStatus.OFFSET_DELTA, 7, 1)


def test_record_numbers_stay_within_32_bits() -> None:
    data = _data(build_batch(RECORDS))
    _, (*_, status, _) = _scan(data, _rows(data), number=2**32 - 3)
    assert status == RecordStatus.COUNT_TOO_LARGE


@pytest.mark.parametrize("room", [1, 2, 3, 4])
def test_a_payload_is_scanned_in_parts_when_there_is_little_room(room: int) -> None:
    data = _data(build_batch(RECORDS, base_offset=9))
    found: list[list[int]] = []
    position, index, previous, nulls, status = 61, 0, -1, 0, int(ScanStatus.FULL)
    while status == ScanStatus.FULL:
        out = np.empty((room, 4), np.uint64)
        count, more, status, position, index, previous = scan_payload_keys(
            data, position, data.size, index, 4, previous, 3, 9, 20, *SECRET, out
        )
        found += out[:count].tolist()
        nulls += more
    assert (status, position, index, nulls) == (RecordStatus.OK, data.size, 4, 1)
    assert found == _entries_of(20, 9)


@pytest.mark.parametrize(
    ("field", "value"),
    [(BatchColumn.POSITION, -1), (BatchColumn.POSITION, 1), (BatchColumn.SIZE, 60)],
)
def test_rows_that_name_bytes_outside_the_buffer_raise(field: BatchColumn, value: int) -> None:
    data = _data(build_batch(RECORDS))
    rows = _rows(data)
    rows[0, field] = value
    with pytest.raises(IndexError):
        _scan(data, rows)


def test_a_digest_depends_on_hash_and_offset_but_not_on_order() -> None:
    entries = np.random.default_rng(1).integers(0, 2**32, (50, 4), np.uint64)
    entries[:, 2] &= np.uint64(0xFFFFFFFF)
    digest = digest_entries(entries, 1000)
    assert digest_entries(entries[::-1].copy(), 1000) == digest
    moved = entries.copy()
    moved[:, 2] += np.uint64(1000)
    assert digest_entries(moved, 0) == digest
    for word in (0, 1, 2):
        changed = entries.copy()
        changed[7, word] ^= np.uint64(1)
        assert digest_entries(changed, 1000) != digest
    changed = entries.copy()
    changed[:2, 2] = changed[1::-1, 2]
    assert digest_entries(changed, 1000) != digest
