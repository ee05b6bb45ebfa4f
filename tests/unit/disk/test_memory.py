"""The file system in memory: time from the clock, threads, several file systems apart."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def fs(clock: ManualClock) -> MemoryFileSystem:
    return MemoryFileSystem(clock)


def test_modified_time_is_the_clock_at_the_last_change(
    fs: MemoryFileSystem, clock: ManualClock
) -> None:
    file = fs.open_writable("/a")
    assert fs.info("/a").modified_ms == 1000
    clock.advance(5)
    file.write_at(0, b"x")
    assert fs.info("/a").modified_ms == 1005
    clock.advance(5)
    file.sync()
    file.read_at(0, 1)
    fs.rename("/a", "/b")
    assert fs.info("/b").modified_ms == 1005
    file.truncate(0)
    assert fs.info("/b").modified_ms == 1010


def test_relative_paths_start_at_the_root(fs: MemoryFileSystem) -> None:
    fs.make_directory("a/./b")
    assert fs.names("/a//b/..") == ["b"]


def test_the_root_can_be_listed_but_not_removed(fs: MemoryFileSystem) -> None:
    assert fs.names("/") == []
    fs.make_directory("/")
    with pytest.raises(OSError, match="busy"):
        fs.remove_tree("/")


def test_threads_write_and_read_without_tearing(fs: MemoryFileSystem) -> None:
    with fs.open_writable("/a") as file:
        file.write_at(0, bytes(4096))

        def work(number: int) -> None:
            for _ in range(200):
                file.write_at(0, bytes([number]) * 4096)
                assert len(set(file.read_at(0, 4096))) == 1
                fs.open_writable(f"/{number}").close()
                fs.remove(f"/{number}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    assert fs.names("/") == ["a"]
