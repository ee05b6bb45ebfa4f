"""A crash or a failing call at every I/O step of a compaction: the rows are there, all of them.

What is found after it is the log before or after the compaction. Leftovers of either are gone once
the shape is written to again, and a compaction afterwards works.

Carries S4.
"""

import errno
import os
from collections.abc import Iterator

import pytest

from tests.support.compaction_bench import HANDLE, ROOT, CompactionBench
from tests.support.crash_images import crash_images, named, record
from varve.foundation.clock import ManualClock
from varve.foundation.errors import StoreError
from varve.shapes.compaction.compactor import CompactionOutcome, read_reports
from varve.shapes.settings import CompactionSettings
from varve.shapes.storage.layout import log_directory
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

IN_MEMORY = CompactionSettings(keep_chunks=1, min_cleanable_ratio=0)
IN_PARTS = CompactionSettings(keep_chunks=1, min_cleanable_ratio=0, memory_bytes=4096)
CHANGES = {
    "in memory": (IN_MEMORY, 40, 1),
    "again": (IN_MEMORY, 30, 2),
    "in parts": (IN_PARTS, 60, 1),
}


def _prepared(name: str) -> CompactionBench:
    """A shape that is about to be compacted, perhaps not for the first time."""
    settings, count, rounds = CHANGES[name]
    bench = CompactionBench(FaultyFileSystem(ManualClock()), settings=settings)
    for number in range(rounds):
        bench.change(count)
        if number < rounds - 1:
            bench.compact()
    bench.storage.flush()
    return bench


def _disk(bench: CompactionBench) -> FaultyFileSystem:
    assert isinstance(bench.fs, FaultyFileSystem)
    return bench.fs


def _steps(name: str) -> Iterator[int]:
    bench = _prepared(name)
    first = _disk(bench).steps + 1
    assert bench.compact().outcome is CompactionOutcome.DONE
    last = _disk(bench).steps
    assert last - first > 10
    # Steps in scratch files are many and alike: a third of them is taken.
    for step in range(first, last + 1):
        if "/.tmp/" not in _disk(bench).trace[step - 1].path or step % 3 == 0:
            yield step


def _check_found(bench: CompactionBench, disk: FaultyFileSystem) -> None:
    storage = bench.reopen(disk)
    assert storage.latest == bench.storage.persisted
    bench.check(storage, sample=6)
    bench.storage, bench.fs = storage, disk
    bench.put("row 1", a="again")
    names = disk.names(log_directory(storage.directory))
    found = {name.rsplit(".", 2)[0] for name in names if name.startswith("log.")}
    assert found <= {f"log.{suffix}" for suffix in storage.manifest.suffixes}
    bench.change(12)
    assert bench.compact().outcome is CompactionOutcome.DONE
    assert not disk.exists(f"{ROOT}/.tmp/{HANDLE}")
    assert read_reports(disk, storage.directory)[-1]["suffix"] == storage.manifest.compacted
    bench.check(sample=4)


def _mode(step: int) -> list[tuple[CrashMode, int]]:
    return [(list(CrashMode)[step % 3], step)]


@pytest.mark.parametrize("name", CHANGES)
def test_a_crash_at_any_step_loses_no_row(name: str) -> None:
    bench = _prepared(name)
    points = record(bench.compact, lambda: None, disk=_disk(bench))
    assert len(points) > 10
    for image in crash_images(points, _mode):
        with named(image):
            _check_found(bench.copy(), image.disk)


@pytest.mark.parametrize("name", CHANGES)
def test_h6_a_failing_call_leaves_the_shape_before_or_after(name: str) -> None:
    for step in _steps(name):
        bench = _prepared(name)
        disk = _disk(bench)
        disk.fail_at(step, OSError(errno.EIO, os.strerror(errno.EIO)))
        seen: Exception | None = None
        try:
            bench.compact()
        except (StoreError, OSError) as error:
            seen = error
        try:
            bench.check(sample=4)
            if bench.storage.failure is None:
                bench.change(10)
                assert bench.compact().outcome is CompactionOutcome.DONE
                bench.check(sample=4)
            else:
                _check_found(bench, disk.after_crash(CrashMode.KEEP_ALL))
        except BaseException as error:
            error.add_note(f"failed at {disk.trace[step - 1]}; the caller saw {seen!r}")
            raise
