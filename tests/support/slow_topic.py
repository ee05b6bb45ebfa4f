"""A topic in memory that is cleaned while it is read."""

from collections.abc import Callable, Mapping

from tests.support.memory_topic import MemoryTopic
from varve.foundation.clock import Clock
from varve.records import CommittedBatches
from varve.topics import Position


class SlowTopic(MemoryTopic):
    """Something may happen to it behind each read; then `clean` does what a log's cleaner does."""

    def __init__(self, clock: Clock, *, tombstones_ms: int, batch_records: int = 3) -> None:
        super().__init__(batch_records=batch_records)
        self.tombstones_ms = tombstones_ms
        self.happen: Callable[[int], None] = lambda offset: None
        self._clock = clock
        self._horizons: dict[int, int] = {}

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        found = super().fetch(positions, max_bytes=max_bytes, wait_ms=wait_ms)
        for read in found.values():
            self.happen(read.next_offset)
        return found

    def clean(self) -> None:
        """Keeps the last record of each key; a deletion goes once it was kept for long enough."""
        now_ms = self._clock.now_ms()
        assert self.tombstones_ms is not None
        self.compact(0)
        left = [one for one in self.logs[0] if self._horizons.get(one[0], now_ms) >= now_ms]
        for offset, _, value in left:
            if value is None:
                self._horizons.setdefault(offset, now_ms + self.tombstones_ms)
        self.logs[0] = left
