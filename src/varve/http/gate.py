"""How many requests may be under way, those that may make shapes apart from the others."""

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

    def enter(self, *, is_initial: bool) -> "Place":
        """Takes a place; refuses with 503 when there is none."""
        kind = "initial" if is_initial else "existing"
        if self.counts[kind] >= self._limits[kind]:
            self.refused[kind] += 1
            raise unavailable(
                f"{self.counts[kind]} {kind} requests are under way, the limit: come again later",
                code="concurrent_request_limit_exceeded",
                retry_s=5 + self.refused[kind] % 6,
            )
        self.counts[kind] += 1
        return Place(self.counts, kind)


class Place:
    """That of one request, until it leaves."""

    __slots__ = ("_counts", "_kind")

    def __init__(self, counts: dict[str, int], kind: str) -> None:
        self._counts = counts
        self._kind = kind

    def found(self) -> None:
        """The shape is there: what is left is sending, and newcomers wait for no slow reader."""
        self.leave()
        self._kind = "existing"
        self._counts[self._kind] += 1

    def leave(self) -> None:
        self._counts[self._kind] -= 1
