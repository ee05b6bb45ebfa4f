"""What clients cause is logged, but no client fills the disk with it.

Invariant  of one message of the server's or the broker's at most `LINES_MAX` lines pass within
           `WINDOW_SECONDS`; the next line that passes tells how many were left out. What the store
           itself says always passes.
Threads    a handler asks its filters outside its lock: a race may let a line more pass.
"""

import logging
from dataclasses import dataclass
from typing import Final

LINES_MAX: Final = 100
WINDOW_SECONDS: Final = 10.0

_LIMITED: Final = ("varve.kafka_server.", "varve.broker.", "asyncio")
_MESSAGES_MAX: Final = 1000


@dataclass(slots=True)
class _Window:
    began: float
    passed: int = 0
    left_out: int = 0


class LogLimit(logging.Filter):
    """A filter for a handler; messages are constant, so they are told apart by their text."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, object], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_LIMITED):
            return True
        window = self._window(record)
        if window.passed >= LINES_MAX:
            window.left_out += 1
            return False
        if window.left_out:
            record.left_out_before = window.left_out
            window.left_out = 0
        window.passed += 1
        return True

    def _window(self, record: logging.LogRecord) -> _Window:
        key = (record.name, record.msg)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _MESSAGES_MAX:
                self._windows.clear()
            window = self._windows[key] = _Window(record.created)
        # A clock that was set back must not silence the log for long.
        elif not 0 <= record.created - window.began < WINDOW_SECONDS:
            window.began, window.passed = record.created, 0
        return window
