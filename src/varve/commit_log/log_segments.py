"""The segments of an open log: the current view, changes to it, removal of old files.

Invariant  base offsets ascend; the active segment is the last. A `SegmentView` is immutable and
           replaced as a whole. `generation` counts starts and ends of changes to files, so it is
           odd during one: a sequence lock.
Crash      files that leave the log are renamed `.deleted` first and removed later.
Threads    the log's lock guards every change; readers take the view once and need no lock.
"""

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from varve.commit_log.append_times import AppendSpan, txn_check_of
from varve.commit_log.health import LogHealth
from varve.commit_log.log_loader import LoadedLog, LoadRequest
from varve.commit_log.names import DELETED, LOG, SNAPSHOT, log_name
from varve.commit_log.segment import (
    SEGMENT_KINDS,
    ActiveSegment,
    Segment,
    SegmentContents,
    rename_segment_files,
)
from varve.commit_log.segment_reader import ReadableSegment, find_end
from varve.foundation.errors import StoreError, Unavailable

T = TypeVar("T")

STABLE_READ_ATTEMPTS: Final = 8
"""How often a read is tried while segments are replaced, before it raises Unavailable."""


class SegmentView:
    """The segments at one moment: closed ones by base offset, and the active one after them."""

    __slots__ = ("_bases", "_with_aborted", "active", "closed")

    def __init__(self, closed: Sequence[Segment], active: ActiveSegment) -> None:
        self.closed = closed
        self.active = active
        self._bases = [segment.base_offset for segment in closed]
        self._with_aborted = [segment for segment in closed if segment.has_txn_index]

    def may_hold_aborted(self, offset: int = 0) -> Iterator[ReadableSegment]:
        """The segments with markers of aborted transactions at or after an offset."""
        start = bisect_right(self._with_aborted, offset, key=lambda segment: segment.base_offset)
        yield from self._with_aborted[max(start - 1, 0) :]
        yield self.active

    @property
    def first_base_offset(self) -> int:
        return self._bases[0] if self._bases else self.active.base_offset

    def __len__(self) -> int:
        return len(self.closed) + 1

    def __iter__(self) -> Iterator[ReadableSegment]:
        yield from self.closed
        yield self.active

    def from_offset(self, offset: int) -> Iterator[ReadableSegment]:
        """The segment that would hold the offset, and all after it."""
        if offset < self.active.base_offset:
            start = max(bisect_right(self._bases, offset) - 1, 0)
            for number in range(start, len(self.closed)):
                yield self.closed[number]
        yield self.active


class LogSegments:
    """The segments of one open log."""

    def __init__(
        self, request: LoadRequest, loaded: LoadedLog, *, health: LogHealth, lock: threading.Lock
    ) -> None:
        self.files = request.files
        self.fs = request.files.fs
        self.directory = request.directory
        self.settings = request.settings
        self._clock = request.clock
        self._random = request.random
        self._health = health
        self._lock = lock
        self.append_times = loaded.append_times
        self.view = SegmentView(loaded.closed, loaded.active)
        # Closed segments not yet known to be on disk; guarded by lock.
        self.unsynced = self._segments_after(loaded.recovery_point)
        self.has_new_files = True
        self.pending_deletions: list[tuple[int, str]] = []  # when to remove which file
        self.generation = 0

    def _segments_after(self, offset: int) -> list[ActiveSegment | Segment]:
        closed = self.view.closed
        ends = [segment.base_offset for segment in closed[1:]] + [self.view.active.base_offset]
        # A segment that ends exactly there was closed later: its indexes may be unsynced.
        return [segment for segment, end in zip(closed, ends, strict=False) if end >= offset]

    # Read

    def read_stable(self, read: Callable[[], T]) -> T:
        """Calls `read` until no change of files began or ended meanwhile; returns its result.

        It retries after a truncation, a swap or a segment that left the log. Other I/O errors take
        the log offline.
        """
        for _ in range(STABLE_READ_ATTEMPTS):
            generation = self.generation
            if generation % 2:
                with self._lock:
                    generation = self.generation
            self._health.check_readable()
            try:
                result = read()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._health.failed(error, "read") from error
            except StoreError:
                if self.generation == generation:
                    raise
                continue
            if self.generation == generation:
                return result
        raise Unavailable(
            f"{self._health.prefix}segments were replaced {STABLE_READ_ATTEMPTS} times during one "
            "read; try again"
        )

    def find(self, segments: Sequence[Segment]) -> int | None:
        """The index of the first segment; None unless all are consecutive in the view."""
        closed = self.view.closed
        for number, segment in enumerate(closed):
            if segment is segments[0]:
                candidates = closed[number : number + len(segments)]
                return number if list(candidates) == list(segments) else None
        return None

    # When records were appended

    def appended(self, segment: ReadableSegment) -> AppendSpan:
        """When a segment's records were appended; raises FileNotFoundError if it left the log."""
        active = self.view.active
        span = (
            active.appended
            if segment.base_offset == active.base_offset
            else self.append_times.find(segment.base_offset)
        )
        if span is None:
            modified_ms = self.fs.info(segment.path(LOG)).modified_ms
            span = AppendSpan(modified_ms, modified_ms)
        return span

    def record_append_locked(self, now_ms: int) -> None:
        """Call it before the bytes are written: a segment with records then has an entry."""
        active = self.view.active
        if active.appended is None:
            span = AppendSpan(now_ms, now_ms)
            self.append_times.write(active.base_offset, span)
            active.appended = span
        elif now_ms > active.appended.last_ms:
            active.appended = AppendSpan(active.appended.first_ms, now_ms)

    def record_closing_locked(self) -> None:
        """Writes the final append times of the active segment, which gets no more appends."""
        active = self.view.active
        span, times, base_offset = active.appended, self.append_times, active.base_offset
        if span is None:
            return
        txn_check = active.txn_check
        if (span, txn_check) != (times.find(base_offset), times.find_txn_check(base_offset)):
            times.write(base_offset, span, txn_check=txn_check)

    def record_txn_check(self, segment: Segment) -> None:
        """Writes the check of a closed segment's transaction index, if it is another one."""
        txn_check = txn_check_of(segment.txn_index().encode())
        segment.txn_check = txn_check
        span = self.append_times.find(segment.base_offset)
        if span is not None and txn_check != self.append_times.find_txn_check(segment.base_offset):
            self.append_times.write(segment.base_offset, span, txn_check=txn_check)

    # Change

    @contextlib.contextmanager
    def changing_files_locked(self, operation: str) -> Iterator[None]:
        """Encloses a change of files that readers may be reading.

        A failure inside leaves the log in an intermediate state, so even a full disk takes it
        offline; reopening recovers it.
        """
        self.generation += 1
        try:
            yield
        except OSError as error:
            raise self._health.offline(error, operation) from error
        except StoreError as error:
            self._health.failure = self._health.failure or error
            raise
        finally:
            self.generation += 1

    def set_view_locked(self, closed: Sequence[Segment], active: ActiveSegment) -> None:
        """Replaces the view; removed segments no longer need a sync."""
        retained = {segment.base_offset for segment in set(closed).intersection(self.view.closed)}
        self.unsynced = [segment for segment in self.unsynced if segment.base_offset in retained]
        self.view = SegmentView(closed, active)

    def add_active_locked(self, base_offset: int) -> None:
        """Starts a segment after the active one, whose index files have been written."""
        active = self.view.active
        try:
            next_active = self.new_active(base_offset)
        except OSError:
            # Appends may continue in the old segment: a load must not find one that begins in it.
            self.has_new_files = True
            self._remove_files(base_offset)
            raise
        self.unsynced.append(active)
        self.view = SegmentView([*self.view.closed, active.closed()], next_active)

    def new_active(self, base_offset: int) -> ActiveSegment:
        """An empty segment; leftover files with its names are removed first."""
        self._remove_files(base_offset)
        active = self._open_active(base_offset)
        if self.settings.preallocate:
            active.writer.truncate(self.settings.segment_bytes)
        self.has_new_files = True
        return active

    def _open_active(self, base_offset: int) -> ActiveSegment:
        """Opens a segment for appends; its data file may already have content."""
        return ActiveSegment(
            self.files,
            self.directory,
            self.settings,
            base_offset=base_offset,
            clock=self._clock,
            random=self._random,
        )

    def _remove_files(self, base_offset: int) -> None:
        for kind in SEGMENT_KINDS:
            with contextlib.suppress(FileNotFoundError):
                self.fs.remove(f"{self.directory}/{log_name(base_offset, kind)}")

    def truncate_locked(
        self, contents: SegmentContents, appended: AppendSpan | None, *, number: int
    ) -> None:
        """Truncates the segment at index `number` to `contents` and makes it the active one.

        Later segments are removed highest first, so that a crash never leaves a gap; the truncation
        is synced.
        """
        segments = list(self.view)
        for segment in reversed(segments[number + 1 :]):
            self.mark_deleted_locked(segment)
        if number + 1 < len(segments):
            self.fs.sync_directory(self.directory)
        active = self._open_active(contents.base_offset)
        active.appended = appended
        active.writer.truncate(contents.size)
        active.writer.sync()
        active.resume(contents)
        active.truncated = (contents.size, find_end(active, size=contents.size)[0])
        closed = self.view.closed
        if number < len(closed):
            self.files.forget(closed[number])
        self.set_view_locked(closed[:number], active)

    def mark_deleted_locked(self, segment: ReadableSegment, now_ms: int | None = None) -> None:
        """Renames a segment's files `.deleted`; they are removed `file.delete.delay.ms` later.

        Readers that have them open can continue.
        """
        if isinstance(segment, Segment):
            self.files.forget(segment)
        rename_segment_files(self.files, self.directory, segment.base_offset, "", DELETED)
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        due_ms = now_ms + self.settings.file_delete_delay_ms
        for kind in (*SEGMENT_KINDS, SNAPSHOT):
            path = f"{self.directory}/{log_name(segment.base_offset, kind)}{DELETED}"
            self.pending_deletions.append((due_ms, path))

    def delete_expired_files(self, now_ms: int) -> None:
        """Removes the files whose deletion delay has passed."""
        with self._lock:
            due = [path for due_ms, path in self.pending_deletions if due_ms <= now_ms]
            self.pending_deletions = [
                entry for entry in self.pending_deletions if entry[0] > now_ms
            ]
        for path in due:
            with contextlib.suppress(FileNotFoundError):
                self.fs.remove(path)
