"""The bounded set of open segments, and what a closed segment tells."""

import pytest

from tests.support.log_bench import NOW_MS, Bench, make_batch
from varve.commit_log import SegmentFiles
from varve.commit_log.names import log_name
from varve.commit_log.segment import Segment, rename_segment_files

SIZE = len(make_batch())


def segments(bench: Bench, files: SegmentFiles, *bases: int) -> list[Segment]:
    return [
        Segment(files, "data/topic-0", base_offset=base, size=SIZE, has_txn_index=False)
        for base in bases
    ]


@pytest.fixture
def rolled(bench: Bench) -> Bench:
    bench.open()
    bench.fill(1, 1, 1, 1, time=5)
    return bench


def test_an_open_segment_is_kept(rolled: Bench) -> None:
    files = SegmentFiles(rolled.fs)
    (segment,) = segments(rolled, files, 0)
    assert files.get(segment) is files.get(segment)


def test_the_least_recently_used_goes_first(rolled: Bench) -> None:
    files = SegmentFiles(rolled.fs, capacity=2)
    first, second, third = segments(rolled, files, 0, 1, 2)
    kept, dropped = files.get(first), files.get(second)
    files.get(first)
    files.get(third)
    assert files.get(first) is kept
    assert files.get(second) is not dropped


def test_a_dropped_file_stays_open_for_who_holds_it(rolled: Bench) -> None:
    files = SegmentFiles(rolled.fs, capacity=1)
    first, second = segments(rolled, files, 0, 1)
    file = first.file()
    second.file()
    assert len(file.read_at(0, 100)) == SIZE


def test_a_segment_that_left_is_not_found(rolled: Bench) -> None:
    files = SegmentFiles(rolled.fs)
    (segment,) = segments(rolled, files, 0)
    segment.file()
    segment.mark_deleted()
    with pytest.raises(FileNotFoundError):
        segment.file()
    assert log_name(0, ".log.deleted") in rolled.names()


def test_renaming_passes_missing_files_over(rolled: Bench) -> None:
    files = SegmentFiles(rolled.fs)
    rolled.fs.remove(rolled.path(0, ".index"))
    rename_segment_files(files, "data/topic-0", 0, "", ".deleted")
    assert rolled.names(".deleted") == [
        log_name(0, ".log.deleted"),
        log_name(0, ".timeindex.deleted"),
    ]


def test_a_closed_segment_knows_its_largest_timestamp(rolled: Bench) -> None:
    (segment,) = segments(rolled, SegmentFiles(rolled.fs), 2)
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (NOW_MS + 5, 2)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_lost_time_index_is_made_up_for(rolled: Bench, is_removed: bool) -> None:
    if is_removed:
        rolled.fs.remove(rolled.path(2, ".timeindex"))
    else:
        rolled.write(2, ".timeindex", b"")
    (segment,) = segments(rolled, SegmentFiles(rolled.fs), 2)
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (NOW_MS + 5, 2)


def test_without_a_transaction_index_nothing_was_aborted(rolled: Bench) -> None:
    (segment,) = segments(rolled, SegmentFiles(rolled.fs), 0)
    assert segment.txn_index().count == 0
    assert segment.index_kinds == (".index", ".timeindex")
