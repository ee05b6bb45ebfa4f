"""A plan of keys fails with its first range, and its bits lie in a file where they are large."""

import errno
import sys
from pathlib import Path

import pytest

from varve.foundation.errors import DiskFull, Unavailable
from varve.jobs import key_plans
from varve.jobs.key_plans import RangeFold
from varve.jobs.tasks import TaskError


def test_a_range_that_failed_fails_the_plan() -> None:
    folded = RangeFold([100, 9], None)
    for reason in ("the store is away", "it is away still"):
        folded.add(TaskError(Unavailable(reason)))
    with pytest.raises(Unavailable, match="the store is away"):
        folded.result()


def test_large_bits_lie_in_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(key_plans, "_FILE_BYTES", 1 << 20)
    small, large = key_plans.file_bits(1 << 20), key_plans.file_bits((1 << 20) + 1)
    assert not large.any()
    large[-1] = 255
    assert (int(large[-1]), small.size) == (255, 1 << 20)
    if sys.platform == "linux":
        maps = Path("/proc/self/maps").read_text()
        assert [line for line in maps.splitlines() if str(tmp_path) in line], "not a file"
    assert list(tmp_path.iterdir()) == []


def test_a_full_temporary_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(DiskFull, match=str(tmp_path)):
        key_plans.file_bits((16 << 20) + 1)
