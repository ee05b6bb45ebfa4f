"""Cut and fail `write_atomically` at each of its steps."""

import errno

import pytest

from varve.disk import CrashMode, FaultyFileSystem, PowerLoss, write_atomically
from varve.foundation.clock import ManualClock

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
