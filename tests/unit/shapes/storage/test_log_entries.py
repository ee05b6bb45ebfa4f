"""Kernels of a shape's log: encode, strip and scan agree with the plain codec, on any bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shape_entries import encode_entry
from varve.shapes.kernels.log_entries import (
    NUMBER_MAX,
    EntryStatus,
    encode_entries,
    scan_entries,
    strip_entries,
)
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.log_writer import DELETE, INSERT, ShapeEntry

FOREVER = (NUMBER_MAX, NUMBER_MAX)


def _entries(count: int, json_size: int = 10) -> list[ShapeEntry]:
    return [
        ShapeEntry(ShapeOffset(n, n % 3), b"key%d" % n, INSERT, b"%0*d" % (json_size, n))
        for n in range(1, count + 1)
    ]


def _encode(entries: list[ShapeEntry], **rooms: int) -> tuple[int, int, bytes, int]:
    given_rooms = {"json_room": 1 << 40, "byte_room": 1 << 40, **rooms}
    status, count, data, json_bytes = encode_entries(entries, start=0, last=(0, 0), **given_rooms)
    return status, count, data.tobytes(), json_bytes


def _strip(
    data: bytes, after: tuple[int, int] = (0, 0), until: tuple[int, int] = FOREVER
) -> tuple[int, int, bytes, int]:
    out = np.empty(len(data), np.uint8)
    found = strip_entries(np.frombuffer(data, np.uint8), *after, *until, out)
    return found[0], found[1], out[: found[2]].tobytes(), found[3]


def _scan(data: bytes, until: tuple[int, int] = FOREVER) -> tuple[int, int, int, int, int, int]:
    return scan_entries(np.frombuffer(data, np.uint8), 0, 0, *until)


def test_many_entries_in_one_buffer_are_the_single_ones_joined() -> None:
    entries = _entries(50)
    status, count, data, json_bytes = _encode(entries)
    assert (status, count, json_bytes) == (EntryStatus.MORE, 50, 500)
    assert data == b"".join(map(encode_entry, entries))


def test_encoding_stops_behind_the_entry_that_fills_a_room() -> None:
    entries = _entries(9)
    assert _encode(entries, json_room=25)[1] == 3
    size = len(encode_entry(entries[0]))
    assert _encode(entries, byte_room=2 * size)[1] == 2
    assert _encode(entries, byte_room=2 * size + 1)[1] == 3


@pytest.mark.parametrize(
    ("entry", "status"),
    [
        (1, EntryStatus.NOT_AN_ENTRY),
        ((1, b"", INSERT, b""), EntryStatus.NOT_AN_ENTRY),
        (((1, 0), "key", INSERT, b""), EntryStatus.NOT_AN_ENTRY),
        (((1, 0), b"", INSERT, "json"), EntryStatus.NOT_AN_ENTRY),
        (((0, 0), b"", INSERT, b""), EntryStatus.BAD_FIELD),
        (((1, -1), b"", INSERT, b""), EntryStatus.BAD_FIELD),
        (((1 << 64, 0), b"", INSERT, b""), EntryStatus.BAD_FIELD),
        (((1, 0), b"", ord("x"), b""), EntryStatus.BAD_FIELD),
    ],
)
def test_what_is_no_entry_is_named_and_nothing_is_encoded(entry: object, status: int) -> None:
    good = ShapeEntry(ShapeOffset(1, 0), b"", DELETE, b"")
    found, count, data, _ = encode_entries(
        [good, entry], start=0, json_room=99, byte_room=999, last=(0, 5)
    )
    assert (found, count, data.size) == (status, 1, 0)


def test_offsets_that_do_not_ascend_are_refused() -> None:
    entry = ShapeEntry(ShapeOffset(4, 4), b"", INSERT, b"")
    for last in ((4, 4), (4, 5), (5, 0)):
        status, _, _, _ = encode_entries([entry], start=0, json_room=9, byte_room=99, last=last)
        assert status == EntryStatus.BAD_ORDER


def test_strip_gives_the_messages_of_a_range_joined_by_commas() -> None:
    entries = _entries(6, 2)
    data = b"".join(map(encode_entry, entries))
    assert _strip(data) == (EntryStatus.MORE, len(data), b"01,02,03,04,05,06", 0)
    status, _, out, _ = _strip(data, after=(2, 2), until=(4, 1))
    assert (status, out) == (EntryStatus.DONE, b"03,04")
    status, position, out, _ = _strip(data, after=(2, 2), until=(4, 0))
    assert (status, out) == (EntryStatus.DONE, b"03")
    assert position == len(b"".join(map(encode_entry, entries[:3])))


def test_an_entry_cut_off_tells_how_long_it_is() -> None:
    data = encode_entry(_entries(1, 100)[0])
    for size in range(1, len(data)):
        status, position, out, needed = _strip(data[:size])
        assert (status, position, out) == (EntryStatus.MORE, 0, b"")
        assert size < needed <= len(data)


def test_an_entry_below_the_range_is_checked_before_it_is_passed_over() -> None:
    data = encode_entry(_entries(1)[0])
    assert _strip(data, after=(1, 1)) == (EntryStatus.MORE, len(data), b"", 0)
    assert _strip(data[:-1] + b"x", after=(1, 1))[0] == EntryStatus.BAD_CRC


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_leaves_the_messages_as_they_are(at: int, flip: int) -> None:
    entries = _entries(5)
    data = bytearray(b"".join(map(encode_entry, entries)))
    data[at % len(data)] ^= flip
    status, _, out, needed = _strip(bytes(data))
    expected = b",".join(entry.json for entry in entries)
    if status == EntryStatus.MORE and not needed:
        assert out == expected
    else:
        assert expected.startswith(out)
    scanned = _scan(bytes(data))
    assert scanned[0] != EntryStatus.MORE or scanned[1] < len(data)


@given(st.binary(max_size=300))
def test_strange_bytes_are_never_read_beyond_their_end(data: bytes) -> None:
    for status, position in (_strip(data)[:2], _scan(data)[:2]):
        assert status in list(EntryStatus)
        assert position >= 0


def test_scan_counts_json_and_stops_at_the_durable_place() -> None:
    entries = _entries(6)
    data = b"".join(map(encode_entry, entries))
    third = len(b"".join(map(encode_entry, entries[:3])))
    assert _scan(data, (3, 0)) == (EntryStatus.DONE, third, 3, 0, 30, 0)
    torn = data[: third + 20] + b"torn"
    assert _scan(torn, (3, 0)) == (EntryStatus.DONE, third, 3, 0, 30, 0)
    assert _scan(torn)[:5] == (EntryStatus.MORE, third, 3, 0, 30)
