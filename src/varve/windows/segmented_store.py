"""Window entries by composite key in time segments, with stream time and expiry.

Invariant  stream time is the greatest time ever put, removed or restored, and never decreases.
           Entries from `stream time - retention + 1` on are visible; segments exist from that of
           `stream time - retention` on. Reads change nothing.
           Expired puts log at most one warning a second; a clock that is set back allows another.
           An iterator reads the segments that existed when it was created, each as of its first
           read; a segment that is dropped or closed meanwhile ends early, without an error.
Crash      the store holds at least the state of the last checkpoint; the owner restores the
           remaining writes from the changelog.
Threads    one thread at a time.
"""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.closing import Closing
from varve.foundation.errors import Closed, InvalidRequest, StoreError
from varve.rocks.database import Databases, Put, Scan
from varve.rocks.segments import Segment, Segments
from varve.rocks.state_files import (
    NO_STREAM_TIME_MS,
    Checkpoint,
    StoreMeta,
    find_checkpoint,
    keep_meta,
    write_checkpoint,
)
from varve.windows.settings import WindowSettings
from varve.windows.window_key import (
    TIME_MAX_MS,
    KeyRange,
    check_time,
    decode_time,
    decode_window_key,
)


class WindowEntry(NamedTuple):
    """An entry of a window store; the time is where its window starts."""

    key: bytes
    time_ms: int
    value: bytes


class WindowIterator(Closing):
    """Iterates over entries. Use it as a context manager: it keeps files open until closed."""

    def __init__(self, segments: Sequence[Segment], key_range: KeyRange, *, backward: bool) -> None:
        self._pending_segments = list(reversed(segments))
        self._key_range = key_range
        self._lower = key_range.lower()
        self._upper = key_range.upper()
        self._backward = backward
        self._scan: Scan | None = None
        self._next: WindowEntry | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WindowEntry:
        entry = self._peek()
        if entry is None:
            raise StopIteration
        self._next = None
        return entry

    def has_next(self) -> bool:
        return self._peek() is not None

    def close(self) -> None:
        """Release its files and end the iteration; closing twice is harmless."""
        self._pending_segments.clear()
        self._next = None
        self._end_scan()

    def _peek(self) -> WindowEntry | None:
        while self._next is None and (self._scan is not None or self._pending_segments):
            if self._scan is None:
                self._begin_scan(self._pending_segments.pop())
            else:
                self._advance(self._scan)
        return self._next

    def _begin_scan(self, segment: Segment) -> None:
        try:
            self._scan = segment.database.scan(self._lower, self._upper, backward=self._backward)
        except Closed:
            self._scan = None

    def _advance(self, scan: Scan) -> None:
        """Step to the next entry of the range, or end the scan."""
        for data, value in scan:
            key, time_ms, _ = decode_window_key(data)
            if self._key_range.contains(key, time_ms):
                self._next = WindowEntry(key, time_ms, value)
                return
        self._end_scan()

    def _end_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()


# The store


logger = logging.getLogger(__name__)

LAYOUT: Final = "key-time-sequence"
WARNING_INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RestoredBatch:
    """How many entries of a changelog batch were written, and how many had expired."""

    written_count: int
    expired_count: int


class ExpiredPuts:
    """Counts the expired puts of one store, and logs a warning at most once a second."""

    def __init__(self, store_name: str, clock: Clock) -> None:
        self.count = 0
        self._store_name = store_name
        self._clock = clock
        self._warned_ms: int | None = None
        self._warned_count = 0

    def record(self, time_ms: int, stream_time_ms: int) -> None:
        self.count += 1
        now_ms = self._clock.now_ms()
        if self._warned_ms is None or not 0 <= now_ms - self._warned_ms < WARNING_INTERVAL_MS:
            logger.warning(
                "puts are expired and skipped",
                extra={
                    "store": self._store_name,
                    "count": self.count - self._warned_count,
                    "time_ms": time_ms,
                    "stream_time_ms": stream_time_ms,
                },
            )
            self._warned_ms = now_ms
            self._warned_count = self.count


class SegmentedStore:
    """The segments of a window store, and its stream time."""

    def __init__(
        self,
        settings: WindowSettings,
        *,
        directory: str,
        databases: Databases,
        file_system: FileSystem,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.stream_time_ms = NO_STREAM_TIME_MS
        self.dead_on_arrival_count = 0
        """Puts that were written, because their segment exists, but are too old to be visible."""
        self.expired_puts = ExpiredPuts(settings.name, clock)
        self.segments = Segments(
            name=settings.name,
            directory=directory,
            databases=databases,
            file_system=file_system,
            segment_ms=settings.segment_ms,
            retention_ms=settings.retention_ms,
        )
        self._directory = directory
        self._file_system = file_system
        self._meta = StoreMeta(
            engine=databases.name,
            layout=LAYOUT,
            segment_ms=settings.segment_ms,
            retention_ms=settings.retention_ms,
        )

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def visible_from_ms(self) -> int:
        """The first time that is not expired."""
        return self.stream_time_ms - self.settings.retention_ms + 1

    # Life

    def open(self) -> Checkpoint | None:
        """Open the segments; returns the checkpoint to restore from, None for the start.

        Raises `Corrupt` when a segment is damaged or lost, or `MetaChanged` when the store was
        created with other settings: `wipe`, open again and restore from the changelog.
        """
        if self.segments.is_open:
            raise InvalidRequest(f"store {self.name}: {self._directory} is open already")
        self.segments.acquire()
        try:
            return self._open()
        except BaseException:
            with contextlib.suppress(StoreError):
                self.segments.close()
            raise

    def _open(self) -> Checkpoint | None:
        has_segments = self.segments.has_directories()
        keep_meta(self._file_system, self._directory, self._meta, is_empty=not has_segments)
        checkpoint = find_checkpoint(self._file_system, self._directory)
        expected: list[int] = []
        if checkpoint is not None:
            self._raise_stream_time(checkpoint.stream_time_ms)
            expected = [
                self.segments.segment_id(start_ms) for start_ms in checkpoint.segment_starts_ms
            ]
        self.segments.open_existing(self.stream_time_ms, expected)
        if checkpoint is None:
            self._seed_stream_time()
        return checkpoint

    def checkpoint(self, changelog_offset: int) -> Checkpoint:
        """Flush, and record that all of the changelog before this offset is on disk."""
        self.segments.flush()
        checkpoint = Checkpoint(
            stream_time_ms=self.stream_time_ms,
            changelog_offset=changelog_offset,
            segment_starts_ms=tuple(segment.start_ms for segment in self.segments),
        )
        write_checkpoint(self._file_system, self._directory, checkpoint)
        return checkpoint

    def flush(self) -> None:
        self.segments.flush()

    def close(self) -> None:
        self.segments.close()

    def wipe(self) -> None:
        """Remove all files of a closed store; foreign files stay."""
        self.segments.wipe()
        self.stream_time_ms = NO_STREAM_TIME_MS

    def _seed_stream_time(self) -> None:
        """Set stream time to the start of the newest segment, its lower bound."""
        for segment in self.segments:
            self._raise_stream_time(segment.start_ms)
        self.segments.cleanup(self.stream_time_ms)

    # Writes

    def put(self, key: bytes, value: bytes | None, time_ms: int) -> bool:
        """Write the value of a composite key, None to delete it; False when it is expired."""
        check_time(time_ms)
        self.segments.check_open()
        self._raise_stream_time(time_ms)
        id = self.segments.segment_id(time_ms)
        segment = self.segments.get_or_create_if_live(id, self.stream_time_ms)
        if segment is None:
            self.expired_puts.record(time_ms, self.stream_time_ms)
            return False
        segment.database.write([(key, value)])
        if time_ms < self.visible_from_ms:
            self.dead_on_arrival_count += 1
        return True

    def remove(self, key: bytes, time_ms: int) -> bool:
        """Deletes a key if its segment exists; returns whether it does. Drops no segment."""
        check_time(time_ms)
        self.segments.check_open()
        self._raise_stream_time(time_ms)
        segment = self.segments.find(self.segments.segment_id(time_ms))
        if segment is not None:
            segment.database.write([(key, None)])
        return segment is not None

    def restore(self, entries: Iterable[Put]) -> RestoredBatch:
        """Write a batch of the changelog; expired entries are dropped without a warning.

        Entries may be restored repeatedly, and in batches of any size.
        """
        self.segments.check_open()
        by_id: dict[int, list[Put]] = {}
        segment_ms = self.settings.segment_ms
        latest_ms = NO_STREAM_TIME_MS
        for entry in entries:
            time_ms = decode_time(entry[0])
            if time_ms > latest_ms:
                latest_ms = time_ms
            try:
                by_id[time_ms // segment_ms].append(entry)
            except KeyError:
                by_id[time_ms // segment_ms] = [entry]
        self._raise_stream_time(latest_ms)
        written_count = 0
        for id, puts in sorted(by_id.items()):
            segment = self.segments.get_or_create_if_live(id, self.stream_time_ms)
            if segment is not None:
                segment.database.write(puts)
                written_count += len(puts)
        return RestoredBatch(written_count, sum(map(len, by_id.values())) - written_count)

    def maintain(self, stream_time_ms: int) -> int:
        """Drops expired segments without a put; returns how many.

        The stream time is that of the task, which advances with every record it reads; it is not
        the wall clock. Kafka Streams has no equivalent.
        """
        self.segments.check_open()
        self._raise_stream_time(stream_time_ms)
        return self.segments.cleanup(self.stream_time_ms)

    def _raise_stream_time(self, time_ms: int) -> None:
        self.stream_time_ms = max(self.stream_time_ms, time_ms)

    # Reads

    def get(self, key: bytes, time_ms: int) -> bytes | None:
        """The value of a composite key; None if it is missing or expired."""
        self.segments.check_open()
        if time_ms < self.visible_from_ms:
            return None
        segment = self.segments.find(self.segments.segment_id(time_ms))
        return None if segment is None else segment.database.get(key)

    def scan(
        self,
        first: bytes | None,
        last: bytes | None,
        *,
        from_ms: int,
        to_ms: int,
        backward: bool,
    ) -> WindowIterator:
        """The entries of keys `first` to `last` within these times, all inclusive."""
        self.segments.check_open()
        key_range = KeyRange(
            first, last, max(from_ms, self.visible_from_ms), min(to_ms, TIME_MAX_MS)
        )
        return WindowIterator(
            self._find_overlapping_segments(key_range, backward), key_range, backward=backward
        )

    def _find_overlapping_segments(self, key_range: KeyRange, backward: bool) -> list[Segment]:
        if key_range.to_ms < max(0, key_range.from_ms):
            return []
        if (
            key_range.first is not None
            and key_range.last is not None
            and key_range.first > key_range.last
        ):
            logger.warning(
                "range of keys is reversed; keys compare as unsigned bytes",
                extra={"store": self.name, "first": key_range.first, "last": key_range.last},
            )
            return []
        return self.segments.live(key_range.from_ms, key_range.to_ms, backward=backward)


def check_key(key: object, store_name: str) -> None:
    if not isinstance(key, bytes):
        raise InvalidRequest(
            f"store {store_name}: a key of type {type(key).__name__}; give bytes, never None"
        )
