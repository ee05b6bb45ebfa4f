"""Appends that the disk refuses are told, but not a thousand times."""

import asyncio

import pytest

import varve
from tests.support.log_bench import make_batch
from varve.broker.appends import AppendPart, Appends
from varve.broker.refusals import Refusals
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DiskFull

PARTITION = TopicPartition("orders", 0)


def test_a_refusal_is_logged_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals("refused", lambda: now)
    for step in range(100):
        now = step / 5
        refusals.note(PARTITION, DiskFull("no room"))
    assert [vars(one)["untold_before"] for one in caplog.records] == [0, 49]


def test_a_refusal_is_recent_for_a_minute() -> None:
    now = 0.0
    refusals = Refusals("refused", lambda: now)
    assert refusals.find_recent() is None
    refusals.note(PARTITION, DiskFull("no room"))
    now = 59.0
    assert refusals.find_recent() == "no room"
    now = 60.0
    assert refusals.find_recent() is None


def test_a_full_disk_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with varve.open("data", fs=MemoryFileSystem(clock), clock=clock, maintain=False) as store:
        log = store.create_topic("orders").partition(0).log

        def refuse(*_: object, **__: object) -> None:
            raise DiskFull("orders-0: no room")

        monkeypatch.setattr(type(log), "append", refuse)
        loop = asyncio.new_event_loop()
        appends = Appends(loop)
        loop.run_until_complete(_append_once(appends, AppendPart(log, make_batch())))
        loop.close()
        assert appends.refusals.find_recent() == "orders-0: no room"


async def _append_once(appends: Appends, part: AppendPart) -> None:
    done = appends.submit([part])
    appends.run_once()
    await done
