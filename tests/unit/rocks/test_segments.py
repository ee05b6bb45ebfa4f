"""Segments: names, ids, who is live, and how one goes."""

from typing import Any

import pytest

from tests.support.window_bench import NAME, memory_bench
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, Locked, Unavailable
from varve.rocks.memory_database import MemoryDatabases
from varve.rocks.segments import Segments, decode_directory_name
from varve.rocks.state_files import StoreMeta
from varve.testing.faulty_disk import FaultyFileSystem

DIRECTORY = "/state/s"
META = StoreMeta(engine="memory", layout="l", segment_ms=10_000, retention_ms=25_000)


@pytest.fixture
def file_system() -> MemoryFileSystem:
    return MemoryFileSystem(ManualClock())


def make_segments(file_system: FileSystem, **changes: Any) -> Segments:
    options: dict[str, Any] = {
        "name": NAME,
        "directory": DIRECTORY,
        "databases": MemoryDatabases(file_system),
        "file_system": file_system,
        "segment_ms": 10_000,
        "retention_ms": 25_000,
    }
    return Segments(**{**options, **changes})


def opened(file_system: FileSystem, **changes: Any) -> Segments:
    segments = make_segments(file_system, **changes)
    segments.open(META, -1)
    return segments


def make(segments: Segments, *ids: int) -> None:
    """Segments of these ids, with an entry each."""
    for id in ids:
        segment = segments.get_or_create_if_live(id, 0)
        assert segment is not None
        segment.database.write([(b"k", b"v")])


def test_only_exact_names_are_segments() -> None:
    assert [decode_directory_name("s", f"s.{start}") for start in (0, 30_000)] == [0, 30_000]
    assert decode_directory_name("a.b", "a.b.7") == 7
    for name in ("s.030000", "s.", "s.-1", "s.٣", "s.1.deleting", "s.5.7", "t.0", "s", "0", "s:0"):
        assert decode_directory_name("s", name) is None, name


def test_a_smaller_stream_time_than_the_segment_drops_nothing(
    file_system: MemoryFileSystem,
) -> None:
    segments = opened(file_system)
    make(segments, 0)
    assert segments.get_or_create_if_live(99, 20_000) is not None
    assert [segment.id for segment in segments] == [0, 99]


def test_cleanup_drops_the_oldest_first() -> None:
    file_system = FaultyFileSystem(ManualClock())
    segments = opened(file_system)
    make(segments, 5, 0, 3)
    file_system.trace.clear()
    assert segments.cleanup(200_000) == 3
    renamed = [step.path for step in file_system.trace if step.operation == "rename"]
    assert renamed == [f"{DIRECTORY}/s.{start}" for start in (0, 30_000, 50_000)]
    assert segments.cleanup(200_000) == 0


def test_another_owner_is_locked_out_until_the_close(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    other = make_segments(file_system)
    with pytest.raises(Locked):
        other.open(META, -1)
    segments.close()
    other.open(META, -1)
    other.close()


def test_nothing_is_made_before_the_opening(file_system: MemoryFileSystem) -> None:
    with pytest.raises(Closed):
        make(make_segments(file_system), 0)


def test_opening_twice_is_refused(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    with pytest.raises(InvalidRequest, match="open already"):
        segments.open(META, -1)
    make(segments, 0)


@pytest.mark.parametrize("times", [{"segment_ms": 0}, {"retention_ms": -1}])
def test_impossible_times_are_refused(file_system: MemoryFileSystem, times: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="must be at least"):
        make_segments(file_system, **times)


def test_a_lost_segment_of_the_checkpoint_is_corrupt(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 1, 2, 3)
    segments.checkpoint(30_000, 0)
    segments.close()
    file_system.remove_tree(f"{DIRECTORY}/s.20000")
    with pytest.raises(Corrupt, match=r"s\.20000: a segment of the checkpoint is missing"):
        segments.open(META, -1)
    segments.open(META, 60_000)


def test_segments_dropped_after_the_checkpoint_are_not_missed(
    file_system: MemoryFileSystem,
) -> None:
    segments = opened(file_system)
    make(segments, 1, 2, 3)
    segments.checkpoint(30_000, 0)
    segments.cleanup(55_000)
    segments.close()
    segments.open(META, -1)
    assert [segment.id for segment in segments] == [3]


def test_all_segments_lost_are_corrupt(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 1, 2, 3)
    segments.checkpoint(30_000, 0)
    segments.close()
    for start_ms in (10_000, 20_000, 30_000):
        file_system.remove_tree(f"{DIRECTORY}/s.{start_ms}")
    with pytest.raises(Corrupt, match="is missing"):
        segments.open(META, -1)


def test_a_wipe_leaves_only_what_is_not_the_stores(file_system: MemoryFileSystem) -> None:
    bench = memory_bench(file_system)
    store = bench.store()
    store.put(b"k", b"v", 5)
    store.close()
    bench.write_file("notes.txt", b"mine")
    file_system.make_directory(bench.path("s.70000.deleting"))
    file_system.make_directory(bench.path("s.12345"))
    bench.write_file("s.90000", b"a file")
    make_segments(file_system).wipe()
    assert file_system.names(bench.directory) == [".lock", "notes.txt"]


def test_a_failed_wipe_says_so() -> None:
    file_system = FaultyFileSystem(ManualClock())
    segments = opened(file_system)
    make(segments, 0)
    file_system.fail_from(file_system.steps + 1, OSError(5, "Input/output error"))
    with pytest.raises(
        Unavailable, match=r"wipe of /state/s: .*: Input/output error; repair the disk"
    ):
        segments.wipe()
