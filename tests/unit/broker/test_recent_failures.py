"""Appends that the disk refuses are told, but not a thousand times."""

import asyncio

import pytest

import varve
from tests.support.broker_kit import ManualExecutor
from tests.support.log_bench import make_batch
from varve.broker.append_scheduler import AppendEntry, AppendScheduler, RecentFailures
from varve.broker.background import LoopTimers
from varve.broker.data.parked_fetches import ParkedFetches
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DiskFull

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


def test_a_full_disk_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with varve.open("data", fs=MemoryFileSystem(clock), clock=clock, maintain=False) as store:
        log = store.create_topic("orders").partition(0).log

        def fail(*_: object, **__: object) -> None:
            raise DiskFull("orders-0: no room")

        monkeypatch.setattr(type(log), "append", fail)
        loop = asyncio.new_event_loop()
        failures = RecentFailures("append failed", loop.time)
        fetches = ParkedFetches(LoopTimers(loop))
        appends = AppendScheduler(loop, fetches, failures, ManualExecutor())
        loop.run_until_complete(_append_once(appends, AppendEntry(log, make_batch())))
        loop.close()
        assert failures.find_recent() == "orders-0: no room"


async def _append_once(appends: AppendScheduler, part: AppendEntry) -> None:
    done = appends.submit([part])
    appends.run_once()
    await done
