"""Appends off the loop, by their own thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import varve
from tests.support.broker_kit import BrokerKit, ManualExecutor
from tests.support.data_requests import produce
from tests.support.log_bench import make_batch
from varve.broker.append_scheduler import AppendEntry, AppendScheduler, RecentFailures
from varve.broker.background import LoopTimers
from varve.broker.data.parked_fetches import ParkedFetches
from varve.commit_log import Log, TopicPartition
from varve.disk import MemoryFileSystem
from varve.embedded import Store
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, DiskFull, InvalidRecord, LogPoisoned
from varve.kernels.crc import crc32c
from varve.records import Codec, Record, build_batch
from varve.wire import ErrorCode

Work = Callable[[AppendScheduler], Coroutine[Any, Any, None]]


@pytest.fixture
def store() -> Store:
    clock = ManualClock()
    store = varve.open("data", fs=MemoryFileSystem(clock), clock=clock, maintain=False)
    store.create_topic("plain", partitions=2)
    store.create_topic("safe", partitions=2, settings={"flush": "ack"})
    return store


def log_of(store: Store, topic: str, partition: int = 0) -> Log:
    return store.topic(topic).partition(partition).log


def run(work: Work, *, is_started: bool = True, check_pool: Executor | None = None) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        fetches, failures = ParkedFetches(LoopTimers(loop)), RecentFailures("failed", loop.time)
        with ThreadPoolExecutor(4) as sync_pool:
            appends = AppendScheduler(loop, fetches, failures, sync_pool, check_pool=check_pool)
            if is_started:
                appends.start()
            try:
                await work(appends)
            finally:
                await loop.run_in_executor(None, appends.stop)

    asyncio.run(main())


def test_what_is_submitted_is_appended_in_order(store: Store) -> None:
    log = log_of(store, "plain")

    async def work(appends: AppendScheduler) -> None:
        parts = [AppendEntry(log, make_batch()) for _ in range(300)]
        await asyncio.gather(*(appends.submit([one]) for one in parts))
        assert [one.result and one.result.base_offset for one in parts] == list(range(300))

    run(work)


def test_readers_are_told_of_what_they_may_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[TopicPartition] = set()
    monkeypatch.setattr(ParkedFetches, "partitions_appended", lambda _, found: told.update(found))

    async def work(appends: AppendScheduler) -> None:
        await appends.submit([AppendEntry(log_of(store, "plain", 1), make_batch())])
        assert told == {TopicPartition("plain", 1)}
        log = log_of(store, "safe")
        await appends.submit([AppendEntry(log, make_batch(2))])
        assert log.high_watermark == 2
        assert TopicPartition("safe", 0) in told

    run(work)


def test_a_sync_that_fails_fails_what_waited_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(store, "safe")

    def fail() -> None:
        raise LogPoisoned("the sync failed")

    async def work(appends: AppendScheduler) -> None:
        await appends.submit([AppendEntry(log, make_batch())])
        monkeypatch.setattr(log, "sync_appends", fail)
        plain = AppendEntry(log_of(store, "plain"), make_batch())
        parts = [AppendEntry(log, make_batch()), plain]
        await appends.submit(parts)
        assert isinstance(parts[0].error, LogPoisoned)
        assert plain.result is not None
        assert plain.error is None

    run(work)
    assert log.high_watermark == 1


def test_a_sync_that_fails_fails_all_submissions_that_share_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(store, "safe")

    def fail() -> None:
        raise LogPoisoned("the sync failed")

    async def work(appends: AppendScheduler) -> None:
        monkeypatch.setattr(log, "sync_appends", fail)
        parts = [AppendEntry(log, make_batch()) for _ in range(3)]
        submitted = [appends.submit([one]) for one in parts]
        assert appends.run_once()
        await asyncio.gather(*submitted)
        assert all(isinstance(one.error, LogPoisoned) for one in parts)

    run(work, is_started=False)


def test_a_submission_is_complete_when_all_its_logs_are_synced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (log_of(store, "safe", partition) for partition in (0, 1))
    may_sync, sync = threading.Event(), second.sync_appends

    def wait_and_sync() -> None:
        may_sync.wait(10)
        sync()

    async def work(appends: AppendScheduler) -> None:
        monkeypatch.setattr(second, "sync_appends", wait_and_sync)
        submitted = appends.submit([AppendEntry(log, make_batch()) for log in (first, second)])
        await asyncio.wait([submitted], timeout=0.2)
        assert (first.high_watermark, submitted.done()) == (1, False)
        may_sync.set()
        await submitted
        assert second.high_watermark == 1

    run(work)


def large_content() -> bytes:
    """A small batch that unpacks to megabytes."""
    return bytes(build_batch([Record(b"k", bytes(4 << 20))], codec=Codec.ZSTD))


def test_a_batch_that_takes_long_to_check_delays_its_log_alone(store: Store) -> None:
    checks = ManualExecutor()
    log, other = log_of(store, "plain"), log_of(store, "safe")
    batches = [large_content(), make_batch(), large_content(), make_batch()]
    entries = [AppendEntry(log, batch) for batch in batches]

    async def work(appends: AppendScheduler) -> None:
        first = appends.submit([entries[0], AppendEntry(other, make_batch())])
        later = [appends.submit([entry]) for entry in entries[1:]]
        assert appends.run_once()
        assert (log.end_offset, other.end_offset) == (0, 1)
        for end_offset in (2, 4):
            assert checks.run_once()
            assert not checks.count
            assert appends.run_once()
            assert log.end_offset == end_offset
        await asyncio.gather(first, *later)
        assert [one.result and one.result.base_offset for one in entries] == [0, 1, 2, 3]

    run(work, is_started=False, check_pool=checks)


def test_a_batch_whose_long_check_fails_does_not_keep_those_behind_it(store: Store) -> None:
    log = log_of(store, "safe")
    broken = bytearray(large_content())
    broken[-1] ^= 1
    broken[17:21] = crc32c(np.frombuffer(broken, np.uint8), 21, len(broken)).to_bytes(4)
    entries = [AppendEntry(log, large_content()), AppendEntry(log, bytes(broken))]
    entries += [AppendEntry(log, make_batch())]

    async def work(appends: AppendScheduler) -> None:
        await asyncio.gather(*(appends.submit([entry]) for entry in entries))
        assert isinstance(entries[1].error, InvalidRecord)
        assert [one.result and one.result.base_offset for one in entries] == [0, None, 1]
        assert log.high_watermark == 2

    with ThreadPoolExecutor(1) as check_pool:
        run(work, check_pool=check_pool)


def test_a_stop_waits_for_long_checks(store: Store) -> None:
    log = log_of(store, "plain")

    async def work(appends: AppendScheduler) -> None:
        waiting = [appends.submit([AppendEntry(log, large_content())]) for _ in range(3)]
        await asyncio.get_running_loop().run_in_executor(None, appends.stop)
        await asyncio.gather(*waiting)

    with ThreadPoolExecutor(1) as check_pool:
        run(work, check_pool=check_pool)
    assert log.end_offset == 3


def test_a_stop_appends_what_was_submitted_and_nothing_after(store: Store) -> None:
    log = log_of(store, "plain")

    async def work(appends: AppendScheduler) -> None:
        waiting = [appends.submit([AppendEntry(log, make_batch())]) for _ in range(50)]
        await asyncio.get_running_loop().run_in_executor(None, appends.stop)
        await asyncio.gather(*waiting)
        with pytest.raises(Closed):
            appends.submit([AppendEntry(log, make_batch())])

    run(work)
    assert log.end_offset == 50


PARTITION = TopicPartition("orders", 0)


def test_a_failure_is_logged_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    failures = RecentFailures("failed", lambda: now)
    for step in range(100):
        now = step / 5
        failures.record(PARTITION, DiskFull("no room"))
    assert [vars(one)["unlogged_before"] for one in caplog.records] == [0, 49]


def test_a_failure_is_recent_for_a_minute() -> None:
    now = 0.0
    failures = RecentFailures("failed", lambda: now)
    assert failures.find_recent() is None
    failures.record(PARTITION, DiskFull("no room"))
    now = 59.0
    assert failures.find_recent() == "no room"
    now = 60.0
    assert failures.find_recent() is None


def test_a_full_disk_is_noted(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DiskFull("events-0: no room")

    monkeypatch.setattr(type(kit.log("events")), "append_checked", fail)
    assert produce(kit).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert kit.broker.failed_appends.find_recent() == "events-0: no room"
