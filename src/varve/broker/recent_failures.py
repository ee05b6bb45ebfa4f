"""Appends or reads that the disk or the object store failed, for the log and the health endpoint.

A client retries many times a second what a full disk or a missing bucket fails, and its user sees a
timeout. The log has the reason, at most once in ten seconds.

Threads    appends are noted in the append thread, reads in the loop's; queried in the loop's.
"""

import logging
from collections.abc import Callable
from typing import Final

from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreError

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOGS: Final = 10.0
_SECONDS_KEPT: Final = 60.0


class RecentFailures:
    """The last append, or read, that failed through no fault of the client."""

    def __init__(self, message: str, seconds: Callable[[], float]) -> None:
        self._message = message
        self._seconds = seconds
        self._last: tuple[float, str] | None = None
        self._logged_at: float | None = None
        self._unlogged_count = 0

    def note(self, partition: TopicPartition, error: StoreError) -> None:
        now = self._seconds()
        self._last = (now, str(error))
        if self._logged_at is not None and now - self._logged_at < _SECONDS_BETWEEN_LOGS:
            self._unlogged_count += 1
            return
        logger.error(
            self._message,
            extra={
                "partition": str(partition),
                "error": str(error),
                "unlogged_before": self._unlogged_count,
            },
        )
        self._logged_at, self._unlogged_count = now, 0

    def find_recent(self) -> str | None:
        """The error of the last minute; None where there was none."""
        last = self._last
        if last is None or self._seconds() - last[0] >= _SECONDS_KEPT:
            return None
        return last[1]
