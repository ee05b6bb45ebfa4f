"""The settings of a window store, and its changelog: every write in order, to restore it from.

Layout     records of one partition: composite key of the entry, its value or null for a deletion,
           its time as the timestamp. docs/reference/formats/window-store.md
Invariant  settings that exist are valid. A changelog holds every write since its start offset, in
           order; offsets may have gaps.
Threads    one writer at a time; reading needs no lock.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from varve.embedded import Partition, RecordColumns, Store, Topic
from varve.foundation.errors import Corrupt, InvalidSetting, OffsetOutOfRange
from varve.foundation.settings import LONG_MAX, GivenValue
from varve.records import Record
from varve.rocks.database import Put
from varve.windows.entries import TIME_MAX_MS

RETENTION_ADDED_MS: Final = 24 * 3_600_000
"""Retention of a changelog beyond that of its store, for restores after an outage."""
_ROLL_MS_MIN: Final = 10 * 60_000
_ROLL_MS_MAX: Final = 7 * 24 * 3_600_000
"""Kafka's default of segment.ms."""
_BATCH_OVERHEAD_BYTES: Final = 256
"""Bytes of a batch with one record besides key and value, with a margin for compression."""


SEGMENT_MS_MIN_DEFAULT: Final = 60_000
"""As in Kafka Streams, whose default is the greater of this and half the retention."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """A store's name, its times, and whether it keeps several values of one key and time.

    A `segment_ms` of 0 becomes half the retention, but at least a minute.
    """

    name: str
    retention_ms: int
    segment_ms: int = 0
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"name {self.name!r:.80} of a window store; use up to 200 letters, digits, '.', "
                "'_' and '-', and no '.' at the beginning"
            )
        for name in ("retention_ms", "segment_ms"):
            span_ms = getattr(self, name)
            is_whole = isinstance(span_ms, int) and not isinstance(span_ms, bool)
            if not is_whole or not 0 <= span_ms <= TIME_MAX_MS:
                raise InvalidSetting(
                    f"store {self.name}: {name} is {span_ms!r:.40}; give whole milliseconds, from "
                    f"0 to {TIME_MAX_MS}"
                )
        if not isinstance(self.retain_duplicates, bool):
            raise InvalidSetting(
                f"store {self.name}: retain_duplicates is {self.retain_duplicates!r:.40}; give "
                "True or False"
            )
        if self.segment_ms == 0:
            default_ms = max(self.retention_ms // 2, SEGMENT_MS_MIN_DEFAULT)
            object.__setattr__(self, "segment_ms", default_ms)


class LoggedWrite(NamedTuple):
    """One write: composite key, value or None for a deletion, and the entry's time."""

    key: bytes
    value: bytes | None
    time_ms: int


class ChangelogBatch(NamedTuple):
    """Writes that were read together, and the offset after them."""

    puts: list[Put]
    next_offset: int


class Changelog(Protocol):
    """The log to which a store appends its writes, and from which it is restored."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def end_offset(self) -> int:
        """The offset that the next write gets."""

    @property
    def write_bytes_max(self) -> int:
        """The limit for the bytes of key and value together."""

    def append(self, writes: Sequence[LoggedWrite]) -> int:
        """Append in order; returns the end offset."""

    def flush(self) -> None:
        """Sync all appended writes to the disk."""

    def read(self, start_offset: int) -> Iterator[ChangelogBatch]:
        """From an offset to the current end; raises `OffsetOutOfRange` outside the log."""


def gather_batches(
    batches: Iterator[ChangelogBatch], count: int
) -> Iterator[tuple[list[Put], int]]:
    """Joins small batches until they have `count` entries."""
    puts: list[Put] = []
    next_offset = 0
    for batch in batches:
        puts += batch.puts
        next_offset = batch.next_offset
        if len(puts) >= count:
            yield puts, next_offset
            puts = []
    if puts:
        yield puts, next_offset


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of a restore: the changelog before `offset` is in the store."""

    offset: int = 0
    end_offset: int = 0
    written_count: int = 0
    expired_count: int = 0

    @property
    def lag(self) -> int:
        return self.end_offset - self.offset


OnProgress = Callable[[RestoreProgress], None]


def check_offset(changelog: Changelog, offset: int, where: str) -> None:
    """Raises `OffsetOutOfRange` for an offset outside the changelog."""
    if not changelog.start_offset <= offset <= changelog.end_offset:
        raise OffsetOutOfRange(
            f"{where}: offset {offset} is outside {changelog.start_offset} to "
            f"{changelog.end_offset}; restore from the start"
        )


class TopicChangelog:
    """A changelog in one partition of a topic; only committed records are read."""

    def __init__(self, topic: Topic, partition: int) -> None:
        self._topic = topic
        self._partition: Partition = topic.partition(partition)

    @property
    def start_offset(self) -> int:
        return self._partition.offsets().log_start

    @property
    def end_offset(self) -> int:
        return self._partition.offsets().last_stable

    @property
    def write_bytes_max(self) -> int:
        settings = self._topic.settings
        return min(settings.max_message_bytes, settings.segment_bytes) - _BATCH_OVERHEAD_BYTES

    def append(self, writes: Sequence[LoggedWrite]) -> int:
        records = (Record(key=key, value=value, timestamp=time) for key, value, time in writes)
        self._topic.append_many(records, partition=self._partition.number)
        return self.end_offset

    def flush(self) -> None:
        self._partition.flush()

    def read(self, start_offset: int) -> Iterator[ChangelogBatch]:
        check_offset(self, start_offset, f"{self._topic.name}-{self._partition.number}")
        columns = self._partition.columns(start=start_offset, isolation="read_committed")
        return map(self._to_batch, columns)

    def _to_batch(self, columns: RecordColumns) -> ChangelogBatch:
        payload = columns.payload.tobytes()
        puts: list[Put] = []
        for row in columns.table.tolist():
            offset, _, key, key_size, value, value_size, *_ = row
            if key_size < 0:
                where = f"{self._topic.name}-{self._partition.number}"
                raise Corrupt(f"{where}: the record at {offset} has no key, so it is not a write")
            entry_value = None if value_size < 0 else payload[value : value + value_size]
            puts.append((payload[key : key + key_size], entry_value))
        return ChangelogBatch(puts, int(columns.offsets[-1]) + 1)


def create_changelog_topic(
    store: Store, name: str, settings: WindowSettings, *, partitions: int = 1
) -> Topic:
    """The topic of a window store's changelog, created if absent."""
    return store.create_topic(
        name, partitions=partitions, settings=changelog_settings(settings), exist_ok=True
    )


def changelog_settings(settings: WindowSettings) -> dict[str, GivenValue]:
    """The settings of the changelog topic.

    Dropping a segment writes no tombstones, and composite keys rarely repeat, so with compaction
    alone the topic would grow without bound. Any timestamp is accepted: it is the entry's time.
    """
    policy = "delete" if settings.retain_duplicates else "compact,delete"
    return {
        "cleanup.policy": policy,
        "retention.ms": min(settings.retention_ms + RETENTION_ADDED_MS, LONG_MAX),
        "segment.ms": min(max(settings.segment_ms, _ROLL_MS_MIN), _ROLL_MS_MAX),
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.after.max.ms": LONG_MAX,
    }
