"""`python -m benchmarks.windows.many_ids_process DIRECTORY IDS CLOCK`: fills a store of ids.

A process of its own, so that its memory is that of the ids. Prints one JSON object: see `Found`.
With CLOCK `cpu` times are those of the processor.

Invariant  ids ascend with their times, half of them in each of two segments; what is asked for is
           drawn by lot among all of them.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.baselines import BASE_TIMESTAMP_MS
from benchmarks.windows.events import SECRET
from benchmarks.windows.memory_process import resident_bytes
from varve.dedup.id_store import IdStore
from varve.dedup.ids import Arrivals, Numbers
from varve.dedup.judge import Judge
from varve.dedup.kernels.id_words import EXACT_BYTES_MAX
from varve.dedup.rules import DedupRules, IdKind, IdSource, Verdict
from varve.disk import RealFileSystem
from varve.rocks.database import RocksDatabase, RocksDatabases

_DAY_MS: Final = 24 * 3_600_000
RULES: Final = DedupRules(
    by=IdSource(IdKind.KEY),
    before_ms=_DAY_MS // 2 - 1,
    after_ms=_DAY_MS // 2,
    lateness_ms=2 * _DAY_MS,
)
START_MS: Final = BASE_TIMESTAMP_MS // _DAY_MS * _DAY_MS
_BATCH_COUNT: Final = 50_000
_ASKED_COUNT: Final = 10_000
_ROUNDS: Final = 7


@dataclass(frozen=True, slots=True)
class Asked:
    """Microseconds for each id, by the judge and by multi-gets of the same keys."""

    ours_us: float
    bare_us: float


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured; `resident_bytes` is by how much the process grew."""

    fill_seconds: float
    absent: Asked
    present: Asked
    disk_bytes: int
    resident_bytes: int


class KnownDatabases(RocksDatabases):
    """Remembers what it opened, so that it can be asked without varve between."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[int, RocksDatabase] = {}

    def open(self, path: str, *, must_exist: bool = False) -> RocksDatabase:
        opened = super().open(path, must_exist=must_exist)
        self._opened[int(path.rpartition(".")[2])] = opened
        return opened

    def rocks(self, start_ms: int) -> Any:
        """Untyped, as the stub of rocksdict is wrong about bytes."""
        return self._opened[start_ms]._get_rocks()


def make_ids(places: Numbers, count: int, *, is_there: bool) -> Arrivals:
    """The ids of places, and their times; others next to them unless they are to be there."""
    step = np.uint64((1 << 64) // count)
    first = places.astype(np.uint64) * step + np.uint64(not is_there)
    words = np.empty((len(places), 2), np.uint64)
    words[:, 0] = first.astype(">u8").view("<u8")
    words[:, 1] = first * np.uint64(0x9E3779B97F4A7C15)
    times = START_MS + places * (2 * _DAY_MS) // count
    kinds = np.full(len(places), EXACT_BYTES_MAX, np.uint8)
    return Arrivals(words, kinds, times, count + np.arange(len(places)))


def measure(directory: Path, count: int, ticker: Callable[[], float]) -> Found:
    before, databases = resident_bytes(), KnownDatabases()
    store = IdStore.open(
        directory=str(directory),
        rules=RULES,
        secret=SECRET,
        databases=databases,
        file_system=RealFileSystem(),
    )
    start = ticker()
    for first in range(0, count, _BATCH_COUNT):
        places = np.arange(first, min(first + _BATCH_COUNT, count))
        made = make_ids(places, count, is_there=True)
        store.restore(Arrivals(made.words, made.kinds, made.times, places))
    store.checkpoint(count)
    fill_seconds = ticker() - start
    grown = resident_bytes() - before
    absent: list[Asked] = []
    present: list[Asked] = []
    for number in range(_ROUNDS):
        for figures, is_there in ((absent, False), (present, True)):
            # Each side gets ids of its own: who came second would find the blocks in the cache.
            ours, bare = (
                make_ids(_draw(count, 2 * number + side), count, is_there=is_there)
                for side in range(2)
            )
            judged_us = _judge_us(store, ours, ticker, is_there=is_there)
            figures.append(Asked(judged_us, _get_us(databases, bare, ticker, is_there=is_there)))
        if not number:
            grown = max(grown, resident_bytes() - before)
    size = store.size()
    store.close()
    return Found(fill_seconds, _median(absent), _median(present), size, grown)


def _draw(count: int, seed: int) -> Numbers:
    """Different places, in no order."""
    random = np.random.default_rng(seed)
    return random.permutation(np.unique(random.integers(0, count, _ASKED_COUNT)))


def _judge_us(
    store: IdStore, asked: Arrivals, ticker: Callable[[], float], *, is_there: bool
) -> float:
    judge = Judge(RULES, store)
    start = ticker()
    verdicts = judge.judge(asked, START_MS + 2 * _DAY_MS, START_MS).verdicts
    seconds = ticker() - start
    if not (verdicts == (Verdict.DUPLICATE if is_there else Verdict.KEPT)).all():
        raise AssertionError(f"ids are {'new' if is_there else 'there'} to the judge")
    return seconds / len(asked) * 1e6


def _get_us(
    databases: KnownDatabases, asked: Arrivals, ticker: Callable[[], float], *, is_there: bool
) -> float:
    """The same look-ups by multi-gets of sorted keys, in the databases the store has open."""
    wanted = _sort_keys(asked, is_there=is_there)
    start = ticker()
    found = [databases.rocks(segment).get(keys) for segment, keys in wanted.items()]
    seconds = ticker() - start
    if sum(value is not None for values in found for value in values) != is_there * len(asked):
        raise AssertionError(f"ids are {'new' if is_there else 'there'} to the databases")
    return seconds / len(asked) * 1e6


def _sort_keys(asked: Arrivals, *, is_there: bool) -> dict[int, Any]:
    """By start of segment: that of the time, and for new ids the other that the window touches."""
    wanted: dict[int, list[bytes]] = {START_MS: [], START_MS + _DAY_MS: []}
    for words, time_ms in zip(asked.words, asked.times.tolist(), strict=True):
        key = words.tobytes() + bytes([EXACT_BYTES_MAX])
        edges = (time_ms,) if is_there else (time_ms - RULES.before_ms, time_ms + RULES.after_ms)
        for start_ms in {edge // _DAY_MS * _DAY_MS for edge in edges}:
            if start_ms in wanted:
                wanted[start_ms].append(key)
    return {start_ms: sorted(keys) for start_ms, keys in wanted.items() if keys}


def _median(asked: list[Asked]) -> Asked:
    return Asked(median(one.ours_us for one in asked), median(one.bare_us for one in asked))


def main() -> None:
    directory, count, clock = sys.argv[1:]
    ticker = time.thread_time if clock == "cpu" else time.perf_counter
    print(json.dumps(asdict(measure(Path(directory), int(count), ticker))))


if __name__ == "__main__":
    main()
