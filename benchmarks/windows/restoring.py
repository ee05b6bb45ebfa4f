"""Restores from a changelog in a topic, against reading it and no more."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

import varve
from benchmarks.baselines import time_call
from benchmarks.measure import Contest, Scale, Ticker, at_least
from benchmarks.sizes import SizeUnit
from benchmarks.windows.bare_store import BareStore
from benchmarks.windows.checking import open_ids
from benchmarks.windows.events import Events, make_events
from benchmarks.windows.stores import VALUE_BYTES, open_store
from benchmarks.workspace import Workspace
from varve.dedup.ids import decode_entries, encode_entries
from varve.embedded import Partition
from varve.records import build_batch_from_columns
from varve.rocks.database import Put, RocksDatabases
from varve.windows import TopicChangelog
from varve.windows.changelog import LoggedWrite
from varve.windows.entries import encode_window_key

_LONG_MS: Final = 1 << 40
_SEGMENT_MS: Final = 400_000
_BATCH_COUNT: Final = 16_000
_ENTRY_BYTES: Final = 80
_READ_AIM: Final = at_least(0.3)
_WRITE_AIM: Final = at_least(0.5)


class RestoreMeasure:
    """Size: entries of the changelog."""

    name = "restore"
    title = "restore of a changelog, against reading it, and against writing its entries"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (10_000, 40_000) if quick else (100_000, 1_000_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _ENTRY_BYTES * 8)
        events, runs = make_events(size), _Runs(workspace, scale.ticker)
        with workspace.directory("log") as directory, varve.open(directory / "data") as store:
            of_ids = store.create_topic("ids").partition()
            _log_ids(of_ids, events)
            window = store.create_topic("window")
            changelog = TopicChangelog(window, 0)
            puts = _log_puts(changelog, events)
            yield [
                *self._contests(
                    "ids", of_ids, partial(runs.restore_ids, of_ids), puts, runs, "ids of a judge"
                ),
                *self._contests(
                    "window",
                    window.partition(),
                    partial(runs.restore_window, changelog),
                    puts,
                    runs,
                    "entries of a window store",
                ),
            ]

    def _contests(
        self,
        kind: str,
        partition: Partition,
        run: Callable[[], float],
        puts: list[Put],
        runs: "_Runs",
        what: str,
    ) -> list[Contest]:
        mib = partition.log.size / (1 << 20)
        name = f"{self.name}_{kind}"
        return [
            Contest(
                name,
                "MiB/s",
                lambda: mib / run(),
                lambda: mib / runs.read(partition),
                _READ_AIM,
                f"{what}; against reading every record of the changelog",
                repeat_count_max=5,
            ),
            Contest(
                f"{name}_columns",
                "MiB/s",
                lambda: mib / run(),
                lambda: mib / runs.read_columns(partition),
                None,
                "against reading the changelog as columns",
                repeat_count_max=5,
            ),
            Contest(
                f"{name}_writes",
                "entries/s",
                lambda: len(puts) / run(),
                lambda: len(puts) / runs.write(puts),
                _WRITE_AIM,
                "against write batches of the entries in memory into bare databases, flushed",
                repeat_count_max=5,
            ),
        ]


class _Runs:
    """Each gives seconds."""

    def __init__(self, workspace: Workspace, ticker: Ticker) -> None:
        self._workspace = workspace
        self._ticker = ticker

    def restore_ids(self, partition: Partition) -> float:
        def run() -> None:
            for columns in partition.columns(isolation="read_committed"):
                found = decode_entries(columns, "changelog")
                store.restore(found)
            store.checkpoint(partition.offsets().end)

        with (
            self._workspace.directory("ids") as directory,
            open_ids(directory, RocksDatabases()) as store,
        ):
            return time_call(run, self._ticker)

    def restore_window(self, changelog: TopicChangelog) -> float:
        def run() -> None:
            store.restore(changelog, start_offset=0)
            store.flush()

        with (
            self._workspace.directory("window") as directory,
            open_store(directory / "s", retention_ms=_LONG_MS, segment_ms=_SEGMENT_MS) as store,
        ):
            return time_call(run, self._ticker)

    def read(self, partition: Partition) -> float:
        def run() -> None:
            for record in partition.read():
                assert record.key is not None

        return time_call(run, self._ticker)

    def read_columns(self, partition: Partition) -> float:
        def run() -> None:
            for columns in partition.columns():
                assert len(columns)

        return time_call(run, self._ticker)

    def write(self, puts: list[Put]) -> float:
        def run() -> None:
            for start in range(0, len(puts), _BATCH_COUNT):
                store.write(0, puts[start : start + _BATCH_COUNT])
            store.flush()

        with self._workspace.directory("bare") as directory, BareStore(directory) as store:
            return time_call(run, self._ticker)


def _log_ids(partition: Partition, events: Events) -> None:
    for start in range(0, len(events), _BATCH_COUNT):
        chosen = np.arange(start, min(start + _BATCH_COUNT, len(events)))
        made = encode_entries(events.arrivals.take(chosen))
        partition.append_batch(build_batch_from_columns(made.keys, made.values, made.timestamps))


def _log_puts(changelog: TopicChangelog, events: Events) -> list[Put]:
    value = bytes(VALUE_BYTES)
    writes = [
        LoggedWrite(encode_window_key(id, time), value, time)
        for id, time in zip(events.ids, events.times, strict=True)
    ]
    changelog.append(writes)
    return [(write.key, value) for write in writes]
