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
from rocksdict import AccessType, Rdict

from benchmarks.baselines import BASE_TIMESTAMP_MS
from benchmarks.windows.bare_store import make_options
from benchmarks.windows.events import SECRET
from benchmarks.windows.memory_process import resident_bytes
from varve.disk import RealFileSystem
from varve.kernels.window_ids import EXACT_BYTES_MAX
from varve.windows.dedup.id_store import IdStore
from varve.windows.dedup.ids import Arrivals, Flags, Numbers
from varve.windows.dedup.judge import Judge
from varve.windows.dedup.rules import DedupRules, IdKind, IdSource
from varve.windows.dedup.verdict import Verdict
from varve.windows.rocks_database import RocksDatabases

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
    before = resident_bytes()
    store = IdStore.open(
        directory=str(directory),
        rules=RULES,
        secret=SECRET,
        databases=RocksDatabases(),
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
    bare = [_open_bare(path) for path in sorted(directory.glob("ids.*"))]
    absent, present = [], []
    for number in range(_ROUNDS):
        places = _draw(count, number)
        absent.append(_ask(store, bare, make_ids(places, count, is_there=False), ticker))
        present.append(_ask(store, bare, make_ids(places, count, is_there=True), ticker))
        if not number:
            grown = max(grown, resident_bytes() - before)
    size = store.size()
    store.close()
    return Found(fill_seconds, _median(absent), _median(present), size, grown)


def _draw(count: int, seed: int) -> Numbers:
    """Different places, in no order."""
    random = np.random.default_rng(seed)
    return random.permutation(np.unique(random.integers(0, count, _ASKED_COUNT)))


def _open_bare(path: Path) -> Any:
    return Rdict(str(path), make_options(), access_type=AccessType.read_only())


def _ask(store: IdStore, bare: list[Any], asked: Arrivals, ticker: Callable[[], float]) -> Asked:
    """The same look-ups by the judge and by multi-gets of sorted keys."""
    judge = Judge(RULES, store)
    start = ticker()
    verdicts = judge.judge(asked, START_MS + 2 * _DAY_MS, START_MS).verdicts
    ours = ticker() - start
    wanted = _sort_keys(asked, verdicts == Verdict.KEPT)
    start = ticker()
    found = sum(
        value is not None
        for database, keys in zip(bare, wanted, strict=True)
        for value in database.get(keys)
    )
    theirs = ticker() - start
    if found != np.count_nonzero(verdicts == Verdict.DUPLICATE):
        raise AssertionError(f"{found} of {len(asked)} ids are there, the judge finds others")
    return Asked(ours / len(asked) * 1e6, theirs / len(asked) * 1e6)


def _sort_keys(asked: Arrivals, is_new: Flags) -> list[list[bytes]]:
    """By segment: that of its time, and where an id is new the other one as well."""
    wanted: list[list[bytes]] = [[], []]
    own = (asked.times - START_MS) // _DAY_MS
    for words, segment, is_absent in zip(asked.words, own.tolist(), is_new.tolist(), strict=True):
        key = words.tobytes() + bytes([EXACT_BYTES_MAX])
        wanted[segment].append(key)
        if is_absent:
            wanted[1 - segment].append(key)
    return [sorted(keys) for keys in wanted]


def _median(asked: list[Asked]) -> Asked:
    return Asked(median(one.ours_us for one in asked), median(one.bare_us for one in asked))


def main() -> None:
    directory, count, clock = sys.argv[1:]
    ticker = time.thread_time if clock == "cpu" else time.perf_counter
    print(json.dumps(asdict(measure(Path(directory), int(count), ticker))))


if __name__ == "__main__":
    main()
