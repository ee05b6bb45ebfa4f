"""What disk or bucket refused: told to the log without a flood, and to whoever asks for health.

A client tries again many times a second what a full disk or a missing bucket refuses, and its user
sees a timeout. Here the operator sees why.

Threads    appends are noted in the writer's thread, reads in the loop's; asked for in the loop's.
"""

import logging
from collections.abc import Callable
from typing import Final

from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreError

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN: Final = 10.0
_SECONDS_KEPT: Final = 60.0


class Refusals:
    """The last append, or read, that failed through no fault of the client's."""

    def __init__(self, message: str, seconds: Callable[[], float]) -> None:
        self._message = message
        self._seconds = seconds
        self._last: tuple[float, str] | None = None
        self._told_at: float | None = None
        self._untold_count = 0

    def note(self, partition: TopicPartition, error: StoreError) -> None:
        now = self._seconds()
        self._last = (now, str(error))
        if self._told_at is not None and now - self._told_at < _SECONDS_BETWEEN:
            self._untold_count += 1
            return
        logger.error(
            self._message,
            extra={
                "partition": str(partition),
                "error": str(error),
                "untold_before": self._untold_count,
            },
        )
        self._told_at, self._untold_count = now, 0

    def find_recent(self) -> str | None:
        """What was refused within the last minute; None where nothing was."""
        last = self._last
        if last is None or self._seconds() - last[0] >= _SECONDS_KEPT:
            return None
        return last[1]
