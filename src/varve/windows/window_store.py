"""A window store: values by key and start of window, read by time, with a changelog of its writes.

Invariant  times are inclusive at both ends and mean starts of windows. Results of one key are in
           order of time; those of several are in order of segment, then of key bytes, then of time.
           Stream time is the greatest time ever put, removed or restored, and never decreases.
           Entries from `stream time - retention + 1` on are visible; segments exist from that of
           `stream time - retention` on. Reads change nothing.
           A write is logged after it succeeded. All of the changelog before the checkpoint's offset
           is on disk, and in the segments. The state depends neither on how the changelog is split
           into batches, nor on how much of it was restored before: each entry has its own key.
           Expired puts log at most one warning a second; a clock that is set back allows another.
Crash      writes since the last `commit` may be missing in the changelog, so the owner reads its
           input again from there. A store is wiped and restored from the start of its changelog if
           it is damaged, was created with other settings, or has a checkpoint outside the
           changelog. Without a changelog it has the state of the last checkpoint or flush, and
           damage raises `Corrupt`.
Threads    one thread at a time.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.closing import Closing
from varve.foundation.errors import Corrupt, InvalidRequest, RecordTooLarge, StoreError
from varve.rocks.database import Databases, Put, RocksDatabases
from varve.rocks.segments import Segment, Segments
from varve.rocks.state_files import NO_STREAM_TIME_MS, Checkpoint, StoreMeta
from varve.windows.changelog import (
    Changelog,
    LoggedWrite,
    OnProgress,
    RestoreProgress,
    WindowSettings,
    gather_batches,
)
from varve.windows.entries import (
    SEQUENCE_MAX,
    TIME_MAX_MS,
    KeyRange,
    WindowIterator,
    check_time,
    check_whole,
    decode_time,
    encode_window_key,
)

logger = logging.getLogger(__name__)

LAYOUT: Final = "key-time-sequence"
WARNING_INTERVAL_MS: Final = 1_000
_BEGIN_MS: Final = 0
_PENDING_COUNT_MAX: Final = 1_000
"""Writes that are appended to the changelog together."""
_RESTORED_TOGETHER: Final = 10_000
"""Entries that a restore writes in one batch."""
_NO_CHANGELOG_OFFSET: Final = 0
"""The offset in checkpoints of a store without a changelog."""


class WindowStore(Closing):
    """Values by key and time; they expire when stream time has advanced by the retention."""

    def __init__(
        self,
        settings: WindowSettings,
        *,
        directory: str,
        databases: Databases,
        file_system: FileSystem,
        clock: Clock,
        changelog: Changelog | None = None,
        on_progress: OnProgress | None = None,
        pending_count_max: int = _PENDING_COUNT_MAX,
    ) -> None:
        self.settings = settings
        self.restored = RestoreProgress()
        """The restore of the last opening."""
        self.stream_time_ms = NO_STREAM_TIME_MS
        """The greatest time of any entry; -1 before the first."""
        self.expired_count = 0
        """Puts that were skipped because they had expired."""
        self.dead_on_arrival_count = 0
        """Puts that were written, because their segment exists, but are too old to be visible."""
        self.segments = Segments(
            name=settings.name,
            directory=directory,
            databases=databases,
            file_system=file_system,
            segment_ms=settings.segment_ms,
            retention_ms=settings.retention_ms,
        )
        self._meta = StoreMeta(
            engine=databases.name,
            layout=LAYOUT,
            segment_ms=settings.segment_ms,
            retention_ms=settings.retention_ms,
        )
        self._clock = clock
        self._changelog = changelog
        self._on_progress = on_progress
        self._pending_count_max = pending_count_max
        self._pending: list[LoggedWrite] = []
        self._sequence = 0
        self._warned_ms: int | None = None
        self._warned_count = 0

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def removal_failure_count(self) -> int:
        """Expired segments whose directories could not be removed; the next opening tries again."""
        return self.segments.removal_failure_count

    @property
    def visible_from_ms(self) -> int:
        """The first time that is not expired."""
        return self.stream_time_ms - self.settings.retention_ms + 1

    # Opening and restoring

    def open(self) -> Self:
        """Opens the store; with a changelog, restores it to the changelog's end.

        Without one, raises `Corrupt` when a segment is damaged or lost, and `MetaChanged` when the
        store was created with other settings.
        """
        if self._changelog is None:
            self._open_segments()
        else:
            self.restored = self._open_restored(self._changelog)
        return self

    def rebuild(self, reason: StoreError) -> None:
        """Wipes an open store and restores it from the start, after a read found it damaged.

        Raises the reason if the store has no changelog.
        """
        if self._changelog is None:
            raise reason
        self._append_pending(self._changelog)
        self.restored = self._rebuild(self._changelog, reason)

    def restore(
        self,
        changelog: Changelog,
        *,
        start_offset: int,
        batch_count: int = _RESTORED_TOGETHER,
    ) -> RestoreProgress:
        """Writes the changelog from `start_offset` to its current end, in large batches.

        Raises `OffsetOutOfRange` when the changelog does not have the start.
        """
        end_offset = changelog.end_offset
        batches = changelog.read(start_offset)
        progress = RestoreProgress(start_offset, end_offset)
        for puts, next_offset in gather_batches(batches, batch_count):
            written_count = self.restore_batch(puts)
            progress = RestoreProgress(
                offset=next_offset,
                end_offset=max(end_offset, next_offset),
                written_count=progress.written_count + written_count,
                expired_count=progress.expired_count + len(puts) - written_count,
            )
            if self._on_progress is not None:
                self._on_progress(progress)
        # Offsets after the last entry may hold none: gaps and control batches.
        end_offset = max(progress.offset, end_offset)
        return RestoreProgress(
            end_offset, end_offset, progress.written_count, progress.expired_count
        )

    def restore_batch(self, entries: Iterable[Put]) -> int:
        """Writes a batch of the changelog; returns how many entries had not expired.

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
        return written_count

    def _open_restored(self, changelog: Changelog) -> RestoreProgress:
        try:
            checkpoint = self._open_segments()
        except Corrupt as error:
            return self._rebuild(changelog, error)
        first, end = changelog.start_offset, changelog.end_offset
        start = first if checkpoint is None else checkpoint.changelog_offset
        if not first <= start <= end:
            reason = (
                f"checkpoint at changelog offset {start}, but the changelog has {first} to {end}"
            )
            return self._rebuild(changelog, Corrupt(reason))
        progress = self.restore(changelog, start_offset=start)
        if self.segments.lost_ids(self.stream_time_ms):
            # By the changelog their entries are still visible.
            reason = "segments were dropped by a put that was not logged"
            return self._rebuild(changelog, Corrupt(reason))
        return progress

    def _rebuild(self, changelog: Changelog, reason: StoreError) -> RestoreProgress:
        """Wipes the store, open or not, and restores it from the start."""
        logger.warning(
            "store is wiped and restored from its changelog",
            extra={"store": self.name, "reason": str(reason)},
        )
        self.segments.wipe()
        self.stream_time_ms = NO_STREAM_TIME_MS
        self._open_segments()
        return self.restore(changelog, start_offset=changelog.start_offset)

    def _open_segments(self) -> Checkpoint | None:
        """Opens the segments; returns the checkpoint to restore from, None for the start."""
        checkpoint = self.segments.open(self._meta, self.stream_time_ms)
        self._pending = []
        if checkpoint is not None:
            self._raise_stream_time(checkpoint.stream_time_ms)
            return checkpoint
        # The start of the newest segment is a lower bound of its times.
        for segment in self.segments:
            self._raise_stream_time(segment.start_ms)
        self.segments.cleanup(self.stream_time_ms)
        return None

    # Writes

    def put(self, key: bytes, value: bytes | None, time_ms: int) -> bool:
        """Stores a value; None deletes. Returns whether it was written: False when it is expired.

        The last value of a key and time wins, unless the store retains duplicates: then all values
        stay, and a deletion does nothing, because it cannot name one of them.
        """
        self._check_key(key)
        if not (value is None or isinstance(value, bytes)):
            raise InvalidRequest(
                f"store {self.name}: a value of type {type(value).__name__}; give bytes, "
                "or None to delete"
            )
        if self.settings.retain_duplicates:
            if value is None:
                return False
            self._sequence = (self._sequence + 1) & SEQUENCE_MAX
        encoded = self._encode(key, time_ms)
        self._check_size(len(encoded) + len(value or b""))
        self.segments.check_open()
        self._raise_stream_time(time_ms)
        id = self.segments.segment_id(time_ms)
        segment = self.segments.get_or_create_if_live(id, self.stream_time_ms)
        if segment is None:
            self._record_expired(time_ms)
            return False
        segment.database.write([(encoded, value)])
        if time_ms < self.visible_from_ms:
            self.dead_on_arrival_count += 1
        self._log(LoggedWrite(encoded, value, time_ms))
        return True

    def remove(self, key: bytes, time_ms: int) -> bool:
        """Deletes one entry; unlike a put of None it neither creates nor drops a segment."""
        self._check_key(key)
        encoded = self._encode(key, time_ms)
        self.segments.check_open()
        self._raise_stream_time(time_ms)
        segment = self._find_segment(time_ms)
        if segment is None:
            return False
        segment.database.write([(encoded, None)])
        self._log(LoggedWrite(encoded, None, time_ms))
        return True

    def maintain(self, stream_time_ms: int) -> int:
        """Drops segments expired by the task's stream time, for idle inputs; returns how many.

        That advances with every record the task reads; it is not the wall clock. Kafka Streams has
        no equivalent.
        """
        check_whole(stream_time_ms, "stream_time_ms")
        self.segments.check_open()
        self._raise_stream_time(stream_time_ms)
        return self.segments.cleanup(self.stream_time_ms)

    def commit(self) -> int:
        """Appends all writes to the changelog and syncs it; returns its end offset.

        Afterwards the input may be committed: a restore yields every put.
        """
        if self._changelog is None:
            return _NO_CHANGELOG_OFFSET
        self._append_pending(self._changelog)
        self._changelog.flush()
        return self._changelog.end_offset

    def flush(self) -> None:
        """Syncs every put to the disk, in the changelog and in the segments."""
        self.commit()
        self.segments.flush()

    def checkpoint(self) -> Checkpoint:
        """Flushes and records the changelog offset: the next opening restores from there."""
        return self.segments.checkpoint(self.stream_time_ms, self.commit())

    def close(self) -> None:
        """Checkpoints and closes; the changelog stays open. Closing twice is harmless."""
        if not self.segments.is_open:
            return
        try:
            self.checkpoint()
        except BaseException:
            with suppress(StoreError):
                self.segments.close()
            raise
        self.segments.close()

    def _check_size(self, size: int) -> None:
        if self._changelog is not None and size > self._changelog.write_bytes_max:
            raise RecordTooLarge(
                f"store {self.name}: an entry of {size} bytes is too large for the changelog, "
                f"which takes {self._changelog.write_bytes_max}: raise max.message.bytes of its "
                "topic"
            )

    def _log(self, write: LoggedWrite) -> None:
        if self._changelog is not None:
            self._pending.append(write)
            if len(self._pending) >= self._pending_count_max:
                self._append_pending(self._changelog)

    def _append_pending(self, changelog: Changelog) -> None:
        if self._pending:
            changelog.append(self._pending)
            self._pending = []

    def _record_expired(self, time_ms: int) -> None:
        self.expired_count += 1
        now_ms = self._clock.now_ms()
        if self._warned_ms is not None and 0 <= now_ms - self._warned_ms < WARNING_INTERVAL_MS:
            return
        logger.warning(
            "puts are expired and skipped",
            extra={
                "store": self.name,
                "count": self.expired_count - self._warned_count,
                "time_ms": time_ms,
                "stream_time_ms": self.stream_time_ms,
            },
        )
        self._warned_ms, self._warned_count = now_ms, self.expired_count

    def _raise_stream_time(self, time_ms: int) -> None:
        self.stream_time_ms = max(self.stream_time_ms, time_ms)

    # Reads

    def get(self, key: bytes, time_ms: int) -> bytes | None:
        """The value of a key and time; None if it is missing or expired."""
        self._check_key(key)
        encoded = self._encode(key, time_ms)
        self.segments.check_open()
        segment = None if time_ms < self.visible_from_ms else self._find_segment(time_ms)
        return None if segment is None else segment.database.get(encoded)

    def fetch(
        self, key: bytes, from_ms: int, to_ms: int, *, backward: bool = False
    ) -> WindowIterator:
        """The entries of a key, by time."""
        self._check_key(key)
        return self.fetch_range(key, key, from_ms, to_ms, backward=backward)

    def fetch_all(self, from_ms: int, to_ms: int, *, backward: bool = False) -> WindowIterator:
        """The entries of all keys."""
        return self.fetch_range(None, None, from_ms, to_ms, backward=backward)

    def all(self, *, backward: bool = False) -> WindowIterator:
        """Every entry that is not expired."""
        return self.fetch_all(_BEGIN_MS, TIME_MAX_MS, backward=backward)

    def fetch_range(
        self,
        first: bytes | None,
        last: bytes | None,
        from_ms: int,
        to_ms: int,
        *,
        backward: bool = False,
    ) -> WindowIterator:
        """The entries of keys `first` to `last`, all inclusive; None leaves a side unbounded."""
        for name, time_ms in (("from_ms", from_ms), ("to_ms", to_ms)):
            check_whole(time_ms, name)
        for key in (first, last):
            if key is not None:
                self._check_key(key)
        self.segments.check_open()
        within = KeyRange(first, last, max(from_ms, self.visible_from_ms), min(to_ms, TIME_MAX_MS))
        segments: list[Segment] = []
        if first is not None and last is not None and first > last:
            logger.warning(
                "range of keys is reversed; keys compare as unsigned bytes",
                extra={"store": self.name, "first": first, "last": last},
            )
        elif within.to_ms >= max(0, within.from_ms):
            segments = self.segments.live(within.from_ms, within.to_ms, backward=backward)
        return WindowIterator(self.segments, segments, within, backward=backward)

    def _find_segment(self, time_ms: int) -> Segment | None:
        return self.segments.find(self.segments.segment_id(time_ms))

    def _check_key(self, key: object) -> None:
        if not isinstance(key, bytes):
            raise InvalidRequest(
                f"store {self.name}: a key of type {type(key).__name__}; give bytes, never None"
            )

    def _encode(self, key: bytes, time_ms: int) -> bytes:
        check_time(time_ms)
        return encode_window_key(key, time_ms, self._sequence)


def open_window_store(
    settings: WindowSettings,
    *,
    directory: str,
    changelog: Changelog | None = None,
    databases: Databases | None = None,
    file_system: FileSystem | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress | None = None,
) -> WindowStore:
    """Opens the store of a directory, created if absent, and restores it from its changelog.

    Stores opened with the same `databases` share one memory budget. Without a changelog a damaged
    directory raises `Corrupt`.
    """
    return WindowStore(
        settings,
        directory=directory,
        databases=databases or RocksDatabases(),
        file_system=file_system or RealFileSystem(),
        clock=clock or SystemClock(),
        changelog=changelog,
        on_progress=on_progress,
    ).open()
