"""Shortens a log: truncates its end, drops its first segments, raises its log start offset.

Crash      Truncation: recovery point and cleaner offset are lowered on disk first; later segments
           are removed highest first, so that a crash never leaves a gap; then the truncation is
           synced. A crash in between may restore records that were to be removed, but loses no
           others.
           Dropping: the log start offset is raised on disk before the first file is removed, so
           that no crash shows only some of the dropped records; the renames are durable before the
           first segment's base offset can serve as the log start. On a disk too full for the
           checkpoint the files are removed nevertheless, since that frees space: lowest first, so
           that a crash in between leaves a shorter log without a gap.
           Raising the start: the offset is on disk before this returns; the next retention pass
           removes the files below it, the next expiry the remote segments.
Threads    a truncation holds the flush lock and the log's lock throughout; dropping holds the flush
           lock throughout and the log's lock for each change. Readers retry until it is done.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.producer_snapshots import ProducerLoad, load_producers
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment import Segment, read_contents_before
from varve.disk import DiskProblem, classify_error
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
    PolicyViolation,
    Unavailable,
)

if TYPE_CHECKING:
    from varve.commit_log.log import Log


class Truncation:
    """Shortens one log; `Log` documents the methods."""

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._segments = log.segments
        self._health = log.health

    # The end

    def truncate_to(self, offset: int) -> bool:
        log = self._log
        self._check_offset(offset)
        with log.flush_lock, log.lock:
            self._health.check_usable()
            if offset >= log.end_offset:
                with self._health.io("truncate"):
                    if log.leader_epochs.truncate_from_end(log.end_offset):
                        log.write_epochs()
                return False
            if offset < log.local_start_offset:
                self._reset_locked(offset)
            else:
                self._truncate_locked(offset)
        return True

    def reset_at(self, offset: int) -> None:
        self._check_offset(offset)
        with self._log.flush_lock, self._log.lock:
            self._health.check_usable()
            self._reset_locked(offset)

    def _check_offset(self, offset: int) -> None:
        if offset < 0:
            raise InvalidRequest(
                f"{self._log.topic_partition}: cannot truncate to offset {offset}; "
                "offsets begin at 0"
            )

    def _lower_checkpoints_locked(self, offset: int) -> None:
        """Lowers, durably, everything that must not lie beyond the end of the truncated log."""
        log = self._log
        with self._health.io("checkpoint of"):
            log.checkpoints.cleaner_offsets.lower(log.topic_partition, offset)
            self._segments.append_times.drop_from(offset)
            if offset < log.recovery_point:
                log.recovery_point = offset
                log.write_recovery_point()

    def _truncate_locked(self, offset: int) -> None:
        log, segments = self._log, self._segments
        kept = [segment for segment in log.view if segment.base_offset <= offset]
        with self._health.io("read"):
            # A segment that cannot be read fails here, before anything is changed.
            contents = read_contents_before(kept[-1], offset, log.settings)
            appended = segments.appended(kept[-1]) if contents.size else None
        self._lower_checkpoints_locked(offset)
        with segments.changing_files_locked("truncate"):
            segments.truncate_locked(contents, appended, number=len(kept) - 1)
            log.high_watermark = min(log.high_watermark, offset)
            if offset < log.log_start_offset:
                # A log start above the log end would make the next load drop the whole log.
                log.log_start_offset = offset
                log.write_log_start()
            if log.leader_epochs.truncate_from_end(offset):
                log.write_epochs()
            load = ProducerLoad(
                log_start_offset=log.log_start_offset,
                now_ms=log.clock.now_ms(),
                expiration_ms=log.producer_expiration_ms,
                where=str(log.topic_partition),
            )
            log.producers = load_producers(
                log.snapshots, list(log.view), end_offset=offset, load=load
            )
            # A removed snapshot that reappears after a crash could be taken for a later one.
            segments.fs.sync_directory(log.directory)
            log.producers.advance_high_watermark(log.high_watermark)

    def _reset_locked(self, offset: int) -> None:
        log, segments = self._log, self._segments
        self._lower_checkpoints_locked(offset)
        with segments.changing_files_locked("truncate"):
            first, *later = log.view
            for segment in reversed(later):
                segments.mark_deleted_locked(segment)
            # Without segments, loading starts at the offset in the log start checkpoint.
            log.log_start_offset = offset
            log.write_log_start()
            segments.mark_deleted_locked(first)
            for snapshot in list(log.snapshots.offsets):
                log.snapshots.remove(snapshot)
            segments.set_view_locked([], segments.new_active(offset))
            log.leader_epochs = LeaderEpochs()
            log.write_epochs()
            log.producers = ProducerStateManager(str(log.topic_partition))
            log.producers.map_end_offset = offset
            log.high_watermark = offset
            log.recovery_point = offset
            segments.fs.sync_directory(log.directory)
            log.write_recovery_point()
            log.write_log_start()

    # The beginning

    def drop_before(self, offset: int, *, now_ms: int, is_local: bool) -> list[Segment]:
        """Drops segments; with `is_local` the log start stays and the active one is never dropped.

        The log start is on disk before files are removed: otherwise only the remote tier has it.
        """
        log = self._log
        with log.flush_lock:
            with log.lock:
                self._health.check_usable()
                self._check_drop_locked(offset)
                if offset == log.end_offset and not is_local:
                    with self._health.io("roll"):
                        log.roll_locked(offset)
                dropped = [segment for segment in log.view.closed if segment.base_offset < offset]
                if not dropped:
                    return []
                if not is_local:
                    log.raise_log_start_locked(offset)
            with self._health.io("checkpoint of"), _ignoring_full_disk():
                log.write_log_start()
            with log.lock:
                self._health.check_usable()
                self._drop_locked(dropped, now_ms)
        return dropped

    def _check_drop_locked(self, offset: int) -> None:
        log = self._log
        bases = {segment.base_offset for segment in log.view}
        if offset not in bases and offset != log.end_offset:
            raise InvalidRequest(
                f"{log.topic_partition}: cannot drop the segments before offset {offset}: no "
                f"segment begins there; the log ends at {log.end_offset}"
            )
        if offset > log.high_watermark:
            raise OffsetOutOfRange(
                f"{log.topic_partition}: cannot drop the segments before offset {offset}: the "
                f"high watermark is {log.high_watermark}, and records above it must stay"
            )

    def _drop_locked(self, dropped: list[Segment], now_ms: int) -> None:
        log, segments = self._log, self._segments
        with segments.changing_files_locked("drop segments of"):
            with _ignoring_full_disk():
                log.trim_epochs_locked()
            for segment in dropped:
                segments.mark_deleted_locked(segment, now_ms)
                segments.append_times.forget(segment.base_offset)
                if segment.base_offset in log.snapshots.offsets:
                    log.snapshots.set_aside(segment.base_offset)
            segments.fs.sync_directory(log.directory)
            view = log.view
            segments.set_view_locked(view.closed[len(dropped) :], view.active)

    def delete_records(self, before_offset: int) -> int:
        log = self._log
        if not isinstance(before_offset, int):
            raise InvalidRequest(
                f"{log.topic_partition}: cannot delete records before {before_offset!r:.40}; "
                "give the offset as an int"
            )
        if "delete" not in log.settings.cleanup_policy:
            raise PolicyViolation(
                f"{log.topic_partition}: records are deleted only where cleanup.policy contains "
                f"delete; it is {','.join(log.settings.cleanup_policy)}"
            )
        local_start = log.local_start_offset
        if not log.is_start_known and 0 <= before_offset < local_start:
            # Without the true log start, a lower offset would promise records that were deleted.
            raise Unavailable(
                f"{log.topic_partition}: cannot delete records before {before_offset} yet: "
                "only the remote tier has the log start offset, and it was not read since the "
                f"store was opened; try again, or delete records before {local_start} or later"
            )
        return self.raise_log_start(before_offset)

    def raise_log_start(self, before_offset: int) -> int:
        log = self._log
        with log.lock:
            self._health.check_usable()
            offset = log.high_watermark if before_offset == -1 else before_offset
            if not 0 <= offset <= log.high_watermark:
                raise OffsetOutOfRange(
                    f"{log.topic_partition}: cannot delete records before {before_offset}; the "
                    f"high watermark is {log.high_watermark}"
                )
            log.raise_log_start_locked(offset)
        try:
            log.write_log_start()
        except OSError as error:
            failure = self._health.failed(error, "checkpoint of")
            if isinstance(failure, DiskFull):
                failure = DiskFull(
                    f"{log.topic_partition}: records before {offset} are no longer read, but the "
                    "disk is too full to record that for the next start; free some space and "
                    "delete them again"
                )
            raise failure from error
        with log.lock:
            self._health.check_usable()
            with self._health.io("delete records of"):
                log.trim_epochs_locked()
        return log.log_start_offset


@contextlib.contextmanager
def _ignoring_full_disk() -> Iterator[None]:
    """Ignores a full disk: loading derives the unwritten values from the remaining files."""
    try:
        yield
    except OSError as error:
        if classify_error(error) is not DiskProblem.FULL:
            raise
