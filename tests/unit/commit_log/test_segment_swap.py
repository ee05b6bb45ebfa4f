"""Each sentence of what a swap of segments does."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.check_open_log import check_log
from tests.support.cleaned_segment import write_cleaned
from tests.support.log_bench import (
    BROKEN,
    DIRECTORY,
    NO_ROOM,
    NOW_MS,
    Bench,
    FaultyBench,
    make_batch,
    make_marker,
    read_all,
)
from varve.commit_log import AppendOrigin, LastRecord, Log, Segment, TimestampOffset
from varve.commit_log.names import DELETED, SWAP, log_name
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    DiskFull,
    InvalidRequest,
    Unavailable,
)

MINUTE = 60_000
# Append times (2 steps), the mark of how far the swap reaches (3), the renames to `.swap` (5), a
# sync of the names: then the first old file is renamed.
FIRST_OLD_FILE = 11


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.view]


def aside(bench: Bench, offsets: Sequence[int], base: int = 0, **batch: Any) -> int:
    batches = [make_batch(base_offset=offset, **batch) for offset in offsets]
    return write_cleaned(bench.fs, DIRECTORY, base, batches)


def swap(bench: Bench, size: int, first: int = 0, count: int = 2) -> Segment | None:
    old = list(bench.log.view.closed[first : first + count])
    return bench.log.replace_segments(
        old, base_offset=old[0].base_offset, size=size, has_txn_index=False
    )


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Segments at 0, 2, 4 and the active one at 6."""
    bench.open()
    bench.fill(2, 2, 2, 1)
    return bench


def test_the_new_segment_takes_the_place_of_the_old_ones(filled: Bench) -> None:
    new = swap(filled, aside(filled, [1, 3]))
    assert new is not None
    assert bases(filled.log) == [0, 4, 6]
    assert filled.log.view.closed[0] is new
    assert read_all(filled.log) == [1, 3, 4, 5, 6]
    assert check_log(filled.log) == []


def test_the_old_files_are_set_aside_durably_before_the_new_ones_get_their_names(
    faulty: FaultyBench,
) -> None:
    faulty.open()
    faulty.fill(2, 2, 2, 1)
    size = aside(faulty, [1, 3])
    before = len(faulty.fs.trace)
    swap(faulty, size)
    steps = [f"{step.operation} {step.path} {step.detail}" for step in faulty.fs.trace[before:]]
    new_name = next(n for n, step in enumerate(steps) if f"{SWAP} to" in step)
    set_aside = [n for n, step in enumerate(steps[:new_name]) if step.endswith(DELETED)]
    assert any("sync directory" in step for step in steps[set_aside[-1] : new_name])


def test_what_a_reader_knew_of_the_old_ones_is_forgotten(filled: Bench) -> None:
    for offset in range(7):
        filled.log.read(start_offset=offset, max_bytes=1)
    swap(filled, aside(filled, [1, 3], value=b"a longer value than before"))
    assert read_all(filled.log) == [1, 3, 4, 5, 6]
    assert filled.log.read(start_offset=2, max_bytes=1).next_offset == 4


def test_times_are_found_in_the_new_segment(filled: Bench) -> None:
    swap(filled, aside(filled, [1, 3], time=77))
    assert filled.log.find_max_timestamp() == TimestampOffset(NOW_MS + 77, 1)
    assert filled.log.find_offset_by_time(NOW_MS + 1) == TimestampOffset(NOW_MS + 77, 1)


def test_old_files_wait_their_delay_and_go(filled: Bench) -> None:
    swap(filled, aside(filled, [1, 3]))
    assert log_name(0, ".log.deleted") in filled.names()
    assert log_name(2, ".index.deleted") in filled.names()
    assert filled.names(".cleaned", ".swap") == []
    filled.clock.advance(MINUTE)
    filled.log.maintain(filled.clock.now_ms())
    assert filled.names(".deleted") == []


def test_the_key_index_comes_and_goes_with_its_segment(filled: Bench) -> None:
    filled.write(2, ".keys", b"of the old one")
    swap(filled, aside(filled, [1, 3]))
    assert filled.read_file(0, ".keys") == b"keys"
    assert log_name(2, ".keys.deleted") in filled.names()


def test_snapshots_of_base_offsets_that_are_gone_go_too(filled: Bench) -> None:
    swap(filled, aside(filled, [1, 3]))
    assert filled.names(".snapshot") == [log_name(4, ".snapshot"), log_name(6, ".snapshot")]
    assert log_name(2, ".snapshot.deleted") in filled.names()
    assert check_log(filled.log) == []


def test_the_newest_snapshot_stays_whatever_it_names(filled: Bench) -> None:
    for offset in (4, 6):
        filled.log.snapshots.remove(offset)
    swap(filled, aside(filled, [1, 3]))
    assert filled.names(".snapshot") == [log_name(2, ".snapshot")]


def test_the_log_goes_on_and_opens_again(filled: Bench) -> None:
    swap(filled, aside(filled, [1, 3]))
    filled.log.append(make_batch())
    filled.log.flush()
    for open_again in (filled.reopen, filled.crash):
        open_again()
        assert read_all(filled.log) == [1, 3, 4, 5, 6, 7]
        assert bases(filled.log) == [0, 4, 6]


def test_the_log_may_be_cut_inside_the_new_segment(filled: Bench) -> None:
    swap(filled, aside(filled, [1, 3]))
    filled.log.truncate_to(3)
    assert read_all(filled.log) == [1]
    assert filled.names(".keys") == []
    assert filled.log.append(make_batch()).base_offset == 3


def test_all_that_was_appended_before_is_synced(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(2, 2, 2, 1)
    assert swap(faulty, aside(faulty, [1, 3])) is not None
    assert faulty.log.recovery_point == 6
    faulty.log.flush()
    assert faulty.log.recovery_point == 7


@pytest.mark.parametrize("kept", [[], [0], [1]])
def test_old_segments_behind_the_end_of_the_new_data_go_as_well(
    filled: Bench, kept: list[int]
) -> None:
    assert swap(filled, aside(filled, kept), count=3) is not None
    assert bases(filled.log) == [0, 6]
    assert read_all(filled.log) == [*kept, 6]
    assert filled.names(".swap") == []
    filled.crash(recovery_point=6)
    assert bases(filled.log) == [0, 6]
    assert read_all(filled.log) == [*kept, 6]


def test_a_segment_that_has_left_the_log_leaves_the_others_as_they_are(filled: Bench) -> None:
    old = list(filled.log.view.closed[:2])
    size = aside(filled, [1, 3])
    filled.log.drop_segments_before(2, now_ms=NOW_MS)
    new = filled.log.replace_segments(old, base_offset=0, size=size, has_txn_index=False)
    assert new is None
    assert filled.names(".cleaned", ".swap") == []
    assert read_all(filled.log) == [2, 3, 4, 5, 6]


def test_a_roll_meanwhile_makes_no_difference(filled: Bench) -> None:
    size = aside(filled, [1, 3])
    filled.log.roll()
    assert swap(filled, size) is not None
    assert bases(filled.log) == [0, 4, 6, 7]


def test_a_file_that_is_missing_or_too_many_is_refused(filled: Bench) -> None:
    size = aside(filled, [1, 3])
    filled.fs.remove(filled.path(0, ".index.cleaned"))
    with pytest.raises(InvalidRequest, match=r"index.cleaned is missing"):
        swap(filled, size)
    assert filled.names(".cleaned", ".swap") == []
    size = aside(filled, [1, 3])
    filled.write(0, ".txnindex.cleaned", b"")
    with pytest.raises(InvalidRequest, match=r"txnindex.cleaned exists"):
        swap(filled, size)
    assert read_all(filled.log) == [0, 1, 2, 3, 4, 5, 6]


def test_data_that_is_not_whole_is_refused(filled: Bench) -> None:
    size = aside(filled, [1, 3])
    with pytest.raises(Corrupt, match=r"\.cleaned"):
        swap(filled, size - 1)
    assert filled.names(".cleaned", ".swap") == []
    assert read_all(filled.log) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("after_steps", range(FIRST_OLD_FILE))
@pytest.mark.parametrize("error", [NO_ROOM, BROKEN])
def test_a_failure_before_the_old_files_are_touched_leaves_them_in_use(
    faulty: FaultyBench, error: OSError, after_steps: int
) -> None:
    faulty.open()
    faulty.fill(2, 2, 2, 1)
    faulty.log.flush()
    size = aside(faulty, [1])
    faulty.fail_next(error, after_steps=after_steps)
    with pytest.raises(DiskFull if error is NO_ROOM else Unavailable) as seen:
        swap(faulty, size)
    assert not isinstance(seen.value, DirectoryOffline)
    assert faulty.names(".cleaned", ".swap") == []
    assert read_all(faulty.log) == [0, 1, 2, 3, 4, 5, 6]
    assert swap(faulty, aside(faulty, [1])) is not None
    assert read_all(faulty.log) == [1, 4, 5, 6]


@pytest.mark.parametrize("error", [NO_ROOM, BROKEN])
def test_a_failure_half_way_takes_the_log_down_and_opening_finishes_it(
    faulty: FaultyBench, error: OSError
) -> None:
    faulty.open()
    faulty.fill(2, 2, 2, 1)
    faulty.log.flush()
    size = aside(faulty, [1])
    faulty.fail_next(error, after_steps=FIRST_OLD_FILE + 1)
    with pytest.raises(DirectoryOffline):
        swap(faulty, size)
    with pytest.raises(DirectoryOffline):
        faulty.log.append(make_batch())
    assert faulty.names(".deleted")
    faulty.crash(recovery_point=6)
    assert read_all(faulty.log) == [1, 4, 5, 6]
    assert bases(faulty.log) == [0, 4, 6]


# What cleaning asks of a log besides


def test_active_producers_tell_where_their_data_ends(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(2, producer_id=7, producer_epoch=3, base_sequence=0))
    bench.log.append(make_batch(producer_id=7, producer_epoch=3, base_sequence=2))
    bench.log.append(make_marker(True, producer_id=8, epoch=1), origin=AppendOrigin.COORDINATOR)
    shells = {7: LastRecord(3, 2), 8: LastRecord(1, None)}
    assert bench.log.active_producers() == shells
    bench.reopen()
    assert bench.log.active_producers() == shells


def test_aborted_transactions_are_collected_from_segments_behind_the_range(bench: Bench) -> None:
    bench.open()
    for first_producer in (1, 3):
        for number in (0, 1):
            bench.log.append(
                make_batch(
                    producer_id=first_producer + number,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )
        bench.log.roll()
        for number in (0, 1):
            bench.log.append(
                make_marker(False, producer_id=first_producer + number),
                origin=AppendOrigin.COORDINATOR,
            )
        bench.log.roll()
    found = bench.log.collect_aborted(0, 2)
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in found] == [
        (1, 0, 2),
        (2, 1, 3),
    ]
    assert [one.producer_id for one in bench.log.collect_aborted(3, 5)] == [2, 3]
    assert [one.producer_id for one in bench.log.collect_aborted(8, 9)] == []
