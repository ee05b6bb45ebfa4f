"""Checkpoint files: small tables of numbers as text, replaced whole.

Layout     lines ended by a newline: format version `0`, the number of entries, the entries with
           fields apart by a space. docs/formats/checkpoints.md
Crash      replaced by rename, so a reader sees the old table or the new one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from varve.commit_log.names import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from varve.foundation.errors import Corrupt, UnsupportedFormat

__all__ = [
    "CLEANER_OFFSET_FILE",
    "HIGH_WATERMARK_FILE",
    "LOG_START_OFFSET_FILE",
    "RECOVERY_POINT_FILE",
    "CheckpointLine",
    "decode_checkpoint",
    "decode_offsets",
    "encode_checkpoint",
    "encode_offsets",
]

VERSION: Final = 0
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")


class CheckpointLine:
    """One line of a checkpoint and where it stands, for reading its fields."""

    __slots__ = ("fields", "number", "where")

    def __init__(self, text: bytes, number: int, where: str) -> None:
        self.fields = text.split()
        self.number = number
        self.where = where

    def require_fields(self, count: int, meaning: str) -> None:
        if len(self.fields) != count:
            raise self.corrupt(f"{len(self.fields)} fields instead of {count} ({meaning})")

    def integer(self, field: int, *, at_least: int, at_most: int) -> int:
        """The field as a number within bounds; raises Corrupt naming file and line."""
        text = self.fields[field]
        if _INTEGER.fullmatch(text) is None:
            raise self.corrupt(f"{text[:40]!r} is not a number")
        value = int(text)
        if not at_least <= value <= at_most:
            raise self.corrupt(f"{value} lies outside {at_least}..{at_most}")
        return value

    def text(self, field: int) -> str:
        try:
            return self.fields[field].decode()
        except UnicodeDecodeError:
            raise self.corrupt(f"{self.fields[field][:40]!r} is not UTF-8") from None

    def corrupt(self, problem: str) -> Corrupt:
        return Corrupt(f"{self.where}: line {self.number}: {problem}")


def encode_checkpoint(entries: Sequence[str]) -> bytes:
    """A checkpoint file of these lines."""
    return "".join(f"{line}\n" for line in (VERSION, len(entries), *entries)).encode()


def decode_checkpoint(
    data: bytes | bytearray | memoryview, where: str = "checkpoint"
) -> list[CheckpointLine]:
    """The entries of a checkpoint; an empty file or one without a second line has none.

    Raises Corrupt naming file and line for another version or a wrong count.
    """
    lines = [
        CheckpointLine(text, number, where)
        for number, text in enumerate(bytes(data).splitlines(), start=1)
    ]
    if lines:
        _check_version(lines[0])
    if len(lines) < 2:
        return []
    lines[1].require_fields(1, "number of entries")
    count = lines[1].integer(0, at_least=0, at_most=INT32_MAX)
    entries = lines[2:]
    if count != len(entries):
        raise lines[1].corrupt(f"{count} entries announced, {len(entries)} found")
    return entries


def _check_version(line: CheckpointLine) -> None:
    line.require_fields(1, "format version")
    version = line.integer(0, at_least=-INT32_MAX, at_most=INT32_MAX)
    if version != VERSION:
        raise UnsupportedFormat(
            f"{line.where}: line 1: format version {version}, only {VERSION} is known"
        )


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint, sorted by partition."""
    return encode_checkpoint(
        [f"{key.topic} {key.partition} {offsets[key]}" for key in sorted(offsets)]
    )


def decode_offsets(
    data: bytes | bytearray | memoryview, where: str = "checkpoint"
) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint; of a partition named twice the last counts."""
    offsets = {}
    for line in decode_checkpoint(data, where):
        line.require_fields(3, "topic partition offset")
        partition = line.integer(1, at_least=0, at_most=INT32_MAX)
        offset = line.integer(2, at_least=-INT64_MAX - 1, at_most=INT64_MAX)
        offsets[TopicPartition(line.text(0), partition)] = offset
    return offsets
