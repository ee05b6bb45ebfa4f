"""Opening a log of many segments after a clean close, against listing and stating its files."""

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.baselines import list_and_stat
from benchmarks.generators import make_batches
from benchmarks.hot_log.logs import open_log, write_log
from benchmarks.measure import Contest, Scale, Ticker, at_most
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.commit_log import Log, LogSettings
from varve.records import Batch, edit_batch

_BYTES_PER_SEGMENT_ON_DISK = 20 << 10
_AIM_COUNT_MIN = 1_000  # below, what every open costs outweighs the segments


class CleanOpenMeasure:
    """Size: number of segments."""

    name = "open"
    title = "clean open of many segments, against listing and stating their files"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (250, 1_000) if quick else (1_000, 10_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _BYTES_PER_SEGMENT_ON_DISK)
        with workspace.directory("open") as parent:
            directory, empty = parent / "log", parent / "empty"
            settings = LogSettings()
            write_log(empty, [], settings)
            write_segments(directory, size)
            file_count = sum(1 for _ in directory.iterdir())
            yield [
                Contest(
                    "open",
                    "s",
                    lambda: time_open(directory, settings, scale.ticker),
                    lambda: list_and_stat(str(directory), scale.ticker),
                    at_most(5) if size >= _AIM_COUNT_MIN else None,
                    "a batch per segment; names and inodes cached; "
                    f"{file_count / size:.0f} files per segment",
                ),
                Contest(
                    "segment_memory",
                    "B/segment",
                    lambda: memory_per_segment(directory, empty, settings),
                    None,
                    note="Python memory an open log holds per closed segment (tracemalloc)",
                    repeat_count_max=1,
                ),
            ]


def write_segments(directory: Path, count: int) -> None:
    """The directory that a log rolled after every batch leaves when it is closed.

    Two segments come from a real log. The others are the first one at a higher base offset: its
    indexes hold relative offsets and its snapshot no producer, so only the batch differs.
    """
    batch = make_batches(1, value_bytes=100, batch_bytes=1 << 10)[0]
    per_segment = Batch(batch).header.records_count
    end_offset = write_log(directory, [batch, batch], LogSettings(segment_bytes=len(batch)))
    first = {
        suffix: _file(directory, 0, suffix).read_bytes() for suffix in (".index", ".timeindex")
    }
    snapshot = _file(directory, end_offset, ".snapshot").read_bytes()
    for number in range(2, count):
        base_offset = number * per_segment
        _file(directory, base_offset, ".log").write_bytes(
            edit_batch(batch, base_offset=base_offset, leader_epoch=0)
        )
        for suffix, data in first.items():
            _file(directory, base_offset, suffix).write_bytes(data)
        _file(directory, base_offset + per_segment, ".snapshot").write_bytes(snapshot)
    log = open_log(directory, clean=True)
    if log.end_offset != max(2, count) * per_segment or log.recovered:
        raise AssertionError(f"{count} segments opened with end offset {log.end_offset}")
    log.abandon()


def _file(directory: Path, offset: int, suffix: str) -> Path:
    return directory / f"{offset:020}{suffix}"


def time_open(directory: Path, settings: LogSettings, ticker: Ticker) -> float:
    """Seconds of one clean open."""
    start = ticker()
    log = open_log(directory, clean=True, settings=settings)
    elapsed = ticker() - start
    log.abandon()
    return elapsed


def memory_per_segment(directory: Path, empty: Path, settings: LogSettings) -> float:
    """Bytes the log holds beyond an empty one, for each closed segment."""
    base, _ = _memory_of_open(empty, settings)
    held, log = _memory_of_open(directory, settings)
    return (held - base) / max(1, len(log.view.closed))


def _memory_of_open(directory: Path, settings: LogSettings) -> tuple[int, Log]:
    gc.collect()
    tracemalloc.start()
    try:
        log = open_log(directory, clean=True, settings=settings)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], log
    finally:
        tracemalloc.stop()
