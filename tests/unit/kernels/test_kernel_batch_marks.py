"""Which batches are aborted, and what control batches say."""

import numpy as np
import numpy.typing as npt
import pytest

from varve.kernels.batch_layout import BATCH_COLUMN_COUNT, BatchColumn, RecordStatus
from varve.kernels.batch_scan import batch_table, scan_batches
from varve.kernels.transaction_marks import find_aborted, read_control_types
from varve.records import Record, build_batch, end_transaction_marker

Integers = npt.NDArray[np.int64]


def _aborted_rows(places: list[tuple[int, int]], aborted: list[tuple[int, int, int]]) -> list[int]:
    rows = np.zeros((len(places), BATCH_COLUMN_COUNT), np.int64)
    rows[:, [BatchColumn.PRODUCER_ID, BatchColumn.BASE_OFFSET]] = places
    flags = np.full(len(places), 7, np.uint8)
    table = np.array(aborted, np.int64).reshape(-1, 3)
    find_aborted(rows, np.ones(len(places), np.uint8), table, flags)
    return flags.tolist()


def test_a_batch_is_aborted_between_first_and_last_offset_of_its_own_producer() -> None:
    aborted = [(3, 10, 20), (3, 40, 50), (5, 15, 60)]
    inside = [(3, 10), (3, 20), (3, 45), (5, 15), (5, 60)]
    outside = [(3, 9), (3, 21), (3, 51), (4, 15), (5, 14), (5, 61), (2, 15), (6, 15), (-1, 15)]
    assert _aborted_rows(inside, aborted) == [1] * len(inside)
    assert _aborted_rows(outside, aborted) == [0] * len(outside)
    assert _aborted_rows(inside, []) == [0] * len(inside)


def test_what_is_no_candidate_is_not_aborted() -> None:
    rows = np.zeros((2, BATCH_COLUMN_COUNT), np.int64)
    flags = np.full(2, 7, np.uint8)
    find_aborted(rows, np.array([0, 1], np.uint8), np.zeros((1, 3), np.int64), flags)
    assert flags.tolist() == [0, 1]


def _read_types(*batches: bytes) -> tuple[list[int], int, int]:
    data = np.frombuffer(b"".join(batches), np.uint8)
    table = batch_table(len(batches))
    count, _, _ = scan_batches(data, 0, data.size, False, table)
    assert count == len(batches)
    out = np.full(count, 99, np.int64)
    status, row = read_control_types(data, 0, table, np.arange(count), out)
    return out.tolist(), status, row


def _marker(committed: bool) -> bytes:
    return end_transaction_marker(
        committed=committed, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )


def test_the_types_of_markers_are_read() -> None:
    strange = build_batch([Record(b"\0\0\x12\x34", b"")], control=True)
    types, status, _ = _read_types(_marker(True), _marker(False), strange)
    assert (types, status) == ([1, 0, 0x1234], RecordStatus.OK)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_control_record_without_a_type_is_refused(key: bytes | None) -> None:
    batch = build_batch([Record(key, b"")], control=True)
    _, status, row = _read_types(_marker(True), batch)
    assert (status, row) == (RecordStatus.FIELD_OVERRUN, 1)
