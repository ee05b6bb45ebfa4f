"""Each sentence of what a truncation does."""

import pytest

from tests.support.log_bench import (
    BROKEN,
    NO_ROOM,
    NOW_MS,
    Bench,
    FaultyBench,
    before_write,
    make_batch,
    read_all,
)
from varve.commit_log.names import log_name
from varve.foundation.errors import DirectoryOffline, DiskFull, InvalidRequest

SIZE = len(make_batch())


def bases(bench: Bench) -> list[int]:
    return [segment.base_offset for segment in bench.log.view]


def epochs(bench: Bench) -> bytes:
    return bench.fs.read("data/topic-0/leader-epoch-checkpoint")


def test_at_the_log_end_epochs_that_begin_there_are_dropped(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(), leader_epoch=1)
    bench.log.leader_epochs.assign(2, 1)
    bench.log.write_epochs()
    bench.log.truncate_to(1)
    assert epochs(bench) == b"0\n1\n1 0\n"


def test_a_negative_offset_is_refused(bench: Bench) -> None:
    bench.open()
    for act in (bench.log.truncate_to, bench.log.reset_at):
        with pytest.raises(InvalidRequest):
            act(-1)


def test_below_the_first_segment_everything_goes_and_the_log_starts_there(bench: Bench) -> None:
    bench.open()
    bench.log.reset_at(10)
    bench.fill(2, 2)
    assert bench.log.truncate_to(4)
    assert bases(bench) == [4]
    assert (bench.log.log_start_offset, bench.log.end_offset, bench.log.high_watermark) == (4, 4, 4)
    assert bench.log.append(make_batch()).base_offset == 4


def test_later_segments_are_marked_and_removed_after_the_delay(bench: Bench) -> None:
    bench.set(file_delete_delay_ms=1000).open()
    bench.fill(2, 2, 2)
    bench.log.truncate_to(1)
    assert bases(bench) == [0]
    assert log_name(2, ".log.deleted") in bench.names()
    assert bench.names(".log") == [log_name(0)]
    bench.log.maintain(bench.clock.now_ms() + 999)
    assert log_name(4, ".index.deleted") not in bench.names(".log")
    assert log_name(2, ".log.deleted") in bench.names()
    bench.log.maintain(bench.clock.now_ms() + 1000)
    assert bench.names(".deleted") == []


def test_a_segment_that_begins_at_the_offset_is_kept_empty(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2)
    bench.log.truncate_to(2)
    assert bases(bench) == [0, 2]
    assert bench.log.view.active.size == 0
    assert bench.log.end_offset == 2


def test_a_batch_that_straddles_the_offset_disappears(bench: Bench) -> None:
    bench.open()
    bench.fill(3, count=4)
    bench.log.truncate_to(6)
    assert read_all(bench.log) == [0, 1, 2, 3]
    assert bench.log.end_offset == 6
    assert bench.log.append(make_batch()).base_offset == 6


def test_indexes_are_cut(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    for time in range(6):
        bench.log.append(make_batch(time=time))
    bench.log.truncate_to(3)
    active = bench.log.view.active
    assert active.offset_index().entries().tolist() == [[1, SIZE], [2, 2 * SIZE]]
    assert active.time_index().entries().tolist() == [[NOW_MS + 1, 1], [NOW_MS + 2, 2]]


def test_indexes_may_grow_again(bench: Bench) -> None:
    bench.set(index_interval_bytes=0, segment_index_bytes=60).open()
    bench.fill(4)
    bench.log.truncate_to(2)
    assert not bench.log.view.active.offset_index().is_full


def test_the_recovery_point_is_lowered_on_disk_before_the_cut(bench: Bench) -> None:
    seen: list[tuple[int, int]] = []
    bench.open()
    before_write(
        bench.log.checkpoints.recovery_points,
        lambda: seen.append((bench.log.recovery_point, bench.log.end_offset)),
    )
    bench.fill(4)
    bench.log.flush()
    bench.log.truncate_to(2)
    assert seen == [(2, 4)]
    assert bench.log.recovery_point == 2


def test_a_recovery_point_below_the_offset_stays(bench: Bench) -> None:
    bench.open()
    bench.fill(2)
    bench.log.flush()
    bench.fill(3)
    bench.log.truncate_to(4)
    assert bench.log.recovery_point == 2


def test_the_log_start_is_lowered_and_checkpointed(bench: Bench) -> None:
    written: list[int] = []
    bench.open()
    log_starts = bench.log.checkpoints.log_starts
    before_write(log_starts, lambda: written.append(bench.log.log_start_offset))
    bench.fill(6)
    bench.log.delete_records(5)
    bench.log.truncate_to(3)
    assert bench.log.log_start_offset == 3
    assert written == [5, 3]


def test_epochs_that_begin_at_or_above_the_offset_are_dropped(bench: Bench) -> None:
    bench.open()
    for epoch in (1, 2, 3):
        bench.log.append(make_batch(2), leader_epoch=epoch)
    bench.log.truncate_to(4)
    assert epochs(bench) == b"0\n2\n1 0\n2 2\n"


def test_snapshots_above_the_offset_go_and_producers_are_reloaded(bench: Bench) -> None:
    bench.open()
    for sequence in range(3):
        bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
        bench.log.roll()
    bench.log.truncate_to(2)
    assert bench.names(".snapshot") == [log_name(1, ".snapshot"), log_name(2, ".snapshot")]
    again = bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=2))
    assert (again.base_offset, again.is_duplicate) == (2, False)


def test_messages_of_producers_name_the_partition_after_a_truncation(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(2, producer_id=1, producer_epoch=3, base_sequence=0))
    bench.fill(1)
    bench.log.truncate_to(2)
    with pytest.raises(Exception, match="topic-0: producer 1"):
        bench.log.append(make_batch(producer_id=1, producer_epoch=2, base_sequence=0))


# Restart


def test_restart_leaves_one_empty_segment_at_the_offset(bench: Bench) -> None:
    bench.open()
    bench.log.append(
        make_batch(2, producer_id=1, producer_epoch=0, base_sequence=0), leader_epoch=4
    )
    bench.fill(1, 1)
    bench.log.reset_at(20)
    assert bases(bench) == [20]
    assert bench.names(".snapshot") == []
    assert epochs(bench) == b"0\n0\n"
    state = (bench.log.log_start_offset, bench.log.end_offset, bench.log.high_watermark)
    assert state == (20, 20, 20)
    assert bench.log.recovery_point == 20
    assert (
        bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=5)).base_offset
        == 20
    )


def test_a_restart_writes_the_log_start_before_the_last_segment_goes(bench: Bench) -> None:
    """A load of a directory without segments begins at the log start on disk."""
    seen: list[tuple[int, list[str]]] = []
    bench.open()
    bench.fill(2, 2)
    before_write(
        bench.log.checkpoints.log_starts,
        lambda: seen.append((bench.log.log_start_offset, bench.names(".log"))),
    )
    bench.log.reset_at(20)
    assert seen[0] == (20, [log_name(0)])


# What fails


def test_a_full_disk_before_the_cut_changes_nothing(faulty: FaultyBench) -> None:
    def refuse() -> None:
        raise NO_ROOM

    faulty.open()
    before_write(faulty.log.checkpoints.recovery_points, refuse)
    faulty.fill(4)
    faulty.log.flush()
    with pytest.raises(DiskFull):
        faulty.log.truncate_to(2)
    assert read_all(faulty.log) == [0, 1, 2, 3]
    faulty.fill(1)


@pytest.mark.parametrize("error", [NO_ROOM, BROKEN])
def test_any_failure_after_it_began_takes_the_log_down(faulty: FaultyBench, error: OSError) -> None:
    faulty.open()
    faulty.fill(2, 2, 2)
    faulty.fail_next(error, after_steps=7)
    with pytest.raises(DirectoryOffline):
        faulty.log.truncate_to(1)
    with pytest.raises(DirectoryOffline):
        faulty.log.append(make_batch())
    faulty.fs.mend()
    faulty.open()
    assert read_all(faulty.log)[0] == 0


def test_the_key_indexes_of_what_is_cut_go(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2, 2)
    for offset in (0, 2):
        bench.write(offset, ".keys", b"sidecar")
    bench.log.truncate_to(3)
    assert bench.names(".keys") == [log_name(0, ".keys")]
    bench.log.reset_at(0)
    assert bench.names(".keys") == []


def test_the_cleaner_offset_is_lowered_before_the_cut(bench: Bench) -> None:
    seen: list[int] = []
    bench.open()
    bench.fill(2, 2)
    cleaner_offsets, partition = bench.log.checkpoints.cleaner_offsets, bench.log.topic_partition
    cleaner_offsets.write(partition, 4)
    before_write(cleaner_offsets, lambda: seen.append(bench.log.end_offset))
    bench.log.truncate_to(9)
    assert (seen, cleaner_offsets.find(partition)) == ([], 4)
    bench.log.truncate_to(3)
    assert (seen, cleaner_offsets.find(partition)) == ([4], 3)
    bench.log.reset_at(1)
    assert (seen, cleaner_offsets.find(partition)) == ([4, 3], 1)
