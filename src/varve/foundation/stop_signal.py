"""A request to stop that waiting threads notice at once.

Threads    any.
"""

import threading


class StopSignal:
    """Set once, by whoever stops the work; never cleared."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait_ms(self, wait_ms: float) -> bool:
        """Sleeps for so long, or until the stop; True when stopped."""
        return self._event.wait(min(wait_ms / 1000, threading.TIMEOUT_MAX))
