"""Events of one partition, a fifth of them copies, and the rules they are judged by.

Invariant  16-byte ids; a millisecond from event to event, up to half a second out of order; every
           copy lies within the window of the first of its id, so that as many are kept as there
           are ids. The same in every run.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.baselines import BASE_TIMESTAMP_MS
from varve.dedup.ids import Arrivals, Secret
from varve.dedup.kernels.id_words import EXACT_BYTES_MAX
from varve.dedup.rules import DedupRules, IdKind, IdSource

COPY_SHARE: Final = 0.2
WINDOW_MS: Final = 60_000
SECRET: Final[Secret] = (11, 12)
RULES: Final = DedupRules(
    by=IdSource(IdKind.KEY), before_ms=WINDOW_MS, after_ms=WINDOW_MS, lateness_ms=2 * WINDOW_MS
)
_BACK_MAX: Final = 50_000
_JITTER_MS: Final = 500
_SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Events:
    """As columns and, for who looks at them one by one, as ids and times."""

    arrivals: Arrivals
    ids: list[bytes]
    times: list[int]
    kept: int

    def __len__(self) -> int:
        return len(self.times)

    def cut(self, start: int, end: int) -> Arrivals:
        """The events of a range as columns, without a copy."""
        found = self.arrivals
        return Arrivals(
            found.words[start:end],
            found.kinds[start:end],
            found.times[start:end],
            found.offsets[start:end],
        )


def make_events(count: int) -> Events:
    """Events with offsets from 0 on."""
    random = np.random.default_rng(_SEED)
    steps = np.arange(count, dtype=np.int64)
    is_copy = random.random(count) < COPY_SHARE
    is_copy[0] = False
    firsts = np.flatnonzero(~is_copy)
    wanted = steps - random.integers(1, _BACK_MAX, count)
    origin = firsts[np.maximum(0, np.searchsorted(firsts, wanted, "right") - 1)]
    words = random.integers(0, 1 << 63, (count, 2), np.uint64)
    words[is_copy] = words[origin[is_copy]]
    times = BASE_TIMESTAMP_MS + steps + random.integers(-_JITTER_MS, _JITTER_MS, count)
    kinds = np.full(count, EXACT_BYTES_MAX, np.uint8)
    ids: list[bytes] = np.frombuffer(words.tobytes(), f"V{EXACT_BYTES_MAX}").tolist()
    return Events(Arrivals(words, kinds, times, steps), ids, times.tolist(), len(firsts))
