"""Retention of logs on disk: the evidence first, then the segments (G5)."""

import errno
import random
from typing import Any
from uuid import UUID

import pytest

from tests.support.log_bench import (
    DIRECTORY,
    NO_ROOM,
    NOW_MS,
    Bench,
    FaultyBench,
    make_batch,
    read_all,
)
from varve.cleaning.metrics import CleanerMetrics
from varve.cleaning.removals.removal import Reason, RemovalKind
from varve.cleaning.removals.removal_log import RemovalLog, RemovalLogs
from varve.cleaning.retention.retention import LogRetention, Retention
from varve.cleaning.retention.rules import RetentionLimits, TimestampSource
from varve.cleaning.retention.segments import list_segments
from varve.commit_log import Log, LogManager, LogSettings, TopicPartition
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DiskFull, OffsetOutOfRange
from varve.testing.faulty_disk import FaultyFileSystem

DAY = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def faulty(clock: ManualClock) -> FaultyBench:
    return FaultyBench(FaultyFileSystem(clock), clock)


@pytest.fixture
def bench(faulty: FaultyBench) -> Bench:
    return faulty


def evidence_of(bench: Bench) -> RemovalLog:
    return RemovalLog(bench.fs, DIRECTORY)


def retention_of(bench: Bench) -> LogRetention:
    return LogRetention(bench.log, evidence_of(bench))


def expire_at(bench: Bench, days: float) -> list[int]:
    bench.clock.advance(int(days * DAY))
    removed = retention_of(bench).expire(bench.clock.now_ms())
    return [one.base_offset for one in removed.segments]


def test_segments_go_when_their_time_has_come(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 3)
    bench.clock.advance(DAY)
    bench.log.roll()
    bench.log.append(make_batch(time=DAY))
    assert expire_at(bench, 6) == []
    assert expire_at(bench, 0.5) == [0, 2]
    assert bench.log.log_start_offset == 5
    assert read_all(bench.log) == [5]
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(start_offset=4)


def test_when_everything_is_due_the_log_rolls_and_loses_all(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 3)
    assert expire_at(bench, 8) == [0, 2]
    assert bench.log.log_start_offset == bench.log.end_offset == 5
    assert [one.base_offset for one in bench.log.view] == [5]
    assert bench.log.append(make_batch()).base_offset == 5
    assert expire_at(bench, 0) == []


def test_an_expiry_puts_its_balance_on_record(bench: Bench) -> None:
    bench.set(retention_bytes=100).open()
    bench.fill(2, 1, count=4)
    bench.log.roll()
    bench.fill(1, count=4)
    assert expire_at(bench, 0) == [0, 8]
    (entry,) = evidence_of(bench).read()
    balance = entry.removal
    assert entry.is_done
    assert (balance.kind, balance.end_offset) == (RemovalKind.EXPIRY, 12)
    assert balance.records == {Reason.EXPIRED_SIZE: 12}
    assert balance.bytes == {Reason.EXPIRED_SIZE: sum(one.size for one in balance.inputs)}
    assert [one.records for one in balance.inputs] == [8, 4]
    assert all(one.log_crc is not None for one in balance.inputs)
    assert "retention.bytes=100" in balance.rule


def test_each_reason_is_counted_by_itself(bench: Bench) -> None:
    bench.open()
    bench.fill(1, 1, 1, count=3)
    bench.log.delete_records(3)
    assert expire_at(bench, 8) == [0, 3, 6]
    (entry,) = evidence_of(bench).read()
    assert entry.removal.records == {Reason.BELOW_LOG_START: 3, Reason.EXPIRED_TIME: 6}


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_damaged_batch_does_not_stop_retention(bench: Bench, batch: int) -> None:
    bench.set(index_interval_bytes=1).open()
    bench.fill(3, 2)
    size = len(bench.read_file(0)) // 3
    with bench.fs.open_writable(bench.path(0, ".log")) as file:
        file.write_at(batch * size, bytes(size))
    bench.reopen()
    assert bench.log.find_offset_by_time(NOW_MS + DAY) is None
    assert expire_at(bench, 6) == []
    assert expire_at(bench, 2) == [0, 3]
    assert bench.log.log_start_offset == 5


def test_a_damaged_segment_goes_and_is_counted_as_far_as_it_can_be_read(bench: Bench) -> None:
    bench.open()
    bench.fill(3, 1)
    bench.log.roll()
    data = bench.read_file(0)
    with bench.fs.open_writable(bench.path(0, ".log")) as file:
        file.write_at(len(data) // 3 + 16, b"\x07")  # the second batch's magic
    assert expire_at(bench, 8) == [0, 3]
    (entry,) = evidence_of(bench).read()
    assert entry.removal.records == {Reason.EXPIRED_TIME: 2}
    assert [one.log_crc is None for one in entry.removal.inputs] == [True, False]
    assert f"damaged at position {len(data) // 3} of {len(data)}" in entry.removal.rule


def test_nothing_goes_without_evidence(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(2, 3)
    faulty.log.roll()
    faulty.clock.advance(8 * DAY)
    faulty.fail_next(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        retention_of(faulty).expire(faulty.clock.now_ms())
    assert faulty.log.log_start_offset == 0
    assert read_all(faulty.log) == [0, 1, 2, 3, 4]


def test_a_look_changes_nothing(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 3)
    bench.clock.advance(8 * DAY)
    found = retention_of(bench).plan(bench.clock.now_ms())
    assert found.rolls_active
    assert (found.end_offset, len(found.segments)) == (5, 2)
    assert len(bench.log.view) == 2
    assert evidence_of(bench).read() == []


def test_a_look_may_be_taken_under_other_settings(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 3)
    now_ms = bench.clock.now_ms() + DAY
    assert retention_of(bench).plan(now_ms).segments == ()
    assert retention_of(bench).plan(now_ms, LogSettings(retention_ms=DAY - 1)).segments


@pytest.mark.parametrize("time", [400 * DAY, -400 * DAY])
def test_an_absurd_timestamp_neither_pins_nor_destroys(bench: Bench, time: int) -> None:
    bench.open()
    bench.fill(1, 1, time=time)
    times = list_segments(bench.log).segments[0].times()
    since = RetentionLimits.total(bench.log.settings).timestamp(times)
    assert (since.ms, since.source) == (NOW_MS, TimestampSource.APPEND)
    assert expire_at(bench, 6.9) == []
    assert expire_at(bench, 0.2) == [0, 1]


def test_what_is_not_replicated_stays(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(2, 3)
    bench.log.advance_high_watermark(4)
    assert expire_at(bench, 8) == [0]
    bench.log.advance_high_watermark(5)
    assert expire_at(bench, 0) == [2]


def test_an_append_while_all_expires_is_kept(bench: Bench, monkeypatch: Any) -> None:
    bench.open()
    bench.fill(2)
    roll = bench.log.roll

    def roll_and_append() -> None:
        roll()
        bench.log.append(make_batch())

    monkeypatch.setattr(bench.log, "roll", roll_and_append)
    assert expire_at(bench, 8) == [0]
    assert read_all(bench.log) == [2]


def test_a_disk_too_full_to_roll_still_loses_its_closed_segments(
    bench: Bench, monkeypatch: Any
) -> None:
    bench.open()
    bench.fill(2, 3)

    def refuse() -> None:
        raise DiskFull("no room for a new segment")

    monkeypatch.setattr(bench.log, "roll", refuse)
    assert expire_at(bench, 8) == [0]
    assert read_all(bench.log) == [2, 3, 4]


class Fleet:
    """A store with some partitions, and retention over it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fs = FaultyFileSystem(clock)
        self.policies: dict[str, Any] = {}
        self.store = LogManager(
            ["d"],
            fs=self.fs,
            clock=clock,
            random=random.Random(5),
            topic_settings=lambda topic: LogSettings(**self.policies.get(topic, {})),
        ).open()
        self.removals = RemovalLogs(self.store)
        self.metrics = CleanerMetrics(clock=clock, store=self.store)
        self.retention = Retention(self.store, self.removals, self.metrics)

    def evidence(self, log: Log) -> RemovalLog:
        return self.removals.get(log)

    def make(self, topic: str, **policy: Any) -> Log:
        self.policies[topic] = policy
        log = self.store.create(TopicPartition(topic, 0), UUID(int=len(self.policies)))
        for _ in range(3):
            log.append(make_batch())
            log.roll()
        return log

    def run(self) -> dict[str, int]:
        expired = self.retention.run_once(self.clock.now_ms())
        return {str(one.partition): len(one.segments) for one in expired}


@pytest.fixture
def fleet(clock: ManualClock) -> Fleet:
    return Fleet(clock)


def test_a_pass_takes_every_log_that_is_not_compacted(fleet: Fleet) -> None:
    fleet.make("a")
    fleet.make("b", retention_ms=-1)
    fleet.make("c", cleanup_policy=("compact", "delete"))
    fleet.make("e", retention_bytes=0)
    assert fleet.run() == {"e-0": 3}
    fleet.clock.advance(8 * DAY)
    assert fleet.run() == {"a-0": 3}
    log = fleet.store.get(TopicPartition("c", 0))
    assert len(fleet.retention.expire(log, fleet.clock.now_ms()).segments) == 3


def test_a_log_that_fails_does_not_stop_the_others(fleet: Fleet, monkeypatch: Any) -> None:
    broken, _ = fleet.make("a"), fleet.make("b")
    fleet.clock.advance(8 * DAY)

    def refuse(offset: int, *, now_ms: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(broken, "drop_segments_before", refuse)
        assert fleet.run() == {"b-0": 3}
        assert "broken" in fleet.retention.failures[TopicPartition("a", 0)]
    assert fleet.run() == {"a-0": 3}
    assert fleet.retention.failures == {}
    assert [one.is_done for one in fleet.evidence(broken).read()] == [False, True]


def test_a_full_disk_is_freed_and_the_evidence_follows(fleet: Fleet, monkeypatch: Any) -> None:
    log = fleet.make("a")
    fleet.clock.advance(8 * DAY)
    evidence = fleet.evidence(log)

    def refuse(balance: object) -> None:
        raise NO_ROOM

    with monkeypatch.context() as patch:
        patch.setattr(evidence, "append", refuse)
        assert fleet.run() == {"a-0": 3}
        assert fleet.run() == {}
    assert evidence.read() == []
    assert fleet.run() == {}
    (entry,) = evidence.read()
    assert entry.is_done
    assert entry.removal.records == {Reason.EXPIRED_TIME: 3}
    assert "the disk was full" in entry.removal.rule


def test_whose_timestamps_were_not_believed_is_told(fleet: Fleet) -> None:
    log = fleet.store.create(TopicPartition("a", 0), UUID(int=9))
    log.append(make_batch(time=400 * DAY))
    log.roll()
    log.append(make_batch())
    fleet.run()
    (notes,) = fleet.retention.rejected.values()
    assert list(notes) == [0]
    assert "after the last append" in notes[0].note


def test_a_deleted_partition_is_forgotten(fleet: Fleet) -> None:
    fleet.make("a")
    fleet.run()
    fleet.store.delete(TopicPartition("a", 0))
    fleet.run()
    assert fleet.retention.rejected == {}


def test_a_pass_looks_at_each_log_a_constant_number_of_times(
    fleet: Fleet, monkeypatch: Any
) -> None:
    """It was quadratic in the number of partitions: every log was looked up by a walk over all."""
    for number in range(12):
        fleet.make(f"t{number}")
    walks = 0
    logs = fleet.store.logs

    def count() -> Any:
        nonlocal walks
        walks += 1
        return logs()

    monkeypatch.setattr(fleet.store, "logs", count)
    fleet.clock.advance(8 * DAY)
    assert len(fleet.run()) == 12
    assert walks <= 1
