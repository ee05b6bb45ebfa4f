"""A broker in the process: clients connect to it, and its time can be moved ahead."""

import asyncio
import socket
import time

import pytest

from varve.foundation.errors import Closed, InvalidRequest
from varve.testing import KafkaKit
from varve.testing.kafka_kit import FlowingClock, FlowingTimers

_HELLO = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"


def _is_served(kit: KafkaKit) -> bool:
    host, _, port = kit.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), 5) as client:
        client.sendall(_HELLO)
        return client.recv(1000)[4:8] == b"\0\0\0\x07"


def test_it_serves_until_it_is_closed() -> None:
    with KafkaKit() as kit:
        assert _is_served(kit)
    with pytest.raises(Closed, match="`with` block"):
        _ = kit.bootstrap


def test_it_serves_at_the_same_address_after_a_restart_and_a_crash() -> None:
    with KafkaKit() as kit:
        kit.store.create_topic("kept")
        first = kit.bootstrap
        kit.restart()
        assert kit.bootstrap == first
        kit.restart(crash=True)
        assert kit.bootstrap == first
        assert _is_served(kit)
        assert [topic.name for topic in kit.store.topics()] == ["kept"]


def test_time_flows_and_is_moved_ahead() -> None:
    with KafkaKit(now_ms=1_000_000) as kit:
        before_ms = kit.now_ms
        assert kit.advance(days=2) - before_ms >= 2 * 86_400_000
        with pytest.raises(InvalidRequest, match="cannot go back"):
            kit.advance(hours=-1)


def test_records_expire_when_time_has_passed() -> None:
    with KafkaKit() as kit:
        topic = kit.store.create_topic("visits", settings={"retention.ms": 86_400_000})
        topic.append(value="yesterday")
        kit.advance(days=2)
        kit.run_background()
        assert list(topic.read()) == []


def test_timers_are_called_by_flowing_and_by_jumps_in_their_order() -> None:
    async def scenario() -> None:
        clock = FlowingClock(0)
        timers = FlowingTimers(clock, asyncio.get_running_loop())
        called: list[str] = []
        timers.call_later(30, lambda: called.append("soon"))
        timers.call_later(50_000, lambda: called.append("later"))
        timers.call_later(40_000, lambda: called.append("late"))
        timers.call_later(10, lambda: called.append("never")).cancel()
        deadline = time.monotonic() + 30
        while not called and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        assert called == ["soon"]
        clock.advance(60_000)
        timers.run_due()
        assert called == ["soon", "late", "later"]

    asyncio.run(scenario())
