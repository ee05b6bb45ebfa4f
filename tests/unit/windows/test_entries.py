"""Composite keys: bytes, order, and bounds that miss nothing."""

import pytest

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.windows.entries import (
    SEQUENCE_MAX,
    TIME_MAX_MS,
    KeyRange,
    WindowKey,
    check_time,
    decode_time,
    decode_window_key,
    encode_window_key,
)

_TOP_TIME = 0x0A << 56
"""A time whose first byte is 0A."""


def test_a_key_is_key_time_and_sequence_in_big_endian() -> None:
    data = encode_window_key(b"ab", 258, 3)
    assert data == b"ab" + bytes.fromhex("0000000000000102 00000003")
    assert decode_window_key(data) == WindowKey(b"ab", 258, 3)
    assert decode_time(data) == 258
    assert decode_window_key(bytes(12)) == WindowKey(b"", 0, 0)


@pytest.mark.parametrize(
    "data", [b"", bytes(11), b"k" + b"\xff" * 8 + bytes(4), b"\x00" * 8 + b"\xff" * 4]
)
def test_bytes_that_are_no_key_are_corrupt(data: bytes) -> None:
    for decode in (decode_window_key, decode_time):
        with pytest.raises(Corrupt, match="window key"):
            decode(data)


def test_bounds_of_one_key_are_tight() -> None:
    expected = KeyRange(b"k", b"k", 10, 20)
    assert expected.lower() == encode_window_key(b"k", 10, 0)
    assert expected.upper() == encode_window_key(b"k", 20, SEQUENCE_MAX)
    assert KeyRange(b"k", b"k", -5, 20).lower() == encode_window_key(b"k", 0, 0)


def test_the_lower_bound_of_a_range_ignores_the_time() -> None:
    expected = KeyRange(b"a", b"z", 10, 20)
    assert expected.lower() == b"a" + bytes(12)
    assert encode_window_key(b"a\x00", 15) >= b"a" + bytes(12)


def test_open_sides_have_no_bounds() -> None:
    assert KeyRange(None, b"z", 10, 20).lower() is None
    assert KeyRange(b"a", None, 10, 20).upper() is None


@pytest.mark.parametrize(
    ("last", "to_ms", "kept"),
    [
        ("0A0B0C", 20, "0A0B0C"),
        ("0A0B0C", TIME_MAX_MS, "0A"),
        ("0C0C09", _TOP_TIME, "0C0C"),
        ("0C0A0B", _TOP_TIME, "0C0A0B"),
        ("020C0C", _TOP_TIME, "020C0C"),
        ("09", _TOP_TIME, "09"),
    ],
)
def test_the_upper_bound_is_truncated_by_the_first_byte_of_the_time(
    last: str, to_ms: int, kept: str
) -> None:
    upper = KeyRange(b"\x01", bytes.fromhex(last), 0, to_ms).upper()
    assert upper == encode_window_key(bytes.fromhex(kept), to_ms, SEQUENCE_MAX)


def test_the_upper_bound_covers_a_shorter_key_with_a_late_time() -> None:
    """Without truncation `0A0B..` would end the scan before key 0A at the end of time."""
    expected = KeyRange(b"\x0a", b"\x0a\x0b\x0c", 0, TIME_MAX_MS)
    upper = expected.upper()
    assert upper is not None
    assert encode_window_key(b"\x0a", TIME_MAX_MS, SEQUENCE_MAX) <= upper
    assert encode_window_key(b"\x0a\x0b\x0c", TIME_MAX_MS, SEQUENCE_MAX) <= upper


def test_the_upper_bound_covers_a_key_that_goes_on_with_zeros_in_the_last_one() -> None:
    """The reference compares one byte of the time alone, and would miss `a` at 1."""
    upper = KeyRange(b"a", b"a\x00", 0, 10).upper()
    assert upper == encode_window_key(b"a", 10, SEQUENCE_MAX)
    assert encode_window_key(b"a\x00", 10, SEQUENCE_MAX) < upper


def test_the_upper_bound_covers_the_empty_key() -> None:
    for first in (None, b""):
        upper = KeyRange(first, b"\x01\x02", 0, _TOP_TIME).upper()
        assert upper == encode_window_key(b"", _TOP_TIME, SEQUENCE_MAX)
        upper = KeyRange(first, b"\x01\x02", 0, 20).upper()
        assert upper == encode_window_key(b"\x01\x02", 20, SEQUENCE_MAX)


@pytest.mark.parametrize("time_ms", [-1, TIME_MAX_MS + 1])
def test_times_outside_63_bits_are_refused(time_ms: int) -> None:
    with pytest.raises(InvalidRequest, match=f"time {time_ms} is outside"):
        check_time(time_ms)
