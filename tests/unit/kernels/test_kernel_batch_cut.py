"""Where a run of batches must end."""

import numpy as np
import pytest

from tests.support.cases import case
from varve.kernels.batch_scan import cut_batches
from varve.records import Record, build_batch


def batch(offset: int, count: int = 1) -> bytes:
    return build_batch([Record(b"k", b"v", timestamp=1)] * count, base_offset=offset)


def cut(data: bytes, limit: int = 1 << 40) -> tuple[int, int]:
    return cut_batches(np.frombuffer(data, np.uint8), limit)


def test_whole_batches_are_kept() -> None:
    data = batch(0) + batch(1, 3)
    assert cut(data) == (len(data), 4)


@pytest.mark.parametrize("missing", [1, 40, 70])
def test_an_incomplete_batch_is_cut(missing: int) -> None:
    first = batch(0)
    assert cut((first + batch(1))[:-missing]) == (len(first), 1)


def test_a_batch_that_reaches_the_limit_is_cut() -> None:
    first = batch(0)
    data = first + batch(1, 4)
    assert cut(data, 4) == (len(first), 1)
    assert cut(data, 5) == (len(data), 5)
    assert cut(data, 0) == (0, -1)


def test_too_little_for_a_header_is_nothing() -> None:
    for size in range(28):
        with case(size=size):
            assert cut(batch(0)[:size]) == (0, -1)


@pytest.mark.parametrize(("position", "value"), [(16, 1), (16, 0), (16, 3), (8, 0x80), (11, 3)])
def test_what_is_no_batch_is_told_at_the_start_and_cut_behind(position: int, value: int) -> None:
    first, other = batch(0), bytearray(batch(1))
    other[position] = value
    assert cut(bytes(other)) == (-1, -1)
    assert cut(first + bytes(other)) == (len(first), 1)
