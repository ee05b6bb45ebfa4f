"""Checkpoint files: small tables of numbers as text, replaced as a whole.

Layout     lines ended by a newline: format version `0`, the number of entries, the entries with
           fields separated by a space. docs/reference/formats/checkpoints.md
Invariant  an entry of the cleaner's checkpoint never lies beyond the end of its log: it is lowered,
           durably, before the log is truncated, and removed with the partition.
Crash      replaced by rename, so a reader sees the old table or the new one. An outdated cleaner
           offset only makes the next cleaning read more than necessary.
Threads    one lock per file around its entries and the file; it may be taken under a log's lock,
           and no log's lock is taken under it.
"""

import logging
import re
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from varve.commit_log.health import DirectoryHealth
from varve.commit_log.names import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, UnsupportedFormat

logger = logging.getLogger(__name__)

VERSION: Final = 0
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")


class CheckpointLine:
    """One line of a checkpoint with its file and line number, for decoding its fields."""

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
    """The offsets of a checkpoint; the last entry of a partition applies."""
    offsets = {}
    for line in decode_checkpoint(data, where):
        line.require_fields(3, "topic partition offset")
        partition = line.integer(1, at_least=0, at_most=INT32_MAX)
        offset = line.integer(2, at_least=-INT64_MAX - 1, at_most=INT64_MAX)
        offsets[TopicPartition(line.text(0), partition)] = offset
    return offsets


class OffsetCheckpoint:
    """One offset for each partition of a log directory, in one file."""

    def __init__(
        self,
        fs: FileSystem | None,
        name: str,
        health: DirectoryHealth,
        hosted: Container[TopicPartition] | None,
    ) -> None:
        self._fs = fs
        self._path = f"{health.path}/{name}"
        self._health = health
        self._hosted = hosted
        self._lock = threading.Lock()
        self._offsets: dict[TopicPartition, int] = {}  # guarded by _lock

    def load(self) -> None:
        """Reads the file; a corrupt one counts as empty, which is slower but loses no records."""
        assert self._fs is not None
        try:
            offsets = decode_offsets(self._fs.read(self._path), where=self._path)
        except FileNotFoundError:
            offsets = {}
        except Corrupt as error:
            logger.warning(
                "%(path)s: unreadable checkpoint: %(error)s",
                {"path": self._path, "error": str(error)},
            )
            offsets = {}
        with self._lock:
            self._offsets = offsets

    def find(self, partition: TopicPartition) -> int | None:
        with self._lock:
            return self._offsets.get(partition)

    def write(self, partition: TopicPartition, offset: int | None) -> None:
        """Sets one entry, or removes it (None); durable on return."""
        with self._lock:
            self._write_locked({**self._offsets, partition: offset})

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lowers an entry that is above the offset, durably."""
        with self._lock:
            if self._offsets.get(partition, offset) > offset:
                self._write_locked({**self._offsets, partition: offset})

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Removes entries, durably."""
        with self._lock:
            stale = {partition: None for partition in partitions if partition in self._offsets}
            if stale:
                self._write_locked({**self._offsets, **stale})

    def replace(self, offsets: Iterator[tuple[TopicPartition, int | None]]) -> None:
        """Sets the entries of all served partitions; the others stay.

        The iterator runs under the lock, so that an older value cannot undo a preceding `write`.
        """
        with self._lock:
            self._write_locked({**self._offsets, **dict(offsets)})

    def _write_locked(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Writes nothing to an offline directory, and only entries of hosted partitions."""
        if self._health.failure is None:
            hosted = offsets if self._hosted is None else self._hosted
            entries = {
                partition: offset
                for partition, offset in offsets.items()
                if offset is not None and partition in hosted
            }
            if self._fs is not None:
                write_atomically(self._fs, self._path, encode_offsets(entries))
            self._offsets = entries


class DirectoryCheckpoints:
    """The checkpoints of one log directory; `hosted` contains its current partitions.

    Without a file system they are kept in memory only, for a log outside any open log directory.
    """

    def __init__(
        self,
        fs: FileSystem | None,
        health: DirectoryHealth,
        hosted: Container[TopicPartition] | None = None,
    ) -> None:
        self.health = health
        self.recovery_points = OffsetCheckpoint(fs, RECOVERY_POINT_FILE, health, hosted)
        self.log_starts = OffsetCheckpoint(fs, LOG_START_OFFSET_FILE, health, hosted)
        self.high_watermarks = OffsetCheckpoint(fs, HIGH_WATERMARK_FILE, health, hosted)
        self.cleaner_offsets = OffsetCheckpoint(fs, CLEANER_OFFSET_FILE, health, hosted)

    def __iter__(self) -> Iterator[OffsetCheckpoint]:
        yield self.recovery_points
        yield self.log_starts
        yield self.high_watermarks
        yield self.cleaner_offsets
