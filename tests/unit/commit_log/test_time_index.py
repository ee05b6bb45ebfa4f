"""The time index keeps Kafka's bytes, order and lookups."""

import struct

import pytest

from varve.commit_log.sparse_index import TimeIndex
from varve.foundation.errors import Corrupt, InvalidOffset, InvalidSetting

BASE = 1000


def index_of(*entries: tuple[int, int], max_bytes: int = 1200) -> TimeIndex:
    index = TimeIndex(BASE, max_bytes)
    for timestamp, offset in entries:
        index.append(timestamp, offset)
    return index


def test_empty_index_answers_with_the_base() -> None:
    index = index_of()
    assert index.last == (-1, BASE)
    assert index.lookup(2**62) == (-1, BASE)
    index.check("x")


def test_entries_are_timestamp_and_relative_offset() -> None:
    index = index_of((50, 1005), (70, 1010))
    assert index.encode() == struct.pack(">qiqi", 50, 5, 70, 10)
    assert index.entries().tolist() == [[50, 1005], [70, 1010]]
    assert index.size_bytes == 24


def test_lookup_takes_the_greatest_entry_at_or_below() -> None:
    index = index_of((50, 1005), (70, 1010))
    answers = [index.lookup(t) for t in (-(2**70), 49, 50, 69, 70, 2**70)]
    assert answers == [(-1, BASE), (-1, BASE), (50, 1005), (50, 1005), (70, 1010), (70, 1010)]


def test_only_a_greater_timestamp_adds_an_entry() -> None:
    index = index_of((50, 1005), (50, 1005), (50, 1009))
    assert index.entries().tolist() == [[50, 1005]]


def test_records_without_timestamps_add_nothing() -> None:
    assert index_of((-1, BASE), (-1, BASE + 5)).count == 0


def test_lower_timestamp_is_refused() -> None:
    index = index_of((50, 1005))
    with pytest.raises(Corrupt, match="49"):
        index.append(49, 1006)


@pytest.mark.parametrize("offset", [1004, 999, BASE + 2**31])
def test_offset_below_the_last_or_out_of_range_is_refused(offset: int) -> None:
    index = index_of((50, 1005))
    with pytest.raises(InvalidOffset, match=str(offset)):
        index.append(60, offset)
    assert index.last == (50, 1005)


def test_offset_below_the_base_is_refused_when_empty() -> None:
    with pytest.raises(InvalidOffset):
        index_of().append(5, BASE - 1)


def test_same_offset_with_greater_timestamp_is_taken() -> None:
    assert index_of((50, 1005), (51, 1005)).count == 2


def test_one_slot_is_kept_for_the_end() -> None:
    index = index_of((1, BASE), (2, BASE + 1), max_bytes=36)
    assert index.is_full
    with pytest.raises(AssertionError, match="full"):
        index.append(3, BASE + 2)
    index.append(3, BASE + 2, skip_full_check=True)
    assert index.count == 3
    with pytest.raises(AssertionError, match="full"):
        index.append(4, BASE + 3, skip_full_check=True)


def test_bound_below_one_entry_is_refused() -> None:
    with pytest.raises(InvalidSetting):
        TimeIndex(0, 11)


def test_truncation_goes_by_offset() -> None:
    index = index_of((50, 1005), (70, 1010), (90, 1020))
    index.truncate_to(1010)
    assert index.last == (50, 1005)
    index.append(60, 1007)
    assert index.entries().tolist() == [[50, 1005], [60, 1007]]
    index.truncate_to(0)
    assert index.last == (-1, BASE)
    index.append(1, BASE)


def test_decoded_file_goes_on_growing() -> None:
    index = TimeIndex.decode(struct.pack(">qiqi", 50, 5, 70, 10), BASE, 1200)
    assert index.last == (70, 1010)
    index.append(80, 1010)
    assert index.count == 3


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
def test_true_entries_ascend(entries: tuple[int, ...], is_ascending: bool) -> None:
    data = struct.pack(">qiqi", *entries)
    assert TimeIndex.decode(data, BASE, 1200).is_ascending is is_ascending
