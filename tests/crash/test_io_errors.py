"""Failing calls and full disks: a named error, nothing acknowledged is lost (G1, G3, G7).

A failed sync poisons the log; a failed directory takes only its own partitions; a full disk refuses
the operation, and the next one works once there is room.
"""

import errno
import os

import pytest

from tests.crash.bench import (
    ACK,
    INTERVAL,
    PARTITION,
    TOPIC_ID,
    Bench,
    Scenario,
    judge,
    make_batch,
    new_disk,
    open_store,
)
from tests.crash.test_crash_at_every_step import SCENARIOS
from tests.support.log_model import check_equals, read_all
from varve.commit_log import LogSettings, TopicPartition
from varve.foundation.errors import (
    DirectoryOffline,
    DiskFull,
    LogPoisoned,
    NotFound,
    StoreError,
    Unavailable,
    UnexpectedOffset,
)
from varve.records import edit_batch
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

ACTIONS = [(name, INTERVAL) for name in SCENARIOS if not name.startswith("open")] + [
    (name, ACK) for name in ("append", "append many kinds", "roll", "truncate across segments")
]


def _system_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _fail_at(scenario: Scenario, step: int, error: OSError) -> tuple[Bench, StoreError | None]:
    """The bench after one failing call, and what the caller saw of it."""
    bench = scenario.prepared()
    bench.disk.fail_at(step, error)
    try:
        scenario.act(bench)
    except StoreError as seen:
        return bench, seen
    return bench, None


@pytest.mark.parametrize(("name", "settings"), ACTIONS)
def test_g1_g3_g7_a_failing_call_gives_a_named_error_and_loses_nothing(
    name: str, settings: LogSettings, rounds_factor: int
) -> None:
    scenario = Scenario(settings, *SCENARIOS[name])
    for step in scenario.steps():
        bench, seen = _fail_at(scenario, step, _system_error(errno.EIO))
        failed = bench.disk.trace[step - 1]
        try:
            _check_failed(name, bench, seen)
            mode = (CrashMode.KEEP_ALL, CrashMode.LOSE_UNSYNCED)[step % 2]
            if step % 3 == 0 or rounds_factor > 1:
                judge(bench, bench.disk.after_crash(mode), mode, with_close=False)
        except BaseException as error:
            error.add_note(f"failed at {failed}; the caller saw {seen!r}")
            raise


def _check_failed(name: str, bench: Bench, seen: StoreError | None) -> None:
    if seen is None or bench.store is None:
        return
    assert isinstance(seen, Unavailable)
    if name == "close":
        return
    with pytest.raises((DirectoryOffline, NotFound, Unavailable)):
        bench.store.get(PARTITION)


@pytest.mark.parametrize("settings", [INTERVAL, ACK], ids=["interval", "ack"])
@pytest.mark.parametrize("name", ["append many kinds", "roll", "flush", "delete records", "create"])
def test_g1_g7_a_full_disk_refuses_and_the_next_try_works(
    name: str, settings: LogSettings, rounds_factor: int
) -> None:
    """ENOSPC at every step; a sync that reports it poisons the log instead."""
    scenario = Scenario(settings, *SCENARIOS[name])
    for step in scenario.steps():
        bench, seen = _fail_at(scenario, step, _system_error(errno.ENOSPC))
        failed = bench.disk.trace[step - 1]
        try:
            _check_full(bench, seen)
            mode = (CrashMode.KEEP_ALL, CrashMode.LOSE_UNSYNCED)[step % 2]
            if step % 3 == 0 or rounds_factor > 1:
                judge(bench, bench.disk.after_crash(mode), mode, with_close=False)
        except BaseException as error:
            error.add_note(f"full at {failed}; the caller saw {seen!r}")
            raise


def _check_full(bench: Bench, seen: StoreError | None) -> None:
    if not isinstance(seen, DiskFull) or bench.store is None or not bench.is_created:
        return
    log = bench.log
    bench.outcome = None
    before = bench.model.log_start_offset
    # A deletion that could not be written down holds until the log is reopened, or is asked again.
    bench.model.log_start_offset = log.log_start_offset
    check_equals(log, bench.model)
    bench.append(3)
    bench.flush()
    check_equals(log, bench.model)
    bench.outcome = bench.model.copy()
    bench.outcome.log_start_offset = before


@pytest.mark.parametrize("room", range(0, 1200, 150))
def test_g1_g7_appends_go_on_once_space_is_freed(room: int) -> None:
    bench = Bench(new_disk(), INTERVAL)
    bench.start()
    bench.append(3)
    bench.disk.full_at(bench.disk.used_bytes() + room)
    with pytest.raises(DiskFull):
        bench.append(20)
    bench.outcome = None
    check_equals(bench.log, bench.model)
    with pytest.raises(DiskFull):
        bench.append(20)
    bench.outcome = None
    bench.disk.full_at(None)
    bench.append(10)
    bench.flush()
    check_equals(bench.log, bench.model)
    judge(bench, bench.disk.after_crash(CrashMode.LOSE_UNSYNCED), CrashMode.LOSE_UNSYNCED)


def test_g1_a_failed_sync_poisons_the_log_but_reads_go_on() -> None:
    bench = Bench(new_disk(), INTERVAL)
    bench.start()
    bench.append(5)
    log = bench.log
    bench.disk.fail_at(bench.disk.steps + 1, _system_error(errno.EIO))
    with pytest.raises(LogPoisoned):
        bench.flush()
    with pytest.raises(LogPoisoned):
        log.append(make_batch(99))
    with pytest.raises(LogPoisoned):
        log.flush()
    with pytest.raises(LogPoisoned):
        log.truncate_to(1)
    assert read_all(log) == [batch.data for batch in bench.model.batches]
    assert log.recovery_point == 0


def _two_directories(disk: FaultyFileSystem) -> tuple[Bench, TopicPartition]:
    """Two partitions of one store, each on its own disk."""
    bench = Bench(disk, ACK)
    bench.store = open_store(disk, ACK, ("/d/a", "/d/b"))
    bench.create()
    other = TopicPartition("orders", 1)
    bench.store.create(other, TOPIC_ID)
    assert {
        log.directory.rsplit("/", 1)[0] for log in map(bench.store.get, (PARTITION, other))
    } == {
        "/d/a",
        "/d/b",
    }
    return bench, other


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS])
def test_g7_a_failing_directory_takes_only_its_own_partitions(code: int) -> None:
    disk = new_disk()
    bench, other = _two_directories(disk)
    assert bench.store is not None
    bench.append(4)
    healthy = bench.store.get(other)
    broken = bench.log.directory.rsplit("/", 1)[0]
    disk.fail_under(broken, _system_error(code))
    with pytest.raises((DirectoryOffline, LogPoisoned)):
        bench.append()
    with pytest.raises(DirectoryOffline):
        bench.store.get(PARTITION)
    assert healthy.append(make_batch(1)).base_offset == 0
    bench.store.run_once(10**14)
    third = bench.store.create(TopicPartition("orders", 2), TOPIC_ID)
    assert not third.directory.startswith(broken)
    disk.mend()
    bench.store.abandon()
    store = open_store(disk, ACK, ("/d/a", "/d/b"))
    assert read_all(store.get(PARTITION))[:4] == [batch.data for batch in bench.model.batches]
    assert store.get(other).end_offset == 2


def test_g7_a_partition_made_elsewhere_after_a_failure_is_found_again() -> None:
    """What is left of the failed attempt does not keep the store from opening."""
    disk = new_disk()
    bench, _ = _two_directories(disk)
    assert bench.store is not None
    third = TopicPartition("orders", 2)
    attempt = disk.after_crash(CrashMode.KEEP_ALL)
    store = open_store(attempt, ACK, ("/d/a", "/d/b"))
    first = attempt.steps
    store.create(third, TOPIC_ID)
    for step in range(first + 1, attempt.steps + 1):
        again = disk.after_crash(CrashMode.KEEP_ALL)
        store = open_store(again, ACK, ("/d/a", "/d/b"))
        again.fail_from(step, _system_error(errno.EIO))
        with pytest.raises(StoreError):
            store.create(third, TOPIC_ID)
        again.mend()
        store.abandon()
        store = open_store(again, ACK, ("/d/a", "/d/b"))
        assert store.create(third, TOPIC_ID).append(make_batch(1)).base_offset == 0
        store.close()
        again = disk.after_crash(CrashMode.KEEP_ALL)
        store = open_store(again, ACK, ("/d/a", "/d/b"))
        again.fail_at(step, _system_error(errno.EIO))
        log = store.create(third, TOPIC_ID)
        log.append(make_batch(1))
        store.abandon()
        store = open_store(again, ACK, ("/d/a", "/d/b"))
        assert store.get(third).end_offset == 2, f"failed at step {step}"
        store.close()


def test_g7_a_replicated_set_that_no_segment_can_hold_is_refused_whole() -> None:
    bench = Bench(new_disk(), INTERVAL)
    bench.start()
    bench.append(2)
    near = bytes(edit_batch(make_batch(1), base_offset=10, leader_epoch=0))
    far = bytes(edit_batch(make_batch(2), base_offset=2**31 + 20, leader_epoch=0))
    with pytest.raises(UnexpectedOffset):
        bench.log.append_replicated(near + far)
    check_equals(bench.log, bench.model)
    judge(bench, bench.disk.after_crash(CrashMode.KEEP_ALL), CrashMode.KEEP_ALL)
    assert bench.log.append_replicated(far) is not None


def test_g7_an_unreadable_directory_at_start_leaves_the_others_open() -> None:
    disk = new_disk()
    bench, other = _two_directories(disk)
    assert bench.store is not None
    bench.store.close()
    disk.fail_under("/d/a", _system_error(errno.EACCES))
    store = open_store(disk, ACK, ("/d/a", "/d/b"))
    served = [one for one in (PARTITION, other) if one in store.partitions]
    assert len(served) == 1
    assert store.get(served[0]).end_offset == 0
    missing = PARTITION if served == [other] else other
    with pytest.raises(Unavailable):
        store.get(missing)
    with pytest.raises(Unavailable):
        store.create(missing, TOPIC_ID, is_new=False)
