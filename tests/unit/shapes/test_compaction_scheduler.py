"""Which shapes are compacted when."""

import errno
from random import Random
from typing import Any, cast

import pytest

from tests.support.compaction_bench import SMALL, CompactionBench
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, Unavailable
from varve.foundation.metrics import MetricTable, declared_metrics
from varve.shapes import metrics
from varve.shapes.compaction import compactor
from varve.shapes.compaction.compactor import CompactionOutcome
from varve.shapes.compaction.scheduler import CompactionScheduler
from varve.shapes.registry import ShapeRegistry
from varve.shapes.removal import ShapeRemoval
from varve.shapes.settings import CompactionSettings, StorageSettings
from varve.shapes.shape import DropReason
from varve.shapes.storage.layout import log_path
from varve.shapes.storage.log_writer import CompactedLog
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.testing.faulty_disk import FaultyFileSystem


class _Shapes:
    """A registry of open shapes, which remembers what is dropped and why."""

    def __init__(self, *storages: ShapeStorage) -> None:
        self._shapes = {storage.handle: _OpenShape(storage) for storage in storages}
        self.dropped: list[tuple[str, DropReason]] = []

    def shapes(self) -> "list[_OpenShape]":
        return list(self._shapes.values())

    def find(self, handle: str) -> "_OpenShape | None":
        return self._shapes.get(handle)

    def drop(self, shapes: "list[_OpenShape]", reason: DropReason) -> None:
        self.dropped += [(shape.handle, reason) for shape in shapes]


class _OpenShape:
    is_snapshot_complete = True

    def __init__(self, storage: ShapeStorage) -> None:
        self.handle = storage.handle
        self._storage = storage

    def find_storage(self) -> ShapeStorage:
        return self._storage


def _schedule(
    settings: CompactionSettings, *storages: ShapeStorage
) -> tuple[CompactionScheduler, list[tuple[str, DropReason]]]:
    """A scheduler, and what it drops."""
    shapes = _Shapes(*storages)
    scheduler = CompactionScheduler(
        cast(ShapeRegistry, shapes),
        cast(ShapeRemoval, shapes),
        settings=settings,
        random=Random(4),
        metrics=MetricTable(declared_metrics(metrics)),
    )
    return scheduler, shapes.dropped


def _logged_failures(caplog: pytest.LogCaptureFixture) -> list[type[BaseException] | None]:
    return [record.exc_info[0] for record in caplog.records if record.exc_info]


def test_a_shape_is_looked_at_once_a_period(caplog: pytest.LogCaptureFixture) -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    settings = CompactionSettings(keep_chunks=1, min_cleanable_ratio=0.1)
    schedule, dropped = _schedule(settings, bench.storage)
    bench.change(100)
    bench.storage.flush()
    moments = []
    for now_ms in range(0, 6_000_000, 10_000):
        if schedule.run_once(now_ms):
            moments.append(now_ms)
            bench.change(60)
            bench.storage.flush()
    gaps = [later - earlier for earlier, later in zip([0, *moments], moments, strict=False)]
    assert 5 <= len(moments) <= 15
    assert all(300_000 <= gap <= 910_000 for gap in gaps)
    assert len(set(gaps)) > 3
    assert (dropped, _logged_failures(caplog)) == ([], [])
    bench.check(sample=20)


def test_a_schedule_that_has_ended_compacts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    schedule, dropped = _schedule(
        CompactionSettings(keep_chunks=1, min_cleanable_ratio=0.1), bench.storage
    )
    bench.change(100)
    bench.storage.flush()
    schedule.run_once(0)
    schedule.compactor.end()
    assert [schedule.run_once(now_ms) for now_ms in (1_000_000, 2_000_000)] == [[], []]
    assert (dropped, _logged_failures(caplog)) == ([], [])


def test_a_round_ends_in_the_middle_of_a_log_and_tells_of_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    schedule, dropped = _schedule(
        CompactionSettings(keep_chunks=1, min_cleanable_ratio=0.1), bench.storage
    )
    bench.change(100)
    bench.storage.flush()
    before = bench.storage.manifest
    schedule.run_once(0)
    open_ranges = compactor._open_ranges

    def end_now(*options: Any) -> Any:
        schedule.compactor.end()
        return open_ranges(*options)

    monkeypatch.setattr(compactor, "_open_ranges", end_now)
    assert schedule.run_once(1_000_000) == []
    assert (dropped, _logged_failures(caplog)) == ([], [])
    assert bench.storage.manifest == before


def test_a_log_smaller_than_a_chunk_is_compacted_as_a_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()), storage_settings=StorageSettings())
    settings = CompactionSettings()
    schedule, dropped = _schedule(settings, bench.storage)
    schedule.run_once(0)
    for number in range(900):
        bench.put("row", a=number)
    assert schedule.run_once(1_000_000) == []
    for number in range(900):
        bench.put("row", a=number)
    (report,) = schedule.run_once(2_000_000)
    assert report.boundary == bench.storage.latest
    assert report.balance.entries_out == 2
    assert bench.storage.live_bytes == 0
    assert (dropped, _logged_failures(caplog)) == ([], [])
    assert schedule.run_once(3_000_000) == []
    bench.check(sample=20)
    bench.put("row", a="last")
    bench.storage.close()
    bench.check(bench.reopen(bench.fs), sample=20)


def test_what_is_not_worth_it_is_read_again_when_twice_as_much_is_there() -> None:
    settings = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0.5, period_ms=10, jitter=0)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    schedule, _ = _schedule(settings, bench.storage)
    schedule.run_once(0)
    outcomes = []
    for number in range(200):
        bench.put(f"row {number}", a=1)
        bench.storage.flush()
        before = bench.storage.manifest
        outcomes += [report.outcome for report in schedule.run_once(10 * number + 10)]
        assert bench.storage.manifest == before
    assert 3 <= len(outcomes) <= 10
    assert set(outcomes) == {CompactionOutcome.NOT_WORTH}


def test_a_failure_is_told_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    broken, sound = (CompactionBench(MemoryFileSystem(clock), seed=seed) for seed in (1, 2))
    for bench in (broken, sound):
        bench.change(80)
        bench.storage.flush()
    with broken.fs.open_writable(log_path(broken.storage.directory, "latest.0")) as file:
        file.write_at(60, b"\xff")
    sound.storage.handle = "9999-1"
    schedule, dropped = _schedule(SMALL, broken.storage, sound.storage)
    schedule.run_once(0)
    reports = schedule.run_once(1_000_000)
    assert [report.handle for report in reports] == ["9999-1"]
    assert dropped == [(broken.storage.handle, DropReason.STORAGE_FAILED)]
    assert _logged_failures(caplog) == [Corrupt]


def test_a_swap_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFileSystem(ManualClock())
    bench = CompactionBench(files)
    bench.change(80)
    bench.storage.flush()
    schedule, dropped = _schedule(SMALL, bench.storage)
    schedule.run_once(0)
    install = ShapeStorage.install

    def fail(storage: ShapeStorage, compacted: CompactedLog) -> None:
        files.fail_from(files.steps + 1, OSError(errno.EIO, "Input/output error"))
        install(storage, compacted)

    monkeypatch.setattr(ShapeStorage, "install", fail)
    assert schedule.run_once(1_000_000) == []
    assert dropped == [(bench.storage.handle, DropReason.STORAGE_FAILED)]
    assert _logged_failures(caplog) == [Unavailable]
    assert bench.storage.failure is not None


def test_a_shape_that_is_being_compacted_on_demand_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    bench.change(80)
    bench.storage.flush()
    schedule, dropped = _schedule(SMALL, bench.storage)
    schedule.run_once(0)
    with schedule.compactor._one_at_a_time(bench.storage.handle):
        assert schedule.run_once(1_000_000) == []
    assert (dropped, _logged_failures(caplog)) == ([], [])
