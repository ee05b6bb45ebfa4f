"""What the phases of a log's life share: its segments, offsets, producers, and how it fails.

Invariant  log start offset <= last stable offset <= high watermark <= log end offset;
           recovery point <= log end offset.
Crash      after a failed sync nothing is written any more: what the disk holds is unknown until
           recovery.
Threads    `lock` guards every change; `flush_lock` is taken before it by whoever syncs or
           truncates. Single fields may be read without it.
"""

import contextlib
import errno
import random
import threading
from collections.abc import Callable, Iterator
from typing import Final

from varve.commit_log.append_times import AppendSpan
from varve.commit_log.log_loader import LoadedLog, mark_failed_sync
from varve.commit_log.names import (
    DELETED,
    LEADER_EPOCH_FILE,
    LOG,
    SNAPSHOT,
    TopicPartition,
    log_name,
)
from varve.commit_log.segment import (
    SEGMENT_KINDS,
    ActiveSegment,
    Segment,
    SegmentFiles,
    rename_segment_files,
)
from varve.commit_log.segment_reader import ReadableSegment
from varve.commit_log.segment_view import SegmentView
from varve.commit_log.settings import LogSettings
from varve.disk import write_atomically
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    Closed,
    DirectoryOffline,
    DiskFull,
    LogPoisoned,
    StoreError,
    Unavailable,
)

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class LogState:
    """The shared state of one partition's log."""

    def __init__(
        self,
        loaded: LoadedLog,
        *,
        files: SegmentFiles,
        directory: str,
        topic_partition: TopicPartition,
        settings: LogSettings,
        clock: Clock,
        random: random.Random,
        high_watermark: int,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self.files = files
        self.fs = files.fs
        self.directory = directory
        self.topic_partition = topic_partition
        self.settings = settings
        self.clock = clock
        self._random = random
        self._on_failure = on_failure
        self.lock = threading.Lock()
        self.flush_lock = threading.Lock()
        self.view = SegmentView(loaded.closed, loaded.active)
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.append_times = loaded.append_times
        self.log_start_offset = loaded.log_start_offset
        self.is_start_known = loaded.is_start_known
        self.recovery_point = loaded.recovery_point
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.end_offset)
        self.producers.advance_high_watermark(self.high_watermark)
        # Closed segments not yet known to be on disk; guarded by lock.
        self.unsynced: list[ActiveSegment | Segment] = self._segments_after(self.recovery_point)
        self.snapshots.mark_unsynced_from(self.recovery_point)
        self.has_new_files = True
        self.pending_deletions: list[tuple[int, str]] = []  # when to remove which file
        self.last_flush_ms = clock.now_ms()
        self.reader_events: tuple[threading.Event, ...] = ()  # replaced under lock
        self.generation = 0  # counts starts and ends of changes to files: odd during a change
        self.failure: StoreError | None = None

    def _segments_after(self, offset: int) -> list[ActiveSegment | Segment]:
        closed = self.view.closed
        ends = [segment.base_offset for segment in closed[1:]] + [self.view.active.base_offset]
        # One that ends right there was closed since: its indexes were perhaps written after it.
        return [segment for segment, end in zip(closed, ends, strict=False) if end >= offset]

    @property
    def end_offset(self) -> int:
        return self.view.active.extent[0]

    @property
    def last_stable_offset(self) -> int:
        # Appends raise the high watermark last, so a transaction opened after this line lies above.
        high_watermark = self.high_watermark
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return high_watermark
        return min(max(unstable, self.log_start_offset), high_watermark)

    def notify_readers_locked(self) -> None:
        """Wakes the readers that wait for a higher end of what can be read."""
        for event in self.reader_events:
            event.set()

    def check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure.again()

    def check_readable(self) -> None:
        """A poisoned log still answers reads.

        What it holds in memory and on disk is what it was.
        """
        if self.failure is not None and not isinstance(self.failure, LogPoisoned):
            raise self.failure.again()

    @contextlib.contextmanager
    def changing_files_locked(self, doing: str) -> Iterator[None]:
        """Around a change of files that readers may be reading.

        What fails in it leaves the log neither as it was nor as it should be, so even a full disk
        takes it down: a reopen finds out what is there.
        """
        self.generation += 1
        try:
            yield
        except OSError as error:
            raise self.fail(self.offline(error, doing)) from error
        except StoreError as error:
            self.failure = self.failure or error
            raise
        finally:
            self.generation += 1

    def close(self) -> None:
        if self.failure is None:
            self.failure = Closed(f"{self.topic_partition}: the log is closed; open it again")

    @contextlib.contextmanager
    def io(self, doing: str) -> Iterator[None]:
        """Turns an OSError into ours.

        A full disk refuses the operation, anything else takes the log down.
        """
        try:
            yield
        except OSError as error:
            raise self.failed(error, doing) from error

    def failed(self, error: OSError, doing: str) -> StoreError:
        if error.errno in NO_ROOM:
            return DiskFull(
                f"{self._what(error, doing)}; nothing was changed, free some space and try again"
            )
        if error.errno in NO_DESCRIPTORS:
            return Unavailable(
                f"{self._what(error, doing)}; nothing was changed, raise the limit of open files "
                "(ulimit -n) or open fewer partitions"
            )
        return self.fail(self.offline(error, doing))

    def offline(self, error: OSError, doing: str) -> DirectoryOffline:
        return DirectoryOffline(
            f"{self._what(error, doing)}; mend the disk or its permissions and reopen"
        )

    def _what(self, error: OSError, doing: str) -> str:
        path = error.filename or self.directory
        return f"{self.topic_partition}: {doing} {path}: {error.strerror}"

    def poison(self, error: OSError) -> StoreError:
        """A sync failed: the log takes no more writes."""
        mark_failed_sync(self.fs, self.directory)
        return self.fail(
            LogPoisoned(
                f"{self.topic_partition}: sync of {error.filename or self.directory}: "
                f"{error.strerror}; "
                "what the disk holds is unknown, reopen the store to recover"
            )
        )

    def fail(self, failure: StoreError) -> StoreError:
        if self.failure is None:
            self.failure = failure
            self._on_failure(failure)
        return failure

    def write_epochs(self) -> None:
        path = f"{self.directory}/{LEADER_EPOCH_FILE}"
        write_atomically(self.fs, path, self.epochs.encode())

    def record_append_locked(self, now_ms: int) -> None:
        """Before the bytes are written: a segment with records has an entry of when they came."""
        active = self.view.active
        if active.appended is None:
            span = AppendSpan(now_ms, now_ms)
            self.append_times.write(active.base_offset, span)
            active.appended = span
        elif now_ms > active.appended.last_ms:
            active.appended = AppendSpan(active.appended.first_ms, now_ms)

    def record_closing_locked(self, active: ActiveSegment) -> None:
        """When the records of a segment came, once nothing more is appended to it."""
        span = active.appended
        if span is not None and span != self.append_times.find(active.base_offset):
            self.append_times.write(active.base_offset, span)

    def appended(self, segment: ReadableSegment) -> AppendSpan:
        """When a segment's records came; raises FileNotFoundError when it has left the log."""
        active = self.view.active
        span = (
            active.appended
            if segment.base_offset == active.base_offset
            else self.append_times.find(segment.base_offset)
        )
        if span is None:
            changed_ms = self.fs.info(segment.path(LOG)).modified_ms
            span = AppendSpan(changed_ms, changed_ms)
        return span

    def raise_log_start_locked(self, offset: int) -> None:
        """For readers at once; the caller writes the checkpoint, then trims the epochs."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.recovery_point = max(self.recovery_point, offset)
            self.producers.raise_log_start(offset)

    def trim_epochs_locked(self) -> None:
        """Lets the epochs begin at the log start, once that is on disk: loading would do it."""
        if self.epochs.truncate_from_start(self.log_start_offset):
            self.write_epochs()

    def reopen_active(self, base_offset: int) -> ActiveSegment:
        """A segment open for appends on whatever its data file holds."""
        return ActiveSegment(
            self.files,
            self.directory,
            self.settings,
            base_offset=base_offset,
            clock=self.clock,
            random=self._random,
        )

    def new_active(self, base_offset: int) -> ActiveSegment:
        """An empty segment; files left with its names are removed first."""
        self._remove_files(base_offset)
        active = self.reopen_active(base_offset)
        if self.settings.preallocate:
            active.writer.truncate(self.settings.segment_bytes)
        self.has_new_files = True
        return active

    def _remove_files(self, base_offset: int) -> None:
        for kind in SEGMENT_KINDS:
            with contextlib.suppress(FileNotFoundError):
                self.fs.remove(f"{self.directory}/{log_name(base_offset, kind)}")

    def roll_locked(self, expected_offset: int) -> None:
        """Closes the active segment and begins one at the later of offset and log end."""
        active = self.view.active
        base_offset = max(expected_offset, self.end_offset)
        if base_offset == active.base_offset and active.size == 0:
            return
        active.close_indexes()
        try:
            # Else a power loss could take the end of this segment and leave the next one.
            if self.recovery_point < base_offset:
                active.writer.sync()
            else:
                # Recovery would begin in the next one, and not make up for indexes that got lost.
                active.sync()
                self.fs.sync_directory(self.directory)
        except OSError as error:
            raise self.poison(error) from error
        self.producers.map_end_offset = base_offset
        self.snapshots.write(self.producers)
        self.record_closing_locked(active)
        try:
            fresh = self.new_active(base_offset)
        except OSError:
            # The old segment may go on: a segment that begins inside it must not be found later.
            self.has_new_files = True
            self._remove_files(base_offset)
            raise
        self.unsynced.append(active)
        self.view = self.view.rolled(active.closed(), fresh)

    def mark_deleted_locked(self, segment: ReadableSegment, now_ms: int | None = None) -> None:
        """Renames a segment's files `.deleted`; they go `file.delete.delay.ms` from now.

        Readers that have them open go on.
        """
        if isinstance(segment, Segment):
            self.files.forget(segment)
        rename_segment_files(self.files, self.directory, segment.base_offset, "", DELETED)
        self._schedule_deletion(
            segment.base_offset, self.clock.now_ms() if now_ms is None else now_ms
        )

    def _schedule_deletion(self, base_offset: int, now_ms: int) -> None:
        due_ms = now_ms + self.settings.file_delete_delay_ms
        for kind in (*SEGMENT_KINDS, SNAPSHOT):
            path = f"{self.directory}/{log_name(base_offset, kind)}{DELETED}"
            self.pending_deletions.append((due_ms, path))

    def delete_expired_files(self, now_ms: int) -> int:
        """Removes what is due; gives how many files went."""
        with self.lock:
            due = [path for due_ms, path in self.pending_deletions if due_ms <= now_ms]
            self.pending_deletions = [
                entry for entry in self.pending_deletions if entry[0] > now_ms
            ]
        removed = 0
        for path in due:
            with contextlib.suppress(FileNotFoundError):
                self.fs.remove(path)
                removed += 1
        return removed
