"""Which shapes are compacted when."""

import errno
from random import Random
from typing import Any

import pytest

from tests.support.compaction_bench import SMALL, CompactionBench
from varve.disk import FaultyFileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, Unavailable
from varve.shapes.compaction import compact
from varve.shapes.compaction.compact import Compactor
from varve.shapes.compaction.report import Outcome
from varve.shapes.compaction.schedule import CompactionSchedule
from varve.shapes.compaction.settings import CompactionSettings
from varve.shapes.storage.compacted_log import CompactedLog
from varve.shapes.storage.layout import log_path
from varve.shapes.storage.settings import StorageSettings
from varve.shapes.storage.storage import ShapeStorage


def _schedule(
    bench: CompactionBench, settings: CompactionSettings
) -> tuple[CompactionSchedule, list[Exception]]:
    errors: list[Exception] = []
    schedule = CompactionSchedule(
        Compactor(settings, Random(3)),
        lambda: [bench.storage],
        failed=lambda storage, error: errors.append(error),
        random=Random(4),
    )
    return schedule, errors


def test_a_shape_is_looked_at_once_a_period() -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    settings = CompactionSettings(keep_chunks=1, stale_share=0.1)
    schedule, errors = _schedule(bench, settings)
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
    assert errors == []
    bench.check(sample=20)


def test_a_schedule_that_has_ended_compacts_nothing() -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    schedule, errors = _schedule(bench, CompactionSettings(keep_chunks=1, stale_share=0.1))
    bench.change(100)
    bench.storage.flush()
    schedule.run_once(0)
    schedule._compactor.end()
    assert [schedule.run_once(now_ms) for now_ms in (1_000_000, 2_000_000)] == [[], []]
    assert errors == []


def test_a_round_ends_in_the_middle_of_a_log_and_tells_of_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    schedule, errors = _schedule(bench, CompactionSettings(keep_chunks=1, stale_share=0.1))
    bench.change(100)
    bench.storage.flush()
    before = bench.storage.manifest
    schedule.run_once(0)
    open_ranges = compact._open_ranges

    def end_now(*given: Any) -> Any:
        schedule._compactor.end()
        return open_ranges(*given)

    monkeypatch.setattr(compact, "_open_ranges", end_now)
    assert schedule.run_once(1_000_000) == []
    assert errors == []
    assert bench.storage.manifest == before


def test_a_log_smaller_than_a_chunk_is_compacted_as_a_whole() -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()), storage_settings=StorageSettings())
    settings = CompactionSettings()
    schedule, errors = _schedule(bench, settings)
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
    assert errors == []
    assert schedule.run_once(3_000_000) == []
    bench.check(sample=20)
    bench.put("row", a="last")
    bench.storage.close()
    bench.check(bench.reopen(bench.fs), sample=20)


def test_what_is_not_worth_it_is_read_again_when_twice_as_much_is_there() -> None:
    settings = CompactionSettings(keep_chunks=0, stale_share=0.5, period_ms=10, jitter=0)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    schedule, _ = _schedule(bench, settings)
    schedule.run_once(0)
    outcomes = []
    for number in range(200):
        bench.put(f"row {number}", a=1)
        bench.storage.flush()
        before = bench.storage.manifest
        outcomes += [report.outcome for report in schedule.run_once(10 * number + 10)]
        assert bench.storage.manifest == before
    assert 3 <= len(outcomes) <= 10
    assert set(outcomes) == {Outcome.NOT_WORTH}


def test_a_failure_is_told_and_others_go_on() -> None:
    clock = ManualClock()
    broken, sound = (CompactionBench(MemoryFileSystem(clock), seed=seed) for seed in (1, 2))
    for bench in (broken, sound):
        bench.change(80)
        bench.storage.flush()
    with broken.fs.open_writable(log_path(broken.storage.directory, "latest.0")) as file:
        file.write_at(60, b"\xff")
    sound.storage.handle = "9999-1"
    told: list[tuple[ShapeStorage, Exception]] = []
    schedule = CompactionSchedule(
        Compactor(SMALL, Random(3)),
        lambda: [broken.storage, sound.storage],
        failed=lambda storage, error: told.append((storage, error)),
        random=Random(4),
    )
    schedule.run_once(0)
    reports = schedule.run_once(1_000_000)
    assert [report.handle for report in reports] == ["9999-1"]
    assert [storage for storage, _ in told] == [broken.storage]
    assert isinstance(told[0][1], Corrupt)


def test_a_swap_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFileSystem(ManualClock())
    bench = CompactionBench(files)
    bench.change(80)
    bench.storage.flush()
    schedule, errors = _schedule(bench, SMALL)
    schedule.run_once(0)
    install = ShapeStorage.install

    def fail(storage: ShapeStorage, compacted: CompactedLog) -> None:
        files.fail_from(files.steps + 1, OSError(errno.EIO, "Input/output error"))
        install(storage, compacted)

    monkeypatch.setattr(ShapeStorage, "install", fail)
    assert schedule.run_once(1_000_000) == []
    assert [type(error) for error in errors] == [Unavailable]
    assert bench.storage.failure is not None


def test_a_shape_that_is_being_compacted_on_demand_has_not_failed() -> None:
    bench = CompactionBench(MemoryFileSystem(ManualClock()))
    bench.change(80)
    bench.storage.flush()
    compactor = Compactor(SMALL, Random(3))
    errors: list[Exception] = []
    schedule = CompactionSchedule(
        compactor,
        lambda: [bench.storage],
        failed=lambda storage, error: errors.append(error),
        random=Random(4),
    )
    schedule.run_once(0)
    with compactor._one_at_a_time(bench.storage.handle):
        assert schedule.run_once(1_000_000) == []
    assert errors == []
