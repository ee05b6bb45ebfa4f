"""Operations on whole files: what they leave after crashes, failures and waits."""

import errno

import pytest

from varve.disk import (
    Lock,
    MemoryFileSystem,
    PowerLoss,
    copy_range,
    hold_lock,
    make_durable_directory,
    write_atomically,
    write_file,
)
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, Locked
from varve.foundation.worker import StopSignal
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

OLD = b"old " * 300
NEW = b"new " * 500
STEPS = 5
"""Create, write, sync, rename, sync directory."""


def _disk(seed: int) -> FaultyFileSystem:
    fs = FaultyFileSystem(ManualClock(), seed=seed)
    fs.make_directory("/d")
    fs.sync_directory("/")
    write_atomically(fs, "/d/checkpoint", OLD)
    return fs


def test_the_number_of_steps_is_known() -> None:
    fs = _disk(0)
    start = fs.steps
    write_atomically(fs, "/d/checkpoint", NEW)
    assert fs.steps - start == STEPS


@pytest.mark.parametrize("mode", CrashMode)
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_after_a_crash_the_target_is_old_or_new_whole(mode: CrashMode, step: int) -> None:
    for seed in range(20):
        fs = _disk(seed)
        fs.crash_at(fs.steps + step)
        with pytest.raises(PowerLoss):
            write_atomically(fs, "/d/checkpoint", NEW)
        left = fs.after_crash(mode, seed)
        assert left.read("/d/checkpoint") in (OLD, NEW), fs.describe_trace()
        write_atomically(left, "/d/checkpoint", b"after recovery")
        assert left.names("/d") == ["checkpoint"]
        assert left.read("/d/checkpoint") == b"after recovery"


def test_once_returned_the_new_content_survives_every_crash() -> None:
    fs = _disk(0)
    write_atomically(fs, "/d/checkpoint", NEW)
    for mode in CrashMode:
        for seed in range(20):
            assert fs.after_crash(mode, seed).read("/d/checkpoint") == NEW


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_failing_step_is_raised_and_leaves_no_temporary(step: int) -> None:
    fs = _disk(0)
    fs.fail_at(fs.steps + step, OSError(errno.ENOSPC, "full"), after_bytes=7)
    with pytest.raises(OSError, match="full"):
        write_atomically(fs, "/d/checkpoint", NEW)
    assert fs.names("/d") == ["checkpoint"]
    assert fs.read("/d/checkpoint") == (NEW if step == STEPS else OLD)


def test_when_even_the_removal_fails_the_first_error_is_raised() -> None:
    fs = _disk(0)
    fs.fail_from(fs.steps + 2, OSError(errno.EIO, "dead"))
    with pytest.raises(OSError, match=r"dead: '/d/checkpoint\.tmp'"):
        write_atomically(fs, "/d/checkpoint", NEW)
    assert fs.read("/d/checkpoint") == OLD


@pytest.mark.parametrize("path", ["/a", "/a/b/c", "a/b"])
def test_a_directory_is_there_after_a_power_loss(path: str) -> None:
    fs = FaultyFileSystem(ManualClock())
    make_durable_directory(fs, path)
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).exists(path)


def test_one_that_is_there_costs_nothing() -> None:
    fs = FaultyFileSystem(ManualClock())
    make_durable_directory(fs, "/a/b")
    before = fs.steps
    make_durable_directory(fs, "/a/b")
    assert fs.steps == before
    make_durable_directory(fs, "/a/b/c")
    assert [step.operation for step in fs.trace[before:]] == ["make directory", "sync directory"]


def test_a_written_file_has_exactly_the_new_content() -> None:
    fs = MemoryFileSystem(ManualClock())
    write_file(fs, "/f", b"longer than the next", sync=False)
    write_file(fs, "/f", b"short", sync=False)
    assert fs.read("/f") == b"short"
    write_file(fs, "/f", b"", sync=True)
    assert fs.read("/f") == b""


def test_a_written_file_is_synced_only_when_asked() -> None:
    fs = FaultyFileSystem(ManualClock())
    write_file(fs, "/f", b"data", sync=True)
    fs.sync_directory("/")
    write_file(fs, "/g", b"data", sync=False)
    fs.sync_directory("/")
    left = fs.after_crash(CrashMode.LOSE_UNSYNCED)
    assert left.read("/f") == b"data"
    assert left.read("/g") == b""


@pytest.mark.parametrize("size", [0, 1, 4 << 20, (4 << 20) + 1])
def test_a_range_is_copied_to_its_position(size: int) -> None:
    fs = MemoryFileSystem(ManualClock())
    data = bytes(7) + b"x" * size + b"tail"
    write_file(fs, "/source", data, sync=False)
    with fs.open("/source") as source, fs.open_writable("/target") as target:
        target.write_at(0, b"abc")
        copy_range(source, target, start=7, end=7 + size, position=3)
    assert fs.read("/target") == b"abc" + b"x" * size


def test_a_source_that_ends_before_the_range_is_corrupt() -> None:
    fs = MemoryFileSystem(ManualClock())
    write_file(fs, "/source", b"abc", sync=False)
    with (
        fs.open("/source") as source,
        fs.open_writable("/target") as target,
        pytest.raises(Corrupt, match=r"/source ends at position 3, bytes up to 5"),
    ):
        copy_range(source, target, start=1, end=5)


class _ReleasingStop(StopSignal):
    """Releases the lock while its waiter sleeps for the third time."""

    def __init__(self, held: Lock) -> None:
        super().__init__()
        self.waits = 0
        self._held = held

    def wait_ms(self, wait_ms: float) -> bool:
        self.waits += 1
        if self.waits == 3:
            self._held.release()
        return False


def test_a_lock_is_waited_for() -> None:
    fs = MemoryFileSystem(ManualClock())
    stop = _ReleasingStop(fs.lock("/.lock"))
    with hold_lock(fs, "/.lock", wait_ms=1000, stop=stop):
        assert stop.waits == 3
        with pytest.raises(Locked):
            fs.lock("/.lock")


def test_a_lock_that_stays_held_is_refused_after_the_wait() -> None:
    fs = MemoryFileSystem(ManualClock())
    with fs.lock("/.lock"), pytest.raises(Locked, match="waited 100 ms"):
        hold_lock(fs, "/.lock", wait_ms=100)


def test_a_stop_ends_the_wait_for_a_lock() -> None:
    fs = MemoryFileSystem(ManualClock())
    stop = StopSignal()
    stop.set()
    with fs.lock("/.lock"), pytest.raises(Locked, match="waited 0 ms"):
        hold_lock(fs, "/.lock", wait_ms=60_000, stop=stop)
