"""Shortens a log: cuts it at its end, drops segments at its beginning, raises its start offset.

Crash      Truncation: recovery point and cleaner offset are lowered on disk first; later segments
           go highest first, so that a crash never leaves a gap; then the cut itself is synced. What
           was to go may be back after a crash in between, nothing else can be missing.
           Dropping: the log start offset is raised on disk before the first file goes, so that no
           crash shows some of the dropped records and not others; the renames are durable before
           anything else may take the first segment's name for the log start. On a disk too full for
           the checkpoint the files go all the same, for they are what fills it: lowest first, so
           that a crash in between leaves a shorter log without a gap.
           Raising the start: the offset is on disk before this returns; the files behind it go with
           the next retention pass, the remote segments with their next expiry.
Threads    a truncation holds the flush lock and the log's lock throughout; dropping holds the flush
           lock throughout and the log's lock for each change. Readers retry until it is done.
"""

import contextlib
from collections.abc import Callable, Iterator

from varve.commit_log.append_times import AppendSpan
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.log_state import NO_ROOM, LogState
from varve.commit_log.producer_snapshots import ProducerLoad, load_producers
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment import Segment, SegmentContents, read_contents_before
from varve.commit_log.segment_reader import ReadableSegment, find_end
from varve.commit_log.segment_view import SegmentView
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
    PolicyViolation,
    Unavailable,
)


class Truncation:
    """Truncates one log; the checkpoints that loading starts from are written through hooks."""

    def __init__(
        self,
        state: LogState,
        *,
        write_recovery_points: Callable[[], None],
        write_log_starts: Callable[[], None],
        lower_cleaner_offset: Callable[[int], None],
        producer_expiration_ms: int,
    ) -> None:
        self._state = state
        self._write_recovery_points = write_recovery_points
        self._write_log_starts = write_log_starts
        self._lower_cleaner_offset = lower_cleaner_offset
        self._producer_expiration_ms = producer_expiration_ms

    def truncate_to(self, offset: int) -> bool:
        """Drops every batch that reaches the offset or beyond; False when there is none."""
        state = self._state
        self._check(offset)
        with state.flush_lock, state.lock:
            state.check_usable()
            if offset >= state.end_offset:
                with state.io("truncate"):
                    if state.epochs.truncate_from_end(state.end_offset):
                        state.write_epochs()
                return False
            if offset < state.view.first_base_offset:
                self._restart_locked(offset)
            else:
                self._cut_locked(offset)
        return True

    def reset_at(self, offset: int) -> None:
        """Drops everything and starts again, empty, at the offset."""
        state = self._state
        self._check(offset)
        with state.flush_lock, state.lock:
            state.check_usable()
            self._restart_locked(offset)

    def _check(self, offset: int) -> None:
        if offset < 0:
            raise InvalidRequest(
                f"{self._state.topic_partition}: cannot truncate to offset {offset}; "
                "offsets begin at 0"
            )

    def _lower_locked(self, offset: int) -> None:
        """Lowers, durably, what must not reach beyond the log once it is cut."""
        state = self._state
        with state.io("checkpoint of"):
            self._lower_cleaner_offset(offset)
            state.append_times.drop_from(offset)
        if offset < state.recovery_point:
            state.recovery_point = offset
            with state.io("checkpoint of"):
                self._write_recovery_points()

    def _cut_locked(self, offset: int) -> None:
        state = self._state
        segments: list[ReadableSegment] = list(state.view)
        kept = [segment for segment in segments if segment.base_offset <= offset]
        with state.io("read"):
            # What cannot be read is found out before anything is changed.
            contents = read_contents_before(kept[-1], offset, state.settings)
            appended = state.appended(kept[-1]) if contents.size else None
        self._lower_locked(offset)
        with state.changing_files_locked("truncate"):
            for segment in reversed(segments[len(kept) :]):
                state.mark_deleted_locked(segment)
            if len(kept) < len(segments):
                state.fs.sync_directory(state.directory)
            self._make_last_locked(contents, appended, number=len(kept) - 1)
            self._lower_offsets_locked(offset)
            if state.epochs.truncate_from_end(offset):
                state.write_epochs()
            state.producers = self._reload_producers_locked(offset)
            # A snapshot that comes back could pass for one of batches yet to come.
            state.fs.sync_directory(state.directory)
            state.producers.advance_high_watermark(state.high_watermark)

    def _lower_offsets_locked(self, offset: int) -> None:
        """A log start left above the log end would make the next load drop the whole log."""
        state = self._state
        state.high_watermark = min(state.high_watermark, offset)
        if offset < state.log_start_offset:
            state.log_start_offset = offset
            self._write_log_starts()

    def _make_last_locked(
        self, contents: SegmentContents, appended: AppendSpan | None, *, number: int
    ) -> None:
        """Cuts the data file and takes the segment for appends."""
        state = self._state
        active = state.reopen_active(contents.base_offset)
        active.appended = appended
        active.writer.truncate(contents.size)
        active.writer.sync()
        active.resume(contents)
        active.cut = (contents.size, find_end(active, size=contents.size)[0])
        closed = state.view.closed
        if number < len(closed):
            state.files.forget(closed[number])
        base = contents.base_offset
        state.unsynced = [one for one in state.unsynced if one.base_offset < base]
        state.view = SegmentView(closed[:number], active)

    def _reload_producers_locked(self, offset: int) -> ProducerStateManager:
        state = self._state
        load = ProducerLoad(
            log_start_offset=state.log_start_offset,
            now_ms=state.clock.now_ms(),
            expiration_ms=self._producer_expiration_ms,
            where=str(state.topic_partition),
        )
        return load_producers(state.snapshots, list(state.view), end_offset=offset, load=load)

    def _restart_locked(self, offset: int) -> None:
        state = self._state
        self._lower_locked(offset)
        with state.changing_files_locked("truncate"):
            first, *later = state.view
            for segment in reversed(later):
                state.mark_deleted_locked(segment)
            # Once no segment is left, loading begins where the log start checkpoint says.
            state.log_start_offset = offset
            self._write_log_starts()
            state.mark_deleted_locked(first)
            for snapshot in list(state.snapshots.offsets):
                state.snapshots.remove(snapshot)
            state.view = SegmentView([], state.new_active(offset))
            state.unsynced = []
            state.epochs = LeaderEpochs()
            state.write_epochs()
            state.producers = ProducerStateManager(str(state.topic_partition))
            state.producers.map_end_offset = offset
            state.high_watermark = offset
            state.recovery_point = offset
            state.fs.sync_directory(state.directory)
            self._write_recovery_points()
            self._write_log_starts()


class SegmentDrop:
    """Drops segments of one log; the log start checkpoint is written through a hook."""

    def __init__(self, state: LogState, *, write_log_starts: Callable[[], None]) -> None:
        self._state = state
        self._write_log_starts = write_log_starts

    def drop_before(self, offset: int, *, now_ms: int) -> list[Segment]:
        """The dropped segments; raises InvalidRequest unless a segment begins at the offset."""
        state = self._state
        with state.flush_lock:
            with state.lock:
                state.check_usable()
                self._check_locked(offset)
                if offset == state.end_offset:
                    with state.io("roll"):
                        state.roll_locked(offset)
                dropped = [segment for segment in state.view.closed if segment.base_offset < offset]
                if not dropped:
                    return []
                state.raise_log_start_locked(offset)
                state.is_start_known = True
            with state.io("checkpoint of"), _unless_full():
                self._write_log_starts()
            self._drop(dropped, now_ms)
        return dropped

    def drop_local_before(self, offset: int, *, now_ms: int) -> list[Segment]:
        """Drops segments that are kept elsewhere too; the log start offset stays.

        It is on disk before they go: without it only the cold tier can tell. On a disk too full for
        the checkpoint they go all the same.
        """
        state = self._state
        with state.flush_lock:
            with state.lock:
                state.check_usable()
                self._check_locked(offset)
                dropped = [segment for segment in state.view.closed if segment.base_offset < offset]
            if not dropped:
                return []
            with state.io("checkpoint of"), _unless_full():
                self._write_log_starts()
            self._drop(dropped, now_ms)
        return dropped

    def _drop(self, dropped: list[Segment], now_ms: int) -> None:
        with self._state.lock:
            self._state.check_usable()
            self._drop_locked(dropped, now_ms)

    def _check_locked(self, offset: int) -> None:
        state = self._state
        bases = {segment.base_offset for segment in state.view}
        if offset not in bases and offset != state.end_offset:
            raise InvalidRequest(
                f"{state.topic_partition}: cannot drop the segments before offset {offset}: no "
                f"segment begins there; the log ends at {state.end_offset}"
            )
        if offset > state.high_watermark:
            raise OffsetOutOfRange(
                f"{state.topic_partition}: cannot drop the segments before offset {offset}: the "
                f"high watermark is {state.high_watermark}, and what lies above it must stay"
            )

    def _drop_locked(self, dropped: list[Segment], now_ms: int) -> None:
        state = self._state
        kept = state.view.closed[len(dropped) :]
        with state.changing_files_locked("drop segments of"):
            with _unless_full():
                state.trim_epochs_locked()
            for segment in dropped:
                state.mark_deleted_locked(segment, now_ms)
                state.append_times.forget(segment.base_offset)
                if segment.base_offset in state.snapshots.offsets:
                    state.snapshots.set_aside(segment.base_offset)
            state.fs.sync_directory(state.directory)
            gone = {segment.base_offset for segment in dropped}
            state.unsynced = [one for one in state.unsynced if one.base_offset not in gone]
            state.view = SegmentView(kept, state.view.active)


@contextlib.contextmanager
def _unless_full() -> Iterator[None]:
    """Passes over a full disk: what could not be written can be read from the files that stay."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


class LogStart:
    """The beginning of one log; its checkpoint is written through a hook."""

    def __init__(self, state: LogState, *, write_log_starts: Callable[[], None]) -> None:
        self._state = state
        self._write_log_starts = write_log_starts

    def delete_records(self, before_offset: int) -> int:
        """What a client may ask for, -1 meaning the high watermark; gives the new log start."""
        state = self._state
        if not isinstance(before_offset, int):
            raise InvalidRequest(
                f"{state.topic_partition}: cannot delete records before {before_offset!r:.40}; "
                "give the offset as an int"
            )
        if "delete" not in state.settings.cleanup_policy:
            raise PolicyViolation(
                f"{state.topic_partition}: records are deleted only where cleanup.policy contains "
                f"delete; it is {','.join(state.settings.cleanup_policy)}"
            )
        self._check_known(before_offset)
        return self.raise_to(before_offset)

    def _check_known(self, before_offset: int) -> None:
        """A log start made up from a lower offset would promise records that are long gone."""
        state = self._state
        local_start = state.view.first_base_offset
        if not state.is_start_known and 0 <= before_offset < local_start:
            raise Unavailable(
                f"{state.topic_partition}: cannot delete records before {before_offset} yet: "
                "where the log starts is known to the cold tier alone, which was not read since "
                f"the store was opened; try again, or delete those before {local_start} or more"
            )

    def raise_to(self, before_offset: int) -> int:
        """Raises OffsetOutOfRange above the high watermark; a lower offset changes nothing."""
        state = self._state
        with state.lock:
            state.check_usable()
            offset = state.high_watermark if before_offset == -1 else before_offset
            if not 0 <= offset <= state.high_watermark:
                raise OffsetOutOfRange(
                    f"{state.topic_partition}: cannot delete records before {before_offset}; "
                    "the high "
                    f"watermark is {state.high_watermark}"
                )
            state.raise_log_start_locked(offset)
            state.is_start_known = True
        self._write(offset)
        with state.lock:
            state.check_usable()
            with state.io("delete records of"):
                state.trim_epochs_locked()
        return state.log_start_offset

    def _write(self, offset: int) -> None:
        state = self._state
        try:
            self._write_log_starts()
        except OSError as error:
            failure = state.failed(error, "checkpoint of")
            if isinstance(failure, DiskFull):
                failure = DiskFull(
                    f"{state.topic_partition}: records before {offset} are no longer read, "
                    "but the disk is "
                    "too full to note it for the next start; free some space and delete them again"
                )
            raise failure from error
