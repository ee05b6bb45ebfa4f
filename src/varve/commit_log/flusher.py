"""Brings a log to the disk and moves its recovery point.

Invariant  the recovery point moves only after data, indexes and names below it are synced. The
           active segment's indexes are not among them: recovery rebuilds those of the segment it
           starts in.
Crash      a failed sync poisons the log.
Threads    one at a time; appends go on meanwhile, and those that wait find their work done by the
           first.
"""

from typing import Final

from varve.commit_log.log_state import LogState

_WRITE_BEHIND_BYTES: Final = 64 << 20


class Flusher:
    """Flushes one log."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def flush(self, end_offset: int | None = None) -> None:
        """Syncs everything below an offset, or all there is."""
        state = self._state
        with state.flush_lock:
            state.check_usable()
            self.sync_locked(state.end_offset if end_offset is None else end_offset)

    def sync_locked(self, end_offset: int) -> None:
        """As `flush`, for callers that hold the flush lock; of a closed log too."""
        state = self._state
        if end_offset <= state.recovery_point and not state.has_new_files:
            return
        with state.lock:
            rolled = list(state.unsynced)
            snapshots = state.snapshots.take_unsynced()
            active = state.view.active
            (active_end, active_size), has_new_files = active.extent, state.has_new_files
            state.has_new_files = False
        try:
            for segment in rolled:
                segment.sync()
            lost = [offset for offset in snapshots if not state.snapshots.sync(offset)]
            if rolled:
                state.append_times.sync()
            if end_offset > active.base_offset:
                active.writer.sync()
                active.synced_size = active_size
            if has_new_files:
                state.fs.sync_directory(state.directory)
        except OSError as error:
            raise state.poison(error) from error
        with state.lock:
            for offset in lost:
                state.snapshots.forget(offset)
            state.unsynced = state.unsynced[len(rolled) :]
            # A segment that rolled meanwhile has indexes yet to be synced: recovery starts in it.
            is_active = state.view.active is active
            is_reached = end_offset > active.base_offset and is_active
            reached = active_end if is_reached else active.base_offset
            state.recovery_point = max(state.recovery_point, reached)
            state.last_flush_ms = state.clock.now_ms()

    def flush_if_due(self, now_ms: int) -> None:
        """Syncs rolled segments, and the rest once it is old enough or much.

        Old enough is `flush.ms`. Much is what would make the next roll wait for the disk, since
        it syncs what is left of its segment.
        """
        state = self._state
        active = state.view.active
        is_old = now_ms - state.last_flush_ms >= state.settings.flush_ms
        is_much = active.size - active.synced_size > _WRITE_BEHIND_BYTES
        if state.end_offset > state.recovery_point and (is_old or is_much):
            self.flush()
        elif state.unsynced:
            self.flush(state.view.active.base_offset)
