"""Appends that the disk refuses are told, but not a thousand times."""

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import produce
from varve.broker.append_scheduler import RecentFailures
from varve.commit_log import TopicPartition
from varve.foundation.errors import DiskFull
from varve.wire import ErrorCode

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

    monkeypatch.setattr(type(kit.log("events")), "append", fail)
    assert produce(kit).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert kit.broker.failed_appends.find_recent() == "events-0: no room"
