"""Positions, and the marks of history in them."""

from dataclasses import replace

import pytest

from varve.records import BatchHeader, Record, build_batch, decode_header
from varve.topics import HistoryMark, Position

MARK = HistoryMark(base_offset=10, last_offset=14, leader_epoch=3, crc=0xDEADBEEF)


def _header(**changes: int) -> BatchHeader:
    batch = build_batch([Record(b"k", b"%d" % number, timestamp=1) for number in range(5)])
    return decode_header(batch)._replace(base_offset=10, partition_leader_epoch=3, **changes)


def test_a_mark_is_in_front_of_the_offsets_behind_its_first() -> None:
    assert [MARK.is_in_front_of(offset) for offset in (10, 11, 15, 16)] == [
        False,
        True,
        True,
        False,
    ]


def test_the_epoch_of_a_position_is_known_only_with_the_batch_in_front_of_it() -> None:
    assert Position(15, MARK).leader_epoch == 3
    assert Position(40, MARK).leader_epoch == -1
    assert Position(15).leader_epoch == -1


def test_a_mark_survives_json() -> None:
    assert HistoryMark.from_json(MARK.to_json()) == MARK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_offset", -1),
        ("last_offset", 9),
        ("leader_epoch", -2),
        ("crc", 1 << 32),
        ("crc", "1"),
        ("crc", True),
    ],
)
def test_a_mark_out_of_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        HistoryMark.from_json({**MARK.to_json(), name: value})


def test_the_same_batch_is_no_break() -> None:
    header = _header()
    assert HistoryMark.of(header).find_break(header) is None


def test_another_checksum_is_a_break_unless_records_were_removed() -> None:
    mark = HistoryMark.of(_header())
    assert mark.find_break(_header(crc=1)) is not None
    assert mark.find_break(_header(crc=1, records_count=4)) is None
    assert mark.find_break(_header(crc=1, attributes=0x40)) is None


def test_other_offsets_or_another_epoch_are_a_break_even_after_compaction() -> None:
    mark = HistoryMark.of(_header())
    compacted = _header(crc=1, records_count=4)
    assert replace(mark, leader_epoch=2).find_break(compacted) is not None
    assert replace(mark, last_offset=15).find_break(compacted) is not None
