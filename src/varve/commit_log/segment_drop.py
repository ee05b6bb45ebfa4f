"""Drops whole segments at the beginning of a log: what retention decides, carried out.

Crash      the log start offset is raised on disk before the first file goes, so that no crash shows
           some of the dropped records and not others; the renames are durable before anything else
           may take the first segment's name for the log start. On a disk too full for the
           checkpoint the files go all the same, for they are what fills it: lowest first, so that a
           crash in between leaves a shorter log without a gap.
Threads    holds the flush lock throughout, so that no truncation, swap or close meets it; the log's
           lock for each change. Readers look again when it is done.
"""

import contextlib
from collections.abc import Callable, Iterator

from varve.commit_log.log_state import NO_ROOM, LogState
from varve.commit_log.segment import Segment
from varve.commit_log.segment_view import SegmentView
from varve.foundation.errors import InvalidRequest, OffsetOutOfRange


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
                dropped = [one for one in state.view.closed if one.base_offset < offset]
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
                dropped = [one for one in state.view.closed if one.base_offset < offset]
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
        with state.cutting_locked("drop segments of"):
            with _unless_full():
                state.trim_epochs_locked()
            for segment in dropped:
                state.set_aside_locked(segment, now_ms)
                state.append_times.forget(segment.base_offset)
                if segment.base_offset in state.snapshots.offsets:
                    state.snapshots.set_aside(segment.base_offset)
            state.fs.sync_directory(state.directory)
            gone = {segment.base_offset for segment in dropped}
            state.unsynced = [one for one in state.unsynced if one.base_offset not in gone]
            state.view = SegmentView(kept, state.view.active)


@contextlib.contextmanager
def _unless_full() -> Iterator[None]:
    """Passes over a full disk: what could not be written is told by the files that stay."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
