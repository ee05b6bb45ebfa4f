"""Cells into columns, headers into cells, and the last record of each key."""

import numpy as np
import pytest

from varve.kernels.batch_layout import NO_LOG_APPEND_TIMESTAMP, RecordColumn, RecordStatus
from varve.kernels.record_columns import (
    HEADER_CELL_COUNT,
    BatchSpan,
    add_hashes,
    column_offsets,
    copy_cells,
    find_header_cells,
    mark_latest,
    parse_batches,
)
from varve.kernels.record_parse import record_table
from varve.records import HEADER_BYTES, Record, build_batch

CELLS = np.array([[0, 3], [3, -1], [3, 0], [3, 2]], np.int64)
PAYLOAD = np.frombuffer(b"abcde", np.uint8)


def parse(*batches: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    payload = np.frombuffer(b"".join(batches), np.uint8)
    ends = np.cumsum([len(batch) for batch in batches])
    spans = np.array(
        [
            [end - len(batch) + HEADER_BYTES, end, batch[60], 10 * number, 5, -1 << 63]
            for number, (batch, end) in enumerate(zip(batches, ends, strict=True))
        ],
        np.int64,
    )
    records = record_table(int(spans[:, BatchSpan.RECORD_COUNT].sum()))
    status, _, _ = parse_batches(payload, spans, records)
    return payload, records, status


def test_records_of_several_batches_stand_in_one_table() -> None:
    first = build_batch([Record(b"a", b"1", timestamp=0), Record(b"b", b"2", timestamp=1)])
    second = build_batch([Record(b"c", None, timestamp=0)])
    payload, records, status = parse(first, second)
    assert status == RecordStatus.OK
    assert records[:, RecordColumn.OFFSET].tolist() == [0, 1, 10]
    starts = records[:, RecordColumn.KEY_START].tolist()
    assert bytes(payload[starts]) == b"abc"
    assert NO_LOG_APPEND_TIMESTAMP == -1 << 63


def test_a_fault_names_its_batch_and_record() -> None:
    batch = build_batch([Record(b"a", b"1", timestamp=0)])
    payload = np.frombuffer(batch, np.uint8)
    spans = np.array([[HEADER_BYTES, len(batch) - 1, 1, 0, 0, -1 << 63]], np.int64)
    status, at, record = parse_batches(payload, spans, record_table(1))
    assert (status != RecordStatus.OK, at, record) == (True, 0, 0)


def test_chosen_cells_lie_one_after_the_other() -> None:
    chosen = np.array([3, 1, 0], np.int64)
    offsets = np.empty(4, np.int32)
    assert column_offsets(CELLS, 1, chosen, offsets) == 5
    assert offsets.tolist() == [0, 2, 2, 5]
    out = np.empty(5, np.uint8)
    copy_cells(PAYLOAD, CELLS, 0, chosen, offsets, out)
    assert bytes(out) == b"deabc"


def test_cells_outside_of_their_bytes_are_refused() -> None:
    outside = np.array([[4, 3]], np.int64)
    offsets = np.empty(2, np.int32)
    one = np.zeros(1, np.int64)
    column_offsets(outside, 1, one, offsets)
    with pytest.raises(IndexError, match="outside the payload"):
        copy_cells(PAYLOAD, outside, 0, one, offsets, np.empty(8, np.uint8))
    with pytest.raises(IndexError, match="not there"):
        column_offsets(outside, 1, np.array([7]), offsets)
    with pytest.raises(IndexError, match="no room"):
        copy_cells(PAYLOAD, CELLS, 0, one, np.array([0, 3], np.int32), np.empty(2, np.uint8))


def test_more_bytes_than_offsets_can_tell_are_noticed() -> None:
    huge = np.array([[0, 1 << 30]], np.int64)
    assert column_offsets(huge, 1, np.zeros(3, np.int64), np.empty(4, np.int32)) == -1


def test_headers_become_cells() -> None:
    record = Record(b"k", b"v", (("ab", b"xyz"), ("c", None)), 0)
    payload, records, _ = parse(build_batch([record]))
    cells = np.empty((2, HEADER_CELL_COUNT), np.int64)
    assert find_header_cells(payload, records, np.zeros(1, np.int64), cells) == RecordStatus.OK
    key, size, value, value_size = cells[0].tolist()
    assert bytes(payload[key : key + size]) == b"ab"
    assert bytes(payload[value : value + value_size]) == b"xyz"
    assert cells[1, 1] == 1
    assert cells[1, 3] == -1


def test_the_last_record_of_each_key_is_kept_once() -> None:
    records = record_table(5)
    records[:, RecordColumn.KEY_SIZE] = [1, 1, 1, -1, 1]
    hashes = np.array([[1, 1], [1, 2], [1, 1], [0, 0], [1, 2]], np.uint64)
    slots = np.zeros((16, 2), np.uint64)
    keep = np.array([True, True, True, True, False])
    assert mark_latest(hashes, records, keep, slots) == 2
    assert keep.tolist() == [False, True, True, False, False]
    grown = np.zeros((64, 2), np.uint64)
    add_hashes(slots, grown)
    keep = np.ones(5, np.bool_)
    assert mark_latest(hashes, records, keep, grown) == 0
    assert not keep.any()


def test_a_set_without_slots_is_refused() -> None:
    hashes, slots = np.ones((1, 2), np.uint64), np.zeros((0, 2), np.uint64)
    with pytest.raises(IndexError, match="no slots"):
        add_hashes(hashes, slots)
    with pytest.raises(IndexError, match="no slots"):
        mark_latest(hashes, record_table(1), np.ones(1, np.bool_), slots)
