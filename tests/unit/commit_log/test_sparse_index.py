"""The two sparse indexes keep Kafka's bytes, their bounds and their order."""

import struct
import threading

import numpy as np
import pytest

from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.foundation.errors import Corrupt, InvalidOffset, InvalidSetting

BASE = 1000


def index_of(*entries: tuple[int, int], max_bytes: int = 1024) -> OffsetIndex:
    index = OffsetIndex(BASE, max_bytes)
    for offset, position in entries:
        index.append(offset, position)
    return index


def test_empty_index_answers_with_the_base() -> None:
    index = index_of()
    assert index.lookup(BASE + 5) == (BASE, 0)
    assert (index.count, index.size_bytes, index.last_offset) == (0, 0, BASE)
    assert index.encode() == b""
    index.check("x")


def test_entries_are_relative_offset_and_position() -> None:
    index = index_of((1005, 100), (1010, 4300))
    assert index.encode() == struct.pack(">iiii", 5, 100, 10, 4300)
    assert index.entries().tolist() == [[1005, 100], [1010, 4300]]


@pytest.mark.parametrize("offset", [1009, 1010, 0, -1])
def test_offset_not_above_the_last_is_refused(offset: int) -> None:
    index = index_of((1010, 0))
    with pytest.raises(InvalidOffset, match=str(offset)):
        index.append(offset, 5)
    assert index.count == 1


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31])
def test_offset_out_of_the_segments_range_is_refused(offset: int) -> None:
    with pytest.raises(InvalidOffset):
        index_of().append(offset, 0)


def test_full_at_the_largest_multiple_that_fits() -> None:
    index = index_of(max_bytes=31)
    for n in range(3):
        assert not index.is_full
        index.append(BASE + n, n)
    assert index.is_full
    with pytest.raises(AssertionError, match="full"):
        index.append(BASE + 9, 9)
    assert index.count == 3


def test_bound_below_one_entry_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"segment\.index\.bytes"):
        OffsetIndex(0, 7)


def test_decode_rounds_the_length_down_and_check_tells() -> None:
    index = OffsetIndex.decode(struct.pack(">ii", 5, 100) + b"abc", BASE, 1024)
    assert index.count == 1
    with pytest.raises(Corrupt, match=r"x: 11 bytes"):
        index.check("x")
    index.truncate_to(0)
    index.check("x")


def test_file_larger_than_the_bound_is_kept_and_full() -> None:
    data = struct.pack(">iiii", 5, 100, 10, 4300)
    for max_bytes in (0, 8, 16):
        index = OffsetIndex.decode(data, BASE, max_bytes)
        assert index.is_full
        assert index.encode() == data


def test_check_refuses_a_last_offset_below_the_base() -> None:
    index = OffsetIndex.decode(struct.pack(">ii", -5, 100), BASE, 1024)
    with pytest.raises(Corrupt, match=r"some/file.*995"):
        index.check("some/file")


@pytest.mark.parametrize(
    ("entries", "is_ascending"),
    [
        ((5, 100, 10, 4300), True),
        ((5, 100, 5, 4300), False),
        ((5, 100, 10, 100), False),
        ((5, 100, 0, 0), False),
        ((), True),
    ],
)
def test_true_entries_ascend(entries: tuple[int, ...], is_ascending: bool) -> None:
    data = struct.pack(f">{len(entries)}i", *entries)
    assert OffsetIndex.decode(data, BASE, 1024).is_ascending is is_ascending


def test_readers_beside_the_appender_see_only_whole_entries() -> None:
    index = OffsetIndex(BASE, 1 << 20)
    wrong: list[tuple[int, int]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            offset, position = index.lookup(2**62)
            if position != (offset - BASE) * 3:
                wrong.append((offset, position))
            middle = index.lookup(BASE + 500)
            if middle[1] != (middle[0] - BASE) * 3:
                wrong.append(middle)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(30_000):
        index.append(BASE + n, n * 3)
    done.set()
    reader.join()
    assert not wrong
    assert np.array_equal(index.entries()[:, 1], np.arange(30_000) * 3)


# From timestamp to offset


def time_index_of(*entries: tuple[int, int], max_bytes: int = 1200) -> TimeIndex:
    index = TimeIndex(BASE, max_bytes)
    for timestamp, offset in entries:
        index.append(timestamp, offset)
    return index


def test_empty_time_index_answers_with_the_base() -> None:
    index = time_index_of()
    assert index.last == (-1, BASE)
    assert index.lookup(2**62) == (-1, BASE)
    index.check("x")


def test_entries_are_timestamp_and_relative_offset() -> None:
    index = time_index_of((50, 1005), (70, 1010))
    assert index.encode() == struct.pack(">qiqi", 50, 5, 70, 10)
    assert index.entries().tolist() == [[50, 1005], [70, 1010]]
    assert index.size_bytes == 24


def test_lower_timestamp_is_refused() -> None:
    index = time_index_of((50, 1005))
    with pytest.raises(Corrupt, match="49"):
        index.append(49, 1006)


@pytest.mark.parametrize("offset", [1004, 999, BASE + 2**31])
def test_offset_below_the_last_or_out_of_range_is_refused(offset: int) -> None:
    index = time_index_of((50, 1005))
    with pytest.raises(InvalidOffset, match=str(offset)):
        index.append(60, offset)
    assert index.last == (50, 1005)


def test_offset_below_the_base_is_refused_when_empty() -> None:
    with pytest.raises(InvalidOffset):
        time_index_of().append(5, BASE - 1)


def test_one_slot_is_kept_for_the_end() -> None:
    index = time_index_of((1, BASE), (2, BASE + 1), max_bytes=36)
    assert index.is_full
    with pytest.raises(AssertionError, match="full"):
        index.append(3, BASE + 2)
    index.append(3, BASE + 2, skip_full_check=True)
    assert index.count == 3
    with pytest.raises(AssertionError, match="full"):
        index.append(4, BASE + 3, skip_full_check=True)


def test_bound_below_one_time_entry_is_refused() -> None:
    with pytest.raises(InvalidSetting):
        TimeIndex(0, 11)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (struct.pack(">qiqi", 50, 5, 40, 10), "last timestamp 40"),
        (struct.pack(">qi", 50, -1), "999"),
        (struct.pack(">qi", 50, 5) + b"abc", "15 bytes"),
    ],
)
def test_check_refuses_what_cannot_be_true(data: bytes, problem: str) -> None:
    index = TimeIndex.decode(data, BASE, 1200)
    with pytest.raises(Corrupt, match=f"some/file.*{problem}"):
        index.check("some/file")


@pytest.mark.parametrize(
    ("entries", "is_ascending"),
    [
        ((50, 5, 70, 10), True),
        ((50, 5, 70, 5), True),
        ((50, 5, 50, 10), False),
        ((50, 5, 70, 4), False),
        ((50, 5, 0, 0), False),
    ],
)
def test_true_time_entries_ascend(entries: tuple[int, ...], is_ascending: bool) -> None:
    data = struct.pack(">qiqi", *entries)
    assert TimeIndex.decode(data, BASE, 1200).is_ascending is is_ascending
