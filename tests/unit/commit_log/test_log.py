"""What a log does itself: deleting records, maintenance, other settings, its segments."""

import dataclasses
from typing import Any

import pytest

from tests.support.log_bench import (
    NO_ROOM,
    Bench,
    FaultyBench,
    before_write,
    make_batch,
)
from varve.commit_log import TopicPartition
from varve.foundation.errors import (
    DirectoryOffline,
    DiskFull,
    InvalidRecord,
    InvalidRequest,
    OffsetOutOfRange,
    PolicyViolation,
    RecordTooLarge,
)
from varve.records import Record, build_batch


def test_minus_one_means_the_high_watermark(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(4)
    bench.log.advance_high_watermark(3)
    assert bench.log.delete_records(-1) == 3


@pytest.mark.parametrize("offset", [-2, 4])
def test_other_negative_offsets_and_those_above_the_high_watermark_are_out_of_range(
    bench: Bench, offset: int
) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(4)
    bench.log.advance_high_watermark(3)
    with pytest.raises(OffsetOutOfRange):
        bench.log.delete_records(offset)
    assert bench.log.log_start_offset == 0


def test_lower_offsets_are_ignored_silently(bench: Bench) -> None:
    bench.open()
    bench.fill(4)
    bench.log.delete_records(3)
    assert bench.log.delete_records(1) == 3


def test_records_of_a_compacted_topic_are_not_deleted(bench: Bench) -> None:
    bench.set(cleanup_policy=("compact",)).open()
    bench.fill(2)
    with pytest.raises(PolicyViolation, match="compact"):
        bench.log.delete_records(1)


def test_compact_and_delete_allows_it(bench: Bench) -> None:
    bench.set(cleanup_policy=("compact", "delete")).open()
    bench.fill(2)
    assert bench.log.delete_records(1) == 1


def test_files_stay_until_retention(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2)
    bench.log.delete_records(3)
    assert len(bench.names(".log")) == 2


def test_delete_records_cuts_the_epochs_from_the_start(bench: Bench) -> None:
    bench.open()
    for epoch in (1, 2, 3):
        bench.log.append(make_batch(2), leader_epoch=epoch)
    bench.log.delete_records(3)
    assert bench.fs.read("data/topic-0/leader-epoch-checkpoint") == b"0\n2\n2 3\n3 4\n"


def test_delete_records_keeps_producers(bench: Bench) -> None:
    bench.open()
    batch = make_batch(producer_id=1, producer_epoch=0, base_sequence=0)
    bench.log.append(batch)
    bench.fill(1)
    bench.log.delete_records(2)
    assert bench.log.append(batch).is_duplicate


def test_delete_records_is_checkpointed_before_it_returns(bench: Bench) -> None:
    written: list[int] = []
    bench.open()
    log_starts = bench.log.checkpoints.log_starts
    before_write(log_starts, lambda: written.append(bench.log.log_start_offset))
    bench.fill(2)
    bench.log.delete_records(1)
    assert written == [1]


def test_a_checkpoint_that_finds_no_room_is_told_and_may_be_repeated(faulty: FaultyBench) -> None:
    failures = [NO_ROOM]

    def write() -> None:
        if failures:
            raise failures.pop()

    faulty.open()
    before_write(faulty.log.checkpoints.log_starts, write)
    faulty.fill(2)
    with pytest.raises(DiskFull):
        faulty.log.delete_records(1)
    assert faulty.log.delete_records(1) == 1


def test_a_checkpoint_that_went_offline_meanwhile_is_no_success(bench: Bench) -> None:
    offline = DirectoryOffline("gone")
    bench.open()
    checkpoints = bench.log.checkpoints
    before_write(checkpoints.log_starts, lambda: checkpoints.health.fail(offline))
    bench.fill(2)
    with pytest.raises(DirectoryOffline):
        bench.log.delete_records(1)


def test_maintenance_of_a_closed_log_does_nothing(bench: Bench) -> None:
    bench.open()
    bench.log.close()
    bench.log.maintain(bench.clock.now_ms())


def test_a_log_tells_what_it_is(bench: Bench) -> None:
    log = bench.open()
    bench.fill(2)
    assert log.topic_partition == TopicPartition("topic", 0)
    assert log.directory == "data/topic-0"
    assert log.settings is bench.settings
    assert log.size == 2 * len(make_batch())
    assert log.recovered == []


def test_end_offsets_of_epochs(bench: Bench) -> None:
    bench.open()
    for epoch in (2, 5):
        bench.log.append(make_batch(3), leader_epoch=epoch)
    assert bench.log.end_offset_for_epoch(5) == (5, 6)
    assert bench.log.end_offset_for_epoch(3) == (2, 3)
    assert bench.log.end_offset_for_epoch(1) == (1, 0)
    assert bench.log.end_offset_for_epoch(6) is None


@pytest.mark.parametrize("offset", [1.5, "1", None])
def test_records_are_not_deleted_before_what_is_no_offset(bench: Bench, offset: Any) -> None:
    bench.open()
    bench.fill(3)
    with pytest.raises(InvalidRequest, match="as an int"):
        bench.log.delete_records(offset)
    assert bench.log.log_start_offset == 0


# Settings that change while a log is open


BATCH = build_batch([Record(key=None, value=bytes(200), timestamp=1)])


def test_other_settings_hold_from_the_next_append_on(bench: Bench) -> None:
    bench.open()
    log = bench.log
    log.append(BATCH)
    log.configure(dataclasses.replace(log.settings, cleanup_policy=("compact",)))
    with pytest.raises(InvalidRecord, match="no key"):
        log.append(BATCH)
    log.configure(dataclasses.replace(log.settings, cleanup_policy=("delete",)))
    assert log.append(BATCH).base_offset == 1
    log.configure(dataclasses.replace(log.settings, max_message_bytes=100))
    with pytest.raises(RecordTooLarge):
        log.append(BATCH)


def test_a_smaller_segment_size_rolls_at_the_next_append(bench: Bench) -> None:
    bench.open()
    log = bench.log
    log.append(BATCH)
    log.configure(dataclasses.replace(log.settings, segment_bytes=len(BATCH)))
    log.append(BATCH)
    assert len(log.view) == 2


# The segments of a log at one moment


def bases_from(bench: Bench, offset: int) -> list[int]:
    return [segment.base_offset for segment in bench.log.view.from_offset(offset)]


def test_a_view_leads_from_the_segment_that_would_hold_an_offset(bench: Bench) -> None:
    bench.open()
    bench.log.reset_at(10)
    bench.fill(2, 3, 4)
    assert len(bench.log.view) == 3
    expected = {0: [10, 12, 15], 10: [10, 12, 15], 11: [10, 12, 15], 12: [12, 15], 14: [12, 15]}
    expected |= {15: [15], 18: [15], 99: [15]}
    assert {offset: bases_from(bench, offset) for offset in expected} == expected


def test_a_view_is_not_changed_by_a_roll(bench: Bench) -> None:
    bench.open()
    bench.fill(1)
    view = bench.log.view
    bench.log.roll()
    assert [segment.base_offset for segment in view] == [0]
    assert [segment.base_offset for segment in bench.log.view] == [0, 1]
    assert bench.log.view.first_base_offset == 0
