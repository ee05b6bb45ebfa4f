"""Checkpoint files are Kafka's text, and a broken line is named."""

import pytest

from varve.commit_log.names import TopicPartition
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.foundation.errors import Corrupt, UnsupportedFormat

A0 = TopicPartition("a", 0)
B7 = TopicPartition("b-c", 7)


def test_offsets_are_lines_under_version_and_count() -> None:
    data = encode_offsets({B7: 2**63 - 1, A0: 5})
    assert data == b"0\n2\na 0 5\nb-c 7 9223372036854775807\n"
    assert decode_offsets(data, "x") == {A0: 5, B7: 2**63 - 1}
    assert encode_offsets({}) == b"0\n0\n"


@pytest.mark.parametrize("data", [b"", b"0", b"0\n", b"0\n0", b"0\n0\n"])
def test_short_files_hold_nothing(data: bytes) -> None:
    assert decode_offsets(data, "x") == {}


@pytest.mark.parametrize("data", [b"0\n1\na\t0  5", b"0\r\n1\r\na 0 5\r\n", b"0\r1\ra 0 +5\r"])
def test_any_blank_and_line_end_is_read(data: bytes) -> None:
    assert decode_offsets(data, "x") == {A0: 5}


@pytest.mark.parametrize("version", [b"1", b"-1", b"99"])
def test_other_version_is_refused(version: bytes) -> None:
    with pytest.raises(UnsupportedFormat, match="some/file: line 1"):
        decode_offsets(version + b"\n0\n", "some/file")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\n", 1),
        (b"x\n", 1),
        (b"0 0\n", 1),
        (b"0\nx\n", 2),
        (b"0\n\n", 2),
        (b"0\n-1\n", 2),
        (b"0\n2\na 0 5\n", 2),
        (b"0\n0\na 0 5\n", 2),
        (b"0\n2\na 0 5\n\n", 4),
        (b"0\n1\na 0\n", 3),
        (b"0\n1\na 0 5 6\n", 3),
        (b"0\n1\na x 5\n", 3),
        (b"0\n1\na -1 5\n", 3),
        (b"0\n1\na 2147483648 5\n", 3),
        (b"0\n1\na 0 9223372036854775808\n", 3),
        (b"0\n1\na 0 1_0\n", 3),
        (b"0\n1\n\xff 0 1\n", 3),
        (b"0\n1\na 0 " + b"9" * 5000 + b"\n", 3),
    ],
)
def test_bad_line_is_refused_with_its_place(data: bytes, line: int) -> None:
    with pytest.raises(Corrupt, match=f"some/file: line {line}:"):
        decode_offsets(data, "some/file")


def test_of_a_partition_named_twice_the_last_counts() -> None:
    assert decode_offsets(b"0\n2\na 0 5\na 0 6\n", "x") == {A0: 6}
