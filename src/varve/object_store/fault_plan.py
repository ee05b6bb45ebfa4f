"""Which request to a faulty object store goes wrong, and how.

Invariant  a plan only says what happens; the store that asks it makes it happen. The same seed and
           the same requests give the same faults.
"""

import random
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class FaultKind(StrEnum):
    """What can go wrong with one request."""

    ERROR_BEFORE = "error before"
    """It never arrives."""
    ERROR_AFTER = "error after"
    """It has its effect, but the answer is lost; a list breaks off after its first object."""
    REPEATED = "repeated"
    """It arrives twice, and the second answer counts."""
    THROTTLED = "throttled"
    """It is refused for being one too many."""
    SLOW = "slow"
    """It takes its time and succeeds."""
    PARTIAL = "partial"
    """An upload ends after some of its parts, a delete after some of its keys; others: before."""
    CRASH_BEFORE = "crash before"
    """The power goes before it is sent."""
    CRASH_AFTER = "crash after"
    """The power goes when it has had its effect."""


class ObjectStep(NamedTuple):
    """One request, for the message of a failed test."""

    number: int
    operation: str
    key: str
    fault: FaultKind | None

    def __str__(self) -> str:
        fault = f" ({self.fault})" if self.fault else ""
        return f"{self.number}: {self.operation} {self.key}{fault}"


class ObjectFaultPlan:
    """Faults by step number, and by chance with a seed.

    `rates` gives the chance of each kind; after `in_a_row_max` faults by chance one request
    succeeds, so that a bounded number of retries is enough.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        rates: Mapping[FaultKind, float] | None = None,
        in_a_row_max: int = 3,
    ) -> None:
        self._source = random.Random(seed)
        self._rates = dict(rates or {})
        self._in_a_row_max = in_a_row_max
        self._in_a_row = 0
        self._chosen: dict[int, FaultKind] = {}
        self._down_from: int | None = None

    def fail_at(self, step: int, kind: FaultKind) -> None:
        self._chosen[step] = kind

    def go_down(self, from_step: int) -> None:
        """Let every request from this step on fail before its effect."""
        self._down_from = from_step

    def come_up(self) -> None:
        self._down_from = None

    def find_fault(self, step: int) -> FaultKind | None:
        """What happens to this request; a chosen fault goes before all others."""
        chosen = self._chosen.get(step)
        if chosen is not None:
            return chosen
        if self._down_from is not None and step >= self._down_from:
            return FaultKind.ERROR_BEFORE
        return self._draw()

    def share(self) -> float:
        """How much of a partial request happens."""
        return self._source.random()

    def _draw(self) -> FaultKind | None:
        if not self._rates:
            return None
        drawn = self._source.random()
        if self._in_a_row >= self._in_a_row_max:
            self._in_a_row = 0
            return None
        for kind, rate in self._rates.items():
            if drawn < rate:
                self._in_a_row += 1
                return kind
            drawn -= rate
        self._in_a_row = 0
        return None
