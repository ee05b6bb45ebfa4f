"""Where the store departs from Kafka Streams.

The numbers are those of docs/explanation/windows.md.
"""

import logging

import pytest

from tests.support.window_bench import (
    WindowBench,
    logged_writes,
    memory_bench,
    put_all,
    times,
    visible,
)
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, Unavailable
from varve.rocks.memory_database import LOG_NAME, MemoryDatabase, MemoryDatabases
from varve.rocks.state_files import MetaChanged
from varve.testing.faulty_disk import FaultyFileSystem


@pytest.fixture
def bench() -> WindowBench:
    return memory_bench()


@pytest.fixture
def faulty() -> tuple[WindowBench, FaultyFileSystem]:
    file_system = FaultyFileSystem(ManualClock())
    return memory_bench(file_system), file_system


# D-1: the interval is part of the format


def test_d1_a_changed_interval_wipes_and_restores(
    bench: WindowBench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.store() as store:
        put_all(store, [5_000, 12_000, 27_000])
        before = visible(store)
    with caplog.at_level(logging.WARNING), bench.store(segment_ms=4_000) as store:
        assert visible(store) == before
        assert bench.starts() == [4_000, 12_000, 24_000]
    assert "wiped and restored" in caplog.text


def test_d1_without_a_changelog_a_changed_interval_is_refused(bench: WindowBench) -> None:
    bench.local().close()
    with pytest.raises(MetaChanged, match="segment_ms"):
        bench.local(segment_ms=4_000)


# D-2: stream time survives a restart


def test_d2_without_a_checkpoint_the_newest_segment_tells(bench: WindowBench) -> None:
    with bench.local() as store:
        put_all(store, [4_000, 31_000])
    bench.file_system.remove(bench.path("checkpoint.json"))
    with bench.local() as store:
        assert store.stream_time_ms == 30_000
        assert times(store.all()) == [31_000]


# D-3: an idle store shrinks


# D-4: renamed, then deleted


def test_d4_a_segment_is_renamed_before_it_is_deleted(
    faulty: tuple[WindowBench, FaultyFileSystem],
) -> None:
    bench, file_system = faulty
    store = bench.local()
    put_all(store, [7_000])
    file_system.trace.clear()
    put_all(store, [36_000])
    steps = [step.operation for step in file_system.trace if "s.0" in step.path]
    assert steps.index("rename") < steps.index("remove")


def test_d4_what_a_failed_deletion_left_is_removed_by_the_next_opening(
    faulty: tuple[WindowBench, FaultyFileSystem], caplog: pytest.LogCaptureFixture
) -> None:
    bench, file_system = faulty
    store = bench.local()
    store.put(b"k", b"v", 7_000)
    store.flush()
    file_system.fail_under(
        f"{bench.directory}/s.0.deleting/{LOG_NAME}", OSError(5, "Input/output error")
    )
    assert store.put(b"k", b"v", 36_000)
    assert store.segments.removal_failure_count == 1
    assert bench.names() == ["s.0.deleting", "s.30000"]
    assert "was not removed" in caplog.text
    store.close()
    file_system.mend()
    store.open()
    assert bench.names() == ["s.30000"]


def test_d4_a_failed_rename_leaves_the_segment_to_the_next_opening(
    faulty: tuple[WindowBench, FaultyFileSystem],
) -> None:
    bench, file_system = faulty
    store = bench.local()
    store.put(b"k", b"v", 7_000)
    store.flush()
    assert store.removal_failure_count == 0
    file_system.fail_under(f"{bench.directory}/s.0", OSError(5, "Input/output error"))
    assert store.put(b"k", b"v", 36_000)
    assert store.removal_failure_count == 1
    assert bench.names() == ["s.0", "s.30000"]
    file_system.mend()
    store.close()
    store.open()
    assert bench.names() == ["s.30000"]


# D-5: warnings are few


# D-6: only what was written is logged


def test_d6_skipped_writes_are_not_logged(bench: WindowBench) -> None:
    with bench.store() as store:
        put_all(store, [100_000, 1, 2])
        store.remove(b"k", 3)
    assert len(logged_writes(bench.changelog)) == 1


# D-7: foreign names are passed over, damage is not


def test_d7_foreign_names_are_passed_over_with_a_warning(
    bench: WindowBench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.local() as store:
        put_all(store, [5_000, 12_000])
    bench.write_file("s.0~", b"an editor's backup")
    bench.file_system.make_directory(bench.path("lost+found"))
    bench.file_system.make_directory(bench.path("s.12345"))
    with caplog.at_level(logging.WARNING), bench.local() as store:
        assert times(store.all()) == [5_000, 12_000]
    paths = sorted(record.__dict__["path"] for record in caplog.records)
    assert paths == [bench.path(name) for name in ("lost+found", "s.0~", "s.12345")]


def test_d7_the_stores_own_files_are_not_foreign(
    bench: WindowBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.local().close()
    bench.write_file("checkpoint.json.tmp", b"{")
    bench.write_file("meta.json.tmp", b"{")
    with caplog.at_level(logging.WARNING):
        bench.local().close()
    assert not caplog.records


def _damage(bench: WindowBench, start_ms: int) -> None:
    path = f"s.{start_ms}/{LOG_NAME}"
    data = bench.file_system.read(bench.path(path))
    bench.write_file(path, data[:10] + b"?" + data[11:] + data)


def test_d7_a_segment_that_cannot_be_opened_wipes_and_restores(
    bench: WindowBench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.store() as store:
        put_all(store, [5_000, 12_000, 22_000])
        before = visible(store)
    _damage(bench, 10_000)
    with caplog.at_level(logging.WARNING), bench.store() as store:
        assert visible(store) == before
    assert "wiped and restored" in caplog.text


def test_d7_without_a_changelog_damage_is_raised_and_nothing_stays_open(
    bench: WindowBench,
) -> None:
    with bench.local() as store:
        put_all(store, [5_000, 12_000])
    _damage(bench, 10_000)
    for _ in range(2):
        with pytest.raises(Corrupt, match="wrong checksum"):
            bench.local()


# D-8: all are closed


class _StubbornDatabase(MemoryDatabase):
    """Its first close fails."""

    def close(self) -> None:
        if self.path.endswith("s.0") and self._is_open:
            self.forget()
            raise Unavailable("close of s.0 failed")
        super().close()


class _StubbornDatabases(MemoryDatabases):
    def open(self, path: str, *, must_exist: bool = False) -> MemoryDatabase:
        self._file_system.make_directory(path)
        return _StubbornDatabase(path, self._file_system)


def test_d8_all_segments_are_closed_and_the_first_error_is_raised() -> None:
    file_system = MemoryFileSystem(ManualClock())
    bench = WindowBench(file_system, _StubbornDatabases(file_system), "/state/s")
    store = bench.local()
    for time_ms in (5_000, 12_000):
        store.put(b"k", b"v", time_ms)
    segments = list(store.segments)
    with pytest.raises(Unavailable, match=r"close of s\.0 failed"):
        store.close()
    last = segments[1].database
    assert isinstance(last, MemoryDatabase)
    assert not last._is_open


def test_d8_an_expired_segment_that_does_not_close_goes_all_the_same() -> None:
    file_system = MemoryFileSystem(ManualClock())
    bench = WindowBench(file_system, _StubbornDatabases(file_system), "/state/s")
    store = bench.local()
    put_all(store, [5_000])
    put_all(store, [36_000])
    assert bench.starts() == [30_000]
