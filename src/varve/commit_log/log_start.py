"""Raises the log start offset: what lies before it is no longer read, wherever it is kept.

Crash      the offset is on disk before this returns; the files behind it go with the next retention
           pass, the objects of the cold tier with its next expiry.
Threads    any.
"""

from collections.abc import Callable

from varve.commit_log.log_state import LogState
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
    PolicyViolation,
    Unavailable,
)


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
