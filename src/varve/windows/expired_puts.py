"""Puts that came too late to be kept: counted all, warned of now and then.

Invariant  no more than one warning a second, however many puts there are; a clock that goes back
           begins a new second.
"""

import logging
from typing import Final

from varve.foundation.clock import Clock

logger = logging.getLogger(__name__)

WARNING_INTERVAL_MS: Final = 1_000


class ExpiredPuts:
    """The count of one store."""

    def __init__(self, store_name: str, clock: Clock, *, warns: bool) -> None:
        self.count = 0
        self._store_name = store_name
        self._clock = clock
        self._warns = warns
        self._warned_ms: int | None = None
        self._warned_count = 0

    def record(self, time_ms: int, stream_time_ms: int) -> None:
        self.count += 1
        if not self._warns:
            return
        now_ms = self._clock.now_ms()
        if self._warned_ms is None or not 0 <= now_ms - self._warned_ms < WARNING_INTERVAL_MS:
            logger.warning(
                "puts are expired and skipped",
                extra={
                    "store": self._store_name,
                    "count": self.count - self._warned_count,
                    "time_ms": time_ms,
                    "stream_time_ms": stream_time_ms,
                },
            )
            self._warned_ms = now_ms
            self._warned_count = self.count
