"""Exponential backoff between attempts."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first_ms` up to `max_ms`."""

    first_ms: int
    max_ms: int

    def wait_ms(self, attempt: int, source: random.Random | None = None) -> int:
        """The wait after `attempt` failed attempts, which count from 1.

        With a random source, between half and all of it, so that many clients do not retry at once.
        """
        full_ms = min(self.first_ms << min(max(attempt, 1) - 1, 60), self.max_ms)
        return full_ms if source is None else round(full_ms * source.uniform(0.5, 1.0))
