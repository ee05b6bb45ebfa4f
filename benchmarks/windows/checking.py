"""Duplicate checks: the judge and its ids, against RocksDB without varve."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.baselines import BASE_TIMESTAMP_MS
from benchmarks.measure import Contest, Scale, Ticker, at_least
from benchmarks.sizes import SizeUnit
from benchmarks.windows.bare_store import BareCheck, BareStore
from benchmarks.windows.events import COPY_SHARE, RULES, SECRET, WINDOW_MS, Events, make_events
from benchmarks.windows.recording import BATCH_COUNT, Calls, RecordingDatabases
from benchmarks.workspace import Workspace
from varve.dedup.id_store import IdStore
from varve.dedup.judge import Judge
from varve.dedup.kernels.time_spans import KEPT
from varve.disk import RealFileSystem
from varve.rocks.database import Databases, RocksDatabases
from varve.rocks.state_files import NO_STREAM_TIME_MS

_EVENTS: Final = 1_000_000
_QUICK_EVENTS: Final = 60_000
_SINGLE_SHARE: Final = 20
_FLUSH_COUNT: Final = 100_000
_EVENT_BYTES: Final = 80
_REPEAT_COUNT_MAX: Final = 5
_AIM: Final = at_least(0.6)
_SINGLE_AIM: Final = at_least(0.2)
"""One by one, Python takes longer around the calls than the calls do."""


class CheckMeasure:
    """Size: events that are judged and remembered together."""

    name = "check"
    title = "duplicate checks and puts of what is new, against RocksDB without varve"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1, 1_000, 20_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        count = _QUICK_EVENTS if scale.is_quick else _EVENTS
        workspace.require(count * _EVENT_BYTES * 4)
        events = make_events(count if size > 1 else count // _SINGLE_SHARE)
        runs = _Runs(workspace, scale.ticker)
        note = (
            f"{{:,}} events, {COPY_SHARE:.0%} copies, a window of {WINDOW_MS // 1000} s; flushed "
            f"every {_FLUSH_COUNT:,}; both sides keep the same"
        ).format(len(events))
        limits = 3 if scale.is_quick else _REPEAT_COUNT_MAX
        ours = partial(runs.ours, events, size)
        contest = partial(Contest, unit="events/s", ours=ours, repeat_count_max=limits)
        calls = runs.record(events, size)
        aim = _AIM if size > 1 else _SINGLE_AIM
        contests = [
            contest(self.name, baseline=partial(runs.bare, events, size), aim=aim, note=note),
            contest(
                f"{self.name}_calls",
                baseline=partial(runs.replay, calls, len(events)),
                aim=aim,
                note="against the calls of the databases alone, keys and values made before, "
                f"{BATCH_COUNT} at a time",
            ),
        ]
        if size > 1:
            few = make_events(count // _SINGLE_SHARE)
            single = partial(runs.ours, few, 1)
            contests.append(
                contest(
                    f"{self.name}_batch", baseline=single, note="against the same judge, one by one"
                )
            )
        yield contests


class _Runs:
    """Each gives events per second, from an empty directory on."""

    def __init__(self, workspace: Workspace, ticker: Ticker) -> None:
        self._workspace = workspace
        self._ticker = ticker

    def ours(self, events: Events, size: int, databases: Databases | None = None) -> float:
        with (
            self._workspace.directory("ids") as directory,
            open_ids(directory, databases or RocksDatabases()) as store,
        ):
            start = self._ticker()
            kept = judge_all(store, events, size)
            seconds = self._ticker() - start
        _check(kept, events)
        return len(events) / seconds

    def record(self, events: Events, size: int) -> Calls:
        """What ours asks of its databases."""
        databases = RecordingDatabases()
        with (
            self._workspace.directory("ids") as directory,
            open_ids(directory, databases) as store,
        ):
            judge_all(store, events, size)
            return Calls(list(databases.calls.listed))

    def replay(self, calls: Calls, count: int) -> float:
        with self._workspace.directory("bare") as directory, BareStore(directory) as store:
            start = self._ticker()
            calls.replay(store)
            return count / (self._ticker() - start)

    def bare(self, events: Events, size: int) -> float:
        with self._workspace.directory("bare") as directory, BareStore(directory) as store:
            start = self._ticker()
            kept = _check_all(store, events, is_single=size == 1)
            seconds = self._ticker() - start
        _check(kept, events)
        return len(events) / seconds


@contextmanager
def open_ids(directory: Path, databases: Databases) -> Iterator[IdStore]:
    """A store of ids in a directory of its own."""
    store = IdStore.open(
        directory=str(directory / "s"),
        rules=RULES,
        secret=SECRET,
        databases=databases,
        file_system=RealFileSystem(),
    )
    try:
        yield store
    finally:
        store.close()


def judge_all(store: IdStore, events: Events, size: int) -> int:
    """Judges and remembers events, so many at a time; gives how many were kept."""
    judge, stream_time, kept = Judge(RULES, store), NO_STREAM_TIME_MS, 0
    now_ms, flushed = BASE_TIMESTAMP_MS + len(events), 0
    for start in range(0, len(events), size):
        chunk = events.cut(start, start + size)
        judged = judge.judge(chunk, now_ms, stream_time)
        stream_time = judged.stream_time_after
        store.apply(judged.new_ids, stream_time)
        kept += int(np.count_nonzero(judged.verdicts == KEPT))
        if start + size - flushed >= _FLUSH_COUNT:
            flushed = start + size
            store.checkpoint(flushed)
    return kept


def _check_all(store: BareStore, events: Events, *, is_single: bool) -> int:
    check = BareCheck(
        store,
        window_ms=WINDOW_MS,
        segment_ms=RULES.segment_ms,
        retention_ms=RULES.retention_ms,
    )
    ids, times, kept, size = events.ids, events.times, 0, 1 if is_single else BATCH_COUNT
    for start in range(0, len(events), size):
        if is_single:
            kept += check.check_one(ids[start], times[start], start)
        else:
            chosen = slice(start, start + size)
            kept += check.check_many(ids[chosen], times[chosen], start)
        if (start + size) % _FLUSH_COUNT == 0:
            store.flush()
    return kept


def _check(kept: int, events: Events) -> None:
    if kept != events.kept:
        raise AssertionError(f"{kept:,} events kept, not {events.kept:,}")
