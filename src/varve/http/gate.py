"""How many requests may be under way, those that may make shapes apart from the others."""

from collections.abc import Callable

from varve.http.answer import unavailable
from varve.http.settings import HttpSettings


class Gate:
    """Counts requests of both kinds. Threads: the loop's alone."""

    def __init__(self, settings: HttpSettings) -> None:
        self._limits = {
            "initial": settings.initial_requests_max,
            "existing": settings.existing_requests_max,
        }
        self.counts = {"initial": 0, "existing": 0}
        self.refused = {"initial": 0, "existing": 0}

    def enter(self, *, is_initial: bool) -> Callable[[], None]:
        """Takes a place and gives what frees it again; refuses with 503 when there is none."""
        kind = "initial" if is_initial else "existing"
        if self.counts[kind] >= self._limits[kind]:
            self.refused[kind] += 1
            raise unavailable(
                f"{self.counts[kind]} {kind} requests are under way, the limit: come again later",
                code="concurrent_request_limit_exceeded",
                retry_s=5 + self.refused[kind] % 6,
            )
        self.counts[kind] += 1
        return lambda: self._leave(kind)

    def _leave(self, kind: str) -> None:
        self.counts[kind] -= 1
