"""A clock that goes back while the broker serves keeps nobody out and loses nothing.

The timers of a broker go by a clock that never goes back; here they stand still meanwhile.
"""

from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import fetch, list_offsets, produce
from tests.support.group_bench import Member, commit, offset_of
from tests.support.transaction_bench import QUICK, TransactionBench
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode

TWO_HOURS_MS = 7_200_000
EVENTS = TopicPartition("events", 0)


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(transactions=QUICK) as kit:
        kit.make_topic("events")
        kit.make_topic("stamped", settings={"message.timestamp.type": "LogAppendTime"})
        yield kit


def test_records_come_in_and_are_found_by_the_times_they_have(kit: BrokerKit) -> None:
    began_ms = kit.clock.now_ms()
    first = produce(kit, "stamped")
    assert first.error_code == 0
    kit.clock.advance(-TWO_HOURS_MS)
    later = produce(kit, "stamped")
    assert (later.error_code, later.log_append_time_ms) == (0, began_ms - TWO_HOURS_MS)
    found = fetch(kit, topic="stamped")
    assert (found.error_code, found.high_watermark) == (0, kit.log("stamped").end_offset)
    assert list_offsets(kit, began_ms, topic="stamped").offset == 0
    assert list_offsets(kit, began_ms + 1, topic="stamped").offset == -1
    kit.store.run_once()
    assert kit.log("stamped").log_start_offset == 0
    kit.restart()
    assert fetch(kit, later.base_offset, topic="stamped").error_code == 0


def test_members_stay_and_commits_hold(kit: BrokerKit) -> None:
    member = Member(kit).settle()
    assert commit(kit, "alone", "events", 0, 3) == 0
    kit.clock.advance(-TWO_HOURS_MS)
    assert member.heartbeat() == 0
    assert commit(kit, "alone", "events", 0, 4) == 0
    kit.run(kit.broker.groups.expire_once())
    assert offset_of(kit, "alone", "events", 0) == 4
    assert member.heartbeat() == 0
    kit.restart()
    assert offset_of(kit, "alone", "events", 0) == 4


def test_transactions_that_span_the_change_are_committed(kit: BrokerKit) -> None:
    bench = TransactionBench(kit)
    producer = bench.start("one", timeout_ms=1_000)
    bench.add(producer, EVENTS)
    assert bench.produce(producer, EVENTS, b"x") is ErrorCode.NONE
    kit.clock.advance(-TWO_HOURS_MS)
    assert bench.produce(producer, EVENTS, b"y") is ErrorCode.NONE
    assert bench.end(producer, is_commit=True) is ErrorCode.NONE
    assert kit.log("events").last_stable_offset == kit.log("events").end_offset == 3
    bench.add(producer, EVENTS)
    assert bench.produce(producer, EVENTS, b"z") is ErrorCode.NONE
    assert bench.end(producer, is_commit=False) is ErrorCode.NONE
    kit.restart()
    assert kit.broker.transactions.table.ongoing() == []
