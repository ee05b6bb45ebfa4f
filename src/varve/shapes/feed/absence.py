"""For how long a feed has not been at the end of its topic.

Deletions stay in a log for a time only; who was away for longer cannot tell by a gap in the log
that rows are gone.

Invariant  time that is not known counts as too long: that since a table was written, if the clock
           is behind it. While the feed runs, a clock set back adds nothing.
Threads    one.
"""

from varve.foundation.clock import Clock
from varve.foundation.settings import LONG_MAX


class Absence:
    """The absence of one opening of a feed."""

    def __init__(self, clock: Clock, caught_up_ms: int) -> None:
        """`caught_up_ms` is when the end was last reached, as the table has it."""
        self.caught_up_ms = caught_up_ms
        self._clock = clock
        self._looked_ms = clock.now_ms()
        away_ms = self._looked_ms - caught_up_ms
        self._away_ms = away_ms if away_ms >= 0 else LONG_MAX

    def look(self) -> None:
        """Notes that time has passed; called with each poll."""
        now_ms = self._clock.now_ms()
        self._away_ms = min(LONG_MAX, self._away_ms + max(0, now_ms - self._looked_ms))
        self._looked_ms = now_ms

    def end(self) -> None:
        """The feed is at the end of its topic, as of the last look."""
        self._away_ms, self.caught_up_ms = 0, self._looked_ms

    def is_longer_than(self, limit_ms: int) -> bool:
        return self._away_ms > limit_ms
