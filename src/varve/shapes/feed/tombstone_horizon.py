"""Whether tombstones may have left the log before the feed read them.

A compacted topic keeps a tombstone for `delete.retention.ms`. A feed that was behind the end of its
topic for longer cannot know from missing offsets which rows were deleted.

Invariant  time that is not known counts as too long: the time since a table was written, if the
           clock is behind it. While the feed runs, a clock that is set back adds nothing. The
           setting may be altered at any time, so a feed that is behind reads it again.
Threads    one.
"""

from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.settings import LONG_MAX
from varve.topics import TopicReader

_REFRESH_MS: Final = 1_000
"""How long a feed must be behind before the setting is read again, and how often then. An altered
setting takes as long to have an effect: a log is not cleaned at once."""
_DELETE_RETENTION_MS: Final = 24 * 3_600_000


class TombstoneHorizon:
    """How long one opening of a feed has been behind the end of its topic."""

    def __init__(self, reader: TopicReader, clock: Clock, caught_up_ms: int) -> None:
        """`caught_up_ms` is when the end of the topic was last reached, as the table has it."""
        self.caught_up_ms = caught_up_ms
        self.retention_ms: int | None = None
        """How long tombstones are kept, as it was last read; None for ever."""
        self._reader = reader
        self._clock = clock
        self._refreshed_ms: int | None = None
        self._now_ms = clock.now_ms()
        behind_ms = self._now_ms - caught_up_ms
        self._behind_ms = behind_ms if behind_ms >= 0 else LONG_MAX

    def advance(self) -> None:
        """Adds the time that has passed; called with each poll."""
        now_ms = self._clock.now_ms()
        self._behind_ms = min(LONG_MAX, self._behind_ms + max(0, now_ms - self._now_ms))
        self._now_ms = now_ms

    def caught_up(self) -> None:
        """The feed is at the end of its topic, as of the last `advance`."""
        self._behind_ms, self.caught_up_ms = 0, self._now_ms

    def may_have_passed(self) -> bool:
        """Whether the log may have removed tombstones that were not read; raises Unavailable."""
        if self._is_exceeded():
            return True
        if not self._needs_refresh():
            return False
        self.refresh()
        return self._is_exceeded()

    def refresh(self) -> None:
        """Reads how long the topic keeps tombstones."""
        self._refreshed_ms = self._clock.now_ms()
        self.retention_ms = find_tombstone_retention(self._reader)

    def _needs_refresh(self) -> bool:
        if self._refreshed_ms is None:
            return True
        passed_ms = self._clock.now_ms() - self._refreshed_ms
        return self._behind_ms > _REFRESH_MS and not 0 <= passed_ms < _REFRESH_MS

    def _is_exceeded(self) -> bool:
        return self.retention_ms is not None and self._behind_ms > self.retention_ms


def find_tombstone_retention(reader: TopicReader) -> int | None:
    """How long the topic keeps tombstones at least, in ms; None where it is not compacted."""
    settings = reader.settings()
    if "compact" not in settings.get("cleanup.policy", ""):
        return None
    return int(settings.get("delete.retention.ms", _DELETE_RETENTION_MS))
