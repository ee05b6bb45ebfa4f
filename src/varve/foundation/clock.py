"""Wall-clock time as an argument.

Threads    both clocks may be shared; `ManualClock` moves only when it is set.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of the current time, in milliseconds since the Unix epoch."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock for tests: stands still until `advance` moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
