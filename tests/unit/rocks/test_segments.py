"""Segments: names, ids, who is live, and how one goes."""

from typing import Any

import pytest

from tests.support.window_bench import NAME, memory_bench
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, Locked, Unavailable
from varve.rocks.memory_database import MemoryDatabase, MemoryDatabases
from varve.rocks.segments import Segment, Segments, decode_directory_name
from varve.testing.faulty_disk import FaultyFileSystem

DIRECTORY = "/state/s"


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
    segments.open_existing(-1)
    return segments


def names(file_system: FileSystem) -> list[str]:
    return [name for name in file_system.names(DIRECTORY) if name != ".lock"]


def make(segments: Segments, *ids: int) -> None:
    """Segments of these ids, with an entry each."""
    for id in ids:
        segment = segments.get_or_create_if_live(id, 0)
        assert segment is not None
        segment.database.write([(b"k", b"v")])


def test_an_entry_at_the_start_of_an_interval_opens_its_segment(
    file_system: MemoryFileSystem,
) -> None:
    segments = make_segments(file_system)
    assert [segments.segment_id(time) for time in (0, 9_999, 10_000, 19_999)] == [0, 0, 1, 1]


def test_directories_are_named_by_the_start_and_not_the_id(file_system: MemoryFileSystem) -> None:
    make(opened(file_system), 0, 3)
    assert names(file_system) == ["s.0", "s.30000"]


@pytest.mark.parametrize(
    ("name", "start_ms"),
    [
        ("s.0", 0),
        ("s.30000", 30_000),
        ("s.030000", None),
        ("s.", None),
        ("s.-1", None),
        ("s.٣", None),
        ("s.1.deleting", None),
        ("t.0", None),
        ("s", None),
        ("0", None),
        ("s:0", None),
    ],
)
def test_only_exact_names_are_segments(name: str, start_ms: int | None) -> None:
    assert decode_directory_name("s", name) == start_ms


def test_a_store_name_may_have_dots() -> None:
    assert decode_directory_name("a.b", "a.b.7") == 7
    assert decode_directory_name("a", "a.5.7") is None


def test_segments_are_equal_and_ordered_by_id_alone(file_system: MemoryFileSystem) -> None:
    database = MemoryDatabases(file_system).open("/x")
    first, same, later = (
        Segment(1, 10, database),
        Segment(1, 11, MemoryDatabase("/y", file_system)),
        Segment(2, 0, database),
    )
    assert first == same
    assert hash(first) == hash(same)
    assert first < later


def test_ids_need_not_be_contiguous(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 7, 2, 4)
    assert [segment.id for segment in segments] == [2, 4, 7]
    assert [segment.start_ms for segment in segments] == [20_000, 40_000, 70_000]


def test_live_ones_of_a_range_in_either_order(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 2, 4, 7)
    assert [item.id for item in segments.live(29_999, 70_000)] == [2, 4, 7]
    assert [item.id for item in segments.live(30_000, 69_999)] == [4]
    assert [item.id for item in segments.live(0, 2**63 - 1, backward=True)] == [7, 4, 2]
    assert segments.live(50_000, 40_000) == []


def test_at_most_retention_over_interval_plus_two_live(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    for time_ms in range(0, 200_000, 500):
        segments.get_or_create_if_live(segments.segment_id(time_ms), time_ms)
        assert len(segments) <= 25_000 // 10_000 + 2


def test_a_smaller_stream_time_than_the_segment_drops_nothing(
    file_system: MemoryFileSystem,
) -> None:
    segments = opened(file_system)
    make(segments, 0)
    assert segments.get_or_create_if_live(99, 20_000) is not None
    assert [segment.id for segment in segments] == [0, 99]


def test_expired_ids_get_no_segment_but_clean_up(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 0, 3)
    assert segments.get_or_create_if_live(0, 36_000) is None
    assert names(file_system) == ["s.30000"]
    assert segments.drop_count == 1


def test_cleanup_drops_the_oldest_first() -> None:
    file_system = FaultyFileSystem(ManualClock())
    segments = opened(file_system)
    make(segments, 5, 0, 3)
    assert segments.cleanup(200_000) == 3
    renamed = [step.path for step in file_system.trace if step.operation == "rename"]
    assert renamed == [f"{DIRECTORY}/s.{start}" for start in (0, 30_000, 50_000)]
    assert segments.cleanup(200_000) == 0


def test_another_owner_is_locked_out_until_the_close(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    other = make_segments(file_system)
    with pytest.raises(Locked):
        other.open_existing(-1)
    segments.close()
    other.open_existing(-1)
    other.close()


def test_nothing_is_made_before_the_opening(file_system: MemoryFileSystem) -> None:
    with pytest.raises(Closed):
        make(make_segments(file_system), 0)


def test_opening_twice_is_refused(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    with pytest.raises(InvalidRequest, match="open already"):
        segments.open_existing(-1)
    make(segments, 0)


@pytest.mark.parametrize("times", [{"segment_ms": 0}, {"retention_ms": -1}])
def test_impossible_times_are_refused(file_system: MemoryFileSystem, times: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="must be at least"):
        make_segments(file_system, **times)


def test_opening_cleans_by_the_stream_time_given(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 0, 3)
    segments.close()
    segments.open_existing(36_000)
    assert names(file_system) == ["s.30000"]


def test_a_lost_segment_of_the_checkpoint_is_corrupt(file_system: MemoryFileSystem) -> None:
    segments = opened(file_system)
    make(segments, 1, 2, 3)
    segments.close()
    file_system.remove_tree(f"{DIRECTORY}/s.20000")
    with pytest.raises(Corrupt, match=r"s\.20000: a segment of the checkpoint is missing"):
        segments.open_existing(30_000, [1, 2, 3])
    segments.open_existing(60_000, [1, 2, 3])


def test_segments_dropped_after_the_checkpoint_are_not_missed(
    file_system: MemoryFileSystem,
) -> None:
    segments = opened(file_system)
    make(segments, 1, 2, 3)
    segments.cleanup(55_000)
    segments.close()
    segments.open_existing(30_000, [1, 2, 3])
    assert [segment.id for segment in segments] == [3]


def test_all_segments_lost_are_corrupt(file_system: MemoryFileSystem) -> None:
    opened(file_system).close()
    with pytest.raises(Corrupt, match="is missing"):
        make_segments(file_system).open_existing(30_000, [1, 2, 3])


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
