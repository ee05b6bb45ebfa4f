"""The building kernels write and read inside their arrays only, and lists become columns."""

import sys

import numpy as np
import numpy.typing as npt
import pytest

from varve.kernels.batch_build import BuildStatus, encode_headers, measure_records, write_records
from varve.kernels.compressed_frames import ZstdStatus, zstd_extent
from varve.kernels.record_columns import join_byte_strings

Integers = npt.NDArray[np.int64]


def _integers(*values: int) -> Integers:
    array = np.array(values, np.int64)
    array.setflags(write=False)
    return array


NONE = _integers()
NO_DATA = np.frombuffer(b"", np.uint8)
DATA = np.frombuffer(b"value", np.uint8)


def _write(out: npt.NDArray[np.uint8], position: int, size: int = 5) -> tuple[int, int, int, int]:
    cells = (DATA, _integers(0), _integers(size))
    absent = (NO_DATA, NONE, NONE)
    return write_records(out, position, _integers(7), 7, NONE, *absent, *cells, *absent, NONE)


def test_measured_size_is_the_written_size() -> None:
    size = measure_records(_integers(7), 7, NONE, NONE, _integers(5), NONE, NONE)
    out = np.zeros(size, np.uint8)
    assert _write(out, 0) == (BuildStatus.OK, size, 7, -1)
    assert out.tobytes() == b"\x16\0\0\0\x01\x0avalue\0"


@pytest.mark.parametrize("position", [-1, 1, 12, 13, 2**62])
def test_output_without_room_is_left_alone(position: int) -> None:
    out = np.full(12 + 8, 0xEE, np.uint8)
    status, *_ = _write(out[:12], position)
    assert status == BuildStatus.NO_ROOM
    assert (out == 0xEE).all()


@pytest.mark.parametrize("size", [6, -2, 2**31, 2**62])
def test_cells_outside_their_bytes_are_not_read(size: int) -> None:
    assert _write(np.zeros(100, np.uint8), 0, size)[0] == BuildStatus.BAD_CELL


def test_columns_of_uneven_length_are_not_read() -> None:
    two, one = _integers(0, 0), _integers(0)
    for starts, sizes in ((two, one), (one, two), (two, two)):
        cells = (DATA, starts, sizes)
        absent = (NO_DATA, NONE, NONE)
        out = np.zeros(100, np.uint8)
        for columns in ((*cells, *absent), (*absent, *cells)):
            status, *_ = write_records(out, 0, one, 0, NONE, *columns, *absent, NONE)
            assert status == BuildStatus.BAD_COLUMN


def test_headers_without_room_are_refused() -> None:
    one = _integers(1)
    cells = (DATA, _integers(0), _integers(5))
    starts, sizes = np.empty(1, np.int64), np.empty(1, np.int64)
    status, record = encode_headers(one, *cells, *cells, np.empty(19, np.uint8), starts, sizes)
    assert (status, record) == (BuildStatus.NO_ROOM, 0)
    status, _ = encode_headers(
        one, *cells, *cells, np.empty(20, np.uint8), np.empty(0, np.int64), sizes
    )
    assert status == BuildStatus.NO_ROOM


def test_list_becomes_bytes_starts_and_sizes() -> None:
    fault, data, starts, sizes = join_byte_strings([b"ab", None, b"", b"c"])
    assert fault == -1
    assert data.tobytes() == b"abc"
    assert starts.tolist() == [0, 2, 2, 2]
    assert sizes.tolist() == [2, -1, 0, 1]


def test_misfit_is_named_by_its_index_and_leaves_no_error_behind() -> None:
    for misfit in ("text", 5, bytearray(b"x"), object()):
        assert join_byte_strings([b"", None, misfit])[0] == 2  # type: ignore[list-item]  # the point
    assert sys.exc_info() == (None, None, None)
    assert join_byte_strings([])[0] == -1


def test_joining_takes_no_references() -> None:
    cell = bytes(range(50))
    cells: list[bytes | None] = [cell] * 100
    before = sys.getrefcount(cell), sys.getrefcount(cells), sys.getrefcount(None)
    for _ in range(100):
        join_byte_strings(cells)
    assert sys.getrefcount(cell) == before[0]
    assert sys.getrefcount(cells) == before[1]
    assert abs(sys.getrefcount(None) - before[2]) < 100


def test_ranges_outside_the_buffer_are_refused() -> None:
    buffer = np.zeros(10, np.uint8)
    for start, end in ((-1, 5), (0, 11), (5, 4)):
        assert zstd_extent(buffer, start, end)[0] == ZstdStatus.TRUNCATED
