"""Wall-clock time as an argument.

Threads    all clocks may be shared; `ManualClock` moves only when it is set.
"""

import logging
import threading
import time
from typing import Final, Protocol

logger = logging.getLogger(__name__)


class Clock(Protocol):
    """Source of the current time, in milliseconds since the Unix epoch."""

    def now_ms(self) -> int: ...

    def elapsed_ms(self) -> int:
        """Time since an unknown moment, by a clock that cannot be set."""


# Counts the time for which the machine is suspended as well, which CLOCK_MONOTONIC does not.
_ELAPSED_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return time.clock_gettime_ns(_ELAPSED_CLOCK) // 1_000_000


class ManualClock:
    """A clock for tests: stands still until `advance` moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def elapsed_ms(self) -> int:
        return self._elapsed_ms

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._elapsed_ms += milliseconds

    def jump(self, milliseconds: int) -> None:
        """Sets the wall clock forward, or back, while no time passes."""
        self._now_ms += milliseconds


class RemovalClock:
    """The time by which background work removes records: it does not follow a jump ahead at once.

    A wall clock that is set forward by more than `jump_max_ms` would make every record old. The
    time then goes on from before the jump until the wall clock has kept its new time for `hold_ms`
    or is set back. What happened while the process did not run is not noticed.
    """

    def __init__(self, clock: Clock, *, jump_max_ms: int, hold_ms: int) -> None:
        self._clock = clock
        self._jump_max_ms = jump_max_ms
        self._hold_ms = hold_ms
        self._lock = threading.Lock()
        # What the wall clock shows beyond the elapsed time; all guarded by _lock.
        self._offset_ms = self._highest_ms = clock.now_ms() - clock.elapsed_ms()
        self._suspect_ms = self._suspect_since_ms = 0
        self._is_holding = False

    def elapsed_ms(self) -> int:
        return self._clock.elapsed_ms()

    def now_ms(self) -> int:
        with self._lock:
            elapsed_ms = self._clock.elapsed_ms()
            offset_ms = self._clock.now_ms() - elapsed_ms
            if self._is_believed_locked(offset_ms, elapsed_ms):
                self._offset_ms = offset_ms
                self._highest_ms = max(self._highest_ms, offset_ms)
                self._is_holding = False
            return elapsed_ms + self._offset_ms

    def _is_believed_locked(self, offset_ms: int, elapsed_ms: int) -> bool:
        if offset_ms - self._highest_ms <= self._jump_max_ms:
            return True
        if self._is_holding and abs(offset_ms - self._suspect_ms) <= self._jump_max_ms:
            return elapsed_ms - self._suspect_since_ms >= self._hold_ms
        self._is_holding = True
        self._suspect_ms, self._suspect_since_ms = offset_ms, elapsed_ms
        logger.warning(
            "the clock was set forward: records are removed by the time before for a while",
            extra={"ahead_ms": offset_ms - self._offset_ms, "hold_ms": self._hold_ms},
        )
        return False

    def describe_hold(self) -> str:
        """The jump that is being held off, with what to do; empty without one."""
        with self._lock:
            if not self._is_holding:
                return ""
            ahead_s = (self._suspect_ms - self._offset_ms) // 1000
            since_ms = self._clock.elapsed_ms() - self._suspect_since_ms
            left_s = max(self._hold_ms - since_ms, 0) // 1000
        return (
            f"the clock of this machine was set forward by {ahead_s} s; records that this made old "
            f"are removed in {left_s} s: set the clock right, or confirm its time by a restart"
        )
