"""A repair cannot lose data that was not announced."""

import pytest

from varve.commit_log.guarded_files import GuardedFileSystem
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import PolicyViolation

PATH = "/data/00000000000000000000.log"


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/data")
    with fs.open_writable(PATH) as file:
        file.write_at(0, b"batches" + bytes(5))
    return fs


def test_a_cut_that_was_announced_passes(fs: MemoryFileSystem) -> None:
    with GuardedFileSystem(fs, {PATH: 3}).open_writable(PATH) as file:
        file.truncate(3)
    assert fs.read(PATH) == b"bat"


@pytest.mark.parametrize("losses", [{}, {PATH: 4}])
def test_a_cut_beyond_what_was_announced_is_refused(
    losses: dict[str, int], fs: MemoryFileSystem
) -> None:
    guarded = GuardedFileSystem(fs, losses)
    with guarded.open_writable(PATH) as file, pytest.raises(PolicyViolation):
        file.truncate(3)
    with pytest.raises(PolicyViolation):
        guarded.rename(PATH, f"{PATH}.deleted")
    assert fs.read(PATH) == b"batches" + bytes(5)


def test_zeros_may_go(fs: MemoryFileSystem) -> None:
    with GuardedFileSystem(fs, {}).open_writable(PATH) as file:
        file.truncate(7)
    assert fs.read(PATH) == b"batches"


def test_files_that_hold_no_data_are_not_guarded(fs: MemoryFileSystem) -> None:
    guarded = GuardedFileSystem(fs, {})
    with guarded.open_writable("/data/00000000000000000000.index") as file:
        file.write_at(0, b"entries")
        file.truncate(0)
    guarded.remove("/data/00000000000000000000.index")
    assert guarded.names("/data") == ["00000000000000000000.log"]
