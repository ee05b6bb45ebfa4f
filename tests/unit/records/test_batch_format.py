"""decode_header accepts format 2 only, and its refusals name place, value and remedy."""

import pytest

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.records import (
    Codec,
    Record,
    TimestampType,
    build_batch,
    decode_header,
    increment_sequence,
)

BATCH = build_batch([Record(b"k", b"v", timestamp=5)])
INT_MAX = 2**31 - 1


def _with_byte(position: int, value: int) -> bytes:
    changed = bytearray(BATCH)
    changed[position] = value
    return bytes(changed)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_with_place_and_remedy(magic: int) -> None:
    buffer = b"\0" * 7 + _with_byte(16, magic)
    with pytest.raises(UnsupportedFormat) as caught:
        decode_header(buffer, 7, where="topic-0/00000000000000000000.log")
    message = str(caught.value)
    assert "topic-0/00000000000000000000.log" in message
    assert "position 7" in message
    assert f"format {magic}" in message
    assert "MirrorMaker" in message


def test_old_message_shorter_than_a_header_is_still_named_unsupported() -> None:
    with pytest.raises(UnsupportedFormat):
        decode_header(_with_byte(16, 1)[:34])


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_unknown_magic_is_corrupt(magic: int) -> None:
    with pytest.raises(Corrupt, match="magic") as caught:
        decode_header(_with_byte(16, magic))
    assert not isinstance(caught.value, UnsupportedFormat)


def test_length_below_the_header_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="length 48, the least is 49"):
        decode_header(_with_byte(11, 48))


@pytest.mark.parametrize("size", [0, 16, 17, 60])
def test_short_buffers_are_corrupt(size: int) -> None:
    with pytest.raises(Corrupt):
        decode_header(BATCH[:size])


def test_negative_position_is_corrupt_and_never_counts_from_the_end() -> None:
    with pytest.raises(Corrupt):
        decode_header(BATCH, -len(BATCH))


def test_header_is_decoded_without_its_records() -> None:
    assert decode_header(BATCH[:61]).size == len(BATCH)


def test_attribute_bits() -> None:
    header = decode_header(BATCH)._replace(attributes=0x7B)
    assert header.codec is Codec.LZ4
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control
    assert header.has_delete_horizon
    assert header.delete_horizon_ms == 5
    assert decode_header(BATCH).delete_horizon_ms is None


@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_codec_is_an_error_only_when_needed(number: int) -> None:
    header = decode_header(_with_byte(22, number))
    with pytest.raises(Corrupt, match=f"codec number {number}"):
        _ = header.codec


def test_only_the_low_byte_of_attributes_counts() -> None:
    header = decode_header(_with_byte(21, 0x7F))
    assert header.codec is Codec.NONE
    assert not header.is_control


def test_last_sequence_wraps() -> None:
    header = decode_header(BATCH)._replace(base_sequence=INT_MAX - 1, last_offset_delta=3)
    assert header.last_sequence == 1


@pytest.mark.parametrize(
    ("sequence", "count", "later"),
    [(0, 0, 0), (INT_MAX, 0, INT_MAX), (INT_MAX, 1, 0), (INT_MAX - 1, 3, 1), (5, 10, 15)],
)
def test_sequences_wrap_after_int_max(sequence: int, count: int, later: int) -> None:
    assert increment_sequence(sequence, count) == later
