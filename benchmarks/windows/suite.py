"""The suite `windows`."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocksdict import WriteBatch

from benchmarks.measure import Contest, MeasureSkipped, Scale, Suite, Ticker, at_least, at_most
from benchmarks.sizes import SizeUnit
from benchmarks.windows.stores import (
    ENTRY_BYTES,
    SEGMENT_MS,
    fill_segment,
    make_entries,
    open_segments,
    open_store,
)
from benchmarks.workspace import Workspace
from varve.windows.changelog import LoggedWrite, MemoryChangelog
from varve.windows.database import Put
from varve.windows.restore import restore
from varve.windows.rocks_database import RocksDatabases
from varve.windows.window_key import decode_window_key

_ENTRIES = 1_000_000
_QUICK_ENTRIES = 100_000
_SMALL_SEGMENT = 1_000
_SEGMENTS_RESTORED = 3
_RAW_BATCH = 10_000
_LONG_MS = 1 << 40


class MemoryMeasure:
    """Size: live segments."""

    name = "memory"
    title = "memory of live segments under one budget, against one segment of all the entries"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8,) if quick else (8, 64)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        if not Path("/proc/self/status").exists():
            raise MeasureSkipped("memory is read from /proc, which is not there")
        count = _QUICK_ENTRIES if scale.is_quick else _ENTRIES
        workspace.require(count * ENTRY_BYTES * 4)
        yield [
            Contest(
                self.name,
                "MiB",
                lambda: _grown_mib(workspace, size, count),
                lambda: _grown_mib(workspace, 1, count),
                at_most(3),
                f"{count:,} entries into all segments in turn, a budget of 128 MiB",
                repeat_count_max=1,
            )
        ]


class DropMeasure:
    """Size: entries of the segment."""

    name = "drop"
    title = "drop of an expired segment, against a segment of a thousand entries"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (50_000,) if quick else (100_000, 1_000_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * ENTRY_BYTES * 4)
        yield [
            Contest(
                self.name,
                "ms",
                lambda: _drop_ms(workspace, size, scale.ticker),
                lambda: _drop_ms(workspace, _SMALL_SEGMENT, scale.ticker),
                at_most(3),
                "flushed before; closed, renamed, synced and deleted",
            )
        ]


class RestoreMeasure:
    """Size: entries of the changelog."""

    name = "restore"
    title = "restore of a changelog in memory, against write batches into one database"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (_QUICK_ENTRIES,) if quick else (_ENTRIES,)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * ENTRY_BYTES * 4)
        puts = [
            put
            for number in range(_SEGMENTS_RESTORED)
            for put in make_entries(
                size // _SEGMENTS_RESTORED, start_ms=number * SEGMENT_MS, seed=number
            )
        ]
        changelog = MemoryChangelog()
        changelog.append(
            [LoggedWrite(key, value, decode_window_key(key).time_ms) for key, value in puts]
        )
        yield [
            Contest(
                self.name,
                "entries/s",
                lambda: len(puts) / _restore_seconds(workspace, changelog, scale.ticker),
                lambda: len(puts) / _write_seconds(workspace, puts, scale.ticker),
                at_least(0.5),
                f"{_SEGMENTS_RESTORED} segments; flushed at the end on both sides",
            )
        ]


def _grown_mib(workspace: Workspace, segment_count: int, entry_count: int) -> float:
    with workspace.directory("memory") as directory:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.windows.memory_process",
                str(directory / "s"),
                str(segment_count),
                str(entry_count),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    return int(done.stdout) / (1 << 20)


def _drop_ms(workspace: Workspace, entry_count: int, ticker: Ticker) -> float:
    with (
        workspace.directory("drop") as directory,
        open_segments(directory / "s", retention_ms=SEGMENT_MS) as segments,
    ):
        fill_segment(segments, 0, entry_count)
        segments.flush()
        start = ticker()
        segments.cleanup(3 * SEGMENT_MS)
        return (ticker() - start) * 1_000


def _restore_seconds(workspace: Workspace, changelog: MemoryChangelog, ticker: Ticker) -> float:
    with (
        workspace.directory("restore") as directory,
        open_store(directory / "s", retention_ms=_LONG_MS) as store,
    ):
        start = ticker()
        restore(store, changelog, start_offset=0)
        store.flush()
        return ticker() - start


def _write_seconds(workspace: Workspace, puts: Sequence[Put], ticker: Ticker) -> float:
    with workspace.directory("raw") as directory:
        database = RocksDatabases().open(str(directory / "db"))
        rocks = database._get_rocks()
        start = ticker()
        for at in range(0, len(puts), _RAW_BATCH):
            batch = WriteBatch(raw_mode=True)
            for key, value in puts[at : at + _RAW_BATCH]:
                batch.put(key, value)
            rocks.write(batch)
        rocks.flush()
        elapsed = ticker() - start
        database.close()
    return elapsed


WINDOWS = Suite(
    name="windows",
    title="window stores: memory over live segments, dropping one, restoring",
    measures=(MemoryMeasure(), DropMeasure(), RestoreMeasure()),
)
