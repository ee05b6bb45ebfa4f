"""Which failures of work that is tried again and again are worth a line in the log.

Invariant  each kind of failure is told in full once, then at growing intervals; one that comes and
           goes does not start over before it has been away for a while. The end of what was told
           is told, too.
Threads    one at a time.
"""

from enum import Enum, auto
from typing import Final

INTERVAL_MIN_MS: Final = 10_000
INTERVAL_MAX_MS: Final = 600_000
"""The longest time for which a failure that goes on is not told again. One that has not been seen
for as long is told in full."""

Kind = tuple[type[BaseException], int | None]


class Telling(Enum):
    """How a failure is told."""

    NOT = auto()
    BRIEFLY = auto()
    IN_FULL = auto()


class FailureNotes:
    """What was told of one worker's failures, and when."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, _Note] = {}
        self._is_end_owed = False

    def failed(self, error: BaseException, now_ms: int) -> Telling:
        """How to tell this failure."""
        kind = (type(error), error.errno if isinstance(error, OSError) else None)
        note = self._by_kind.get(kind)
        if note is None or now_ms - note.seen_ms >= INTERVAL_MAX_MS:
            self._by_kind[kind] = _Note(now_ms)
            telling = Telling.IN_FULL
        else:
            telling = note.see(now_ms)
        if telling is not Telling.NOT:
            self._is_end_owed = True
        return telling

    def went_well(self) -> bool:
        """Whether to tell that it is well again."""
        is_owed, self._is_end_owed = self._is_end_owed, False
        return is_owed


class _Note:
    """One kind of failure: when it was seen and told last, and how long it is told no more."""

    __slots__ = ("_interval_ms", "_told_ms", "seen_ms")

    def __init__(self, now_ms: int) -> None:
        self.seen_ms = self._told_ms = now_ms
        self._interval_ms = INTERVAL_MIN_MS

    def see(self, now_ms: int) -> Telling:
        self.seen_ms = now_ms
        # A clock that was set back must not make for silence.
        if 0 <= now_ms - self._told_ms < self._interval_ms:
            return Telling.NOT
        self._told_ms = now_ms
        self._interval_ms = min(2 * self._interval_ms, INTERVAL_MAX_MS)
        return Telling.BRIEFLY
