"""Records that are missing in a log, and whether deletions may be among them.

Invariant  how long a topic keeps deletions may be altered at any time, so whoever was away for a
           while asks again before a gap counts as harmless.
Threads    one.
"""

from collections.abc import Callable
from typing import Final

from varve.foundation.clock import Clock
from varve.shapes.feed.absence import Absence

_ASK_MS: Final = 1_000
"""So long somebody is away before it is asked for again, and then so often. Altered settings need
as long to have an effect: a log is not cleaned at once."""


class Gaps:
    """The gaps that one opening of a feed meets."""

    def __init__(
        self, absence: Absence, ask_retention_ms: Callable[[], int | None], clock: Clock
    ) -> None:
        """`ask_retention_ms` gives how long deletions are kept, None for ever; it may raise."""
        self._absence = absence
        self._ask_retention_ms = ask_retention_ms
        self._clock = clock
        self._ask()

    def may_hide_deletions(self) -> bool:
        """Whether the log may have let go of deletions that were never read; raises Unavailable."""
        if self._is_away_too_long():
            return True
        passed_ms = self._clock.now_ms() - self._asked_ms
        if not self._absence.is_longer_than(_ASK_MS) or 0 <= passed_ms < _ASK_MS:
            return False
        self._ask()
        return self._is_away_too_long()

    def _ask(self) -> None:
        self._asked_ms = self._clock.now_ms()
        self.retention_ms = self._ask_retention_ms()

    def _is_away_too_long(self) -> bool:
        return self.retention_ms is not None and self._absence.is_longer_than(self.retention_ms)
