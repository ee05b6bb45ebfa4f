"""Kernels of a deduplication refuse what does not fit together, and read nothing outside."""

import numpy as np
import numpy.typing as npt
import pytest

from varve.dedup.kernels.id_words import find_headers, fold_cells
from varve.dedup.kernels.time_spans import (
    ABSENT,
    NO_ROW,
    find_cells,
    make_spans,
    read_spans,
)
from varve.kernels.batch_layout import RecordColumn
from varve.kernels.record_parse import record_table

K = np.uint64(1)


def frozen(*values: int) -> npt.NDArray[np.int64]:
    """As columns are, for which kernels are compiled."""
    return np.frombuffer(numbers(*values).tobytes(), np.int64)


def numbers(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def test_cells_need_room_and_windows_no_wider_than_cells() -> None:
    own, other, cells = numbers(0), numbers(0), np.zeros((2, 4), np.int64)
    arrays = np.zeros((1, 2), np.uint64), np.ones(1, np.uint8), numbers(15), numbers(0)
    slots = np.full(4, NO_ROW)
    with pytest.raises(IndexError, match="wider"):
        find_cells(*arrays, 5, 5, 10, K, K, slots, cells, own, other)
    with pytest.raises(IndexError, match="rows or slots"):
        find_cells(*arrays, 5, 4, 10, K, K, slots[:2].copy(), cells, own, other)
    with pytest.raises(IndexError, match="not there"):
        find_cells(*arrays[:3], numbers(1), 5, 4, 10, K, K, slots, cells, own, other)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (numbers(10, 3), -1),
        (numbers(10, 3, 19, 4), -1),
        (numbers(10), 0),
        (numbers(9, 3), 0),
        (numbers(10, 3, 20, 4), 0),
        (numbers(12, 3, 11, 4), 0),
        (numbers(-1, 3), 0),
    ],
)
def test_spans_are_read_if_they_are_of_their_cell(data: npt.NDArray[np.int64], fault: int) -> None:
    spans, cells = make_spans(2), np.array([[0, 0, 1, 7], [0, 0, 1, 1]], np.int64)
    raw = np.frombuffer(bytearray(data.astype("<i8").tobytes()), np.uint8)
    result = read_spans(raw, numbers(0, 0), numbers(len(raw), -1), numbers(1, 0), cells, 10, spans)
    assert result == fault
    if fault < 0:
        least, largest = data[:2].tolist(), data[-2:].tolist()
        assert spans.tolist() == [[ABSENT] * 4, [*least, *largest]]


def test_values_outside_of_the_data_are_misfits() -> None:
    raw = np.zeros(16, np.uint8)
    for start, size in ((1, 16), (-1, 16), (0, 32)):
        cells, spans = np.zeros((1, 4), np.int64), make_spans(1)
        assert read_spans(raw, numbers(start), numbers(size), numbers(0), cells, 5, spans) == 0


def test_ids_and_headers_outside_of_the_payload_are_refused() -> None:
    words, kinds = np.empty((1, 2), np.uint64), np.empty(1, np.uint8)
    data = np.frombuffer(bytes(8), np.uint8)
    for start, size in ((-1, 2), (7, 2)):
        with pytest.raises(IndexError, match="outside"):
            fold_cells(data, frozen(start), frozen(size), K, K, words, kinds)
    records = record_table(1)
    records[:] = 0
    records[0, RecordColumn.RECORD_END] = 9
    with pytest.raises(IndexError, match="outside"):
        find_headers(data, records, data[:1], numbers(0), numbers(0))


@pytest.mark.parametrize("area", [b"", b"\x02", b"\x02n", b"\x02n\x06v", b"\x01\x00", b"\xff" * 6])
def test_headers_that_do_not_end_name_their_record(area: bytes) -> None:
    records = record_table(1)
    records[:] = 0
    records[0, RecordColumn.HEADERS_COUNT] = 1
    records[0, RecordColumn.RECORD_END] = len(area)
    payload = np.frombuffer(area, np.uint8)
    name = np.frombuffer(b"n", np.uint8)
    assert find_headers(payload, records, name, numbers(0), numbers(0)) == 0
