"""How the two stores of a mirror fare: which one rests, what the second lacks, and it in words."""

from dataclasses import dataclass
from typing import Final

REST_MS: Final = 30_000
"""How long a store that was unavailable is spared."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """What the second store lacks as far as this process knows.

    `missing` were written and `undeleted` deleted in the first store only; `unnoted_count` are
    further ones without their keys. `last_error` tells why the second store was last left behind,
    `first_error` why reads do not ask the first one now. `is_known` is False as long as the stores
    were not compared and nobody knew how an earlier process left them.
    """

    missing: tuple[str, ...]
    undeleted: tuple[str, ...]
    unnoted_count: int
    failover_count: int
    last_error: str
    first_error: str = ""
    is_known: bool = True

    @property
    def is_complete(self) -> bool:
        return self.is_known and not self.behind_count

    @property
    def behind_count(self) -> int:
        return len(self.missing) + len(self.undeleted) + self.unnoted_count


def tell_trouble(status: MirrorStatus, *, first: str, second: str) -> str:
    """What is wrong with the stores of these names; empty if nothing is."""
    sentences = []
    if status.first_error:
        sentences.append(f"reads go to {second}, because {status.first_error}")
    if status.behind_count:
        why = f", because {status.last_error}" if status.last_error else ""
        sentences.append(
            f"{second} is behind by {status.behind_count:,} objects{why}; it is caught up while "
            "the store is open, or by `varve tier mirror --repair`"
        )
    elif not status.is_known:
        sentences.append(
            f"{second} was not compared with {first} since it was new or left behind; that is done "
            "after the next copies"
        )
    return "; ".join(sentences)


class StoreRest:
    """Whether a store that was unavailable is spared; after a while one is let through to try it.

    `error` tells why, also while that one tries, and is empty when the store is well.
    """

    def __init__(self) -> None:
        self.error = ""
        self._begin_ms = 0

    def begin(self, now_ms: int, error: str) -> None:
        self.error, self._begin_ms = error, now_ms

    def end(self) -> None:
        self.error = ""

    def is_on(self, now_ms: int) -> bool:
        if not self.error:
            return False
        if self._begin_ms <= now_ms < self._begin_ms + REST_MS:
            return True
        self._begin_ms = now_ms
        return False
