"""Directories that outlive the power."""

import pytest

from varve.disk import CrashMode, FaultyFileSystem, make_durable_directory
from varve.foundation.clock import ManualClock


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
