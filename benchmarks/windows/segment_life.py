"""What live segments cost in memory, and what it takes to drop one."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Contest, MeasureSkipped, Scale, Ticker, at_most
from benchmarks.sizes import SizeUnit
from benchmarks.windows.stores import ENTRY_BYTES, SEGMENT_MS, fill_segment, open_segments
from benchmarks.workspace import Workspace

ENTRIES = 1_000_000
QUICK_ENTRIES = 100_000
SMALL_SEGMENT = 1_000


class MemoryMeasure:
    """Size: live segments."""

    name = "memory"
    title = "memory of live segments under one budget, against one segment of all the entries"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8, 64)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        if not Path("/proc/self/status").exists():
            raise MeasureSkipped("memory is read from /proc, which is not there")
        count = QUICK_ENTRIES if scale.is_quick else ENTRIES
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
        return (10_000, 100_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * ENTRY_BYTES * 4)
        yield [
            Contest(
                self.name,
                "ms",
                lambda: _drop_ms(workspace, size, scale.ticker),
                lambda: _drop_ms(workspace, SMALL_SEGMENT, scale.ticker),
                at_most(3),
                "flushed before; closed, renamed, synced and deleted",
            )
        ]


def _grown_mib(workspace: Workspace, segment_count: int, entry_count: int) -> float:
    with workspace.directory("memory") as directory:
        arguments = [str(directory / "s"), str(segment_count), str(entry_count)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.windows.memory_process", *arguments],
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
