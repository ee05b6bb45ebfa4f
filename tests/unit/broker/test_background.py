"""Blocking work, and how a broker stops while some of it takes long."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

import varve
from tests.support.serving import make_broker
from varve.broker.background import BlockingPool
from varve.disk import MemoryFileSystem
from varve.foundation.clock import SystemClock


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the work that a test has left behind."""
    event = threading.Event()
    yield event
    event.set()


def test_a_stop_does_not_wait_for_a_slow_read_longer_than_its_timeout(
    release: threading.Event,
) -> None:
    clock = SystemClock()

    async def scenario() -> float:
        broker = make_broker(store)
        await broker.start()
        reading = broker.blocking.run(release.wait, 30)
        ticks = asyncio.ensure_future(_count_ticks())
        started = time.monotonic()
        await broker.stop(timeout_seconds=0.3)
        elapsed = time.monotonic() - started
        ticks.cancel()
        assert not reading.done()
        assert _ticks > 5, "the loop was blocked"
        release.set()
        await reading
        return elapsed

    with varve.open("data", fs=MemoryFileSystem(clock), clock=clock, maintain=False) as store:
        assert 0.25 < asyncio.run(scenario()) < 5


_ticks = 0


async def _count_ticks() -> None:
    global _ticks
    while True:
        _ticks += 1
        await asyncio.sleep(0.01)


def test_work_in_the_pool_does_not_keep_a_process_alive() -> None:
    program = """
import asyncio, time
from varve.broker.background import BlockingPool

async def main():
    pool = BlockingPool(asyncio.get_running_loop())
    pool.run(time.sleep, 60)
    await asyncio.sleep(0.1)
    await pool.stop(timeout_seconds=0)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_work_that_has_not_started_is_cancelled_by_a_stop(release: threading.Event) -> None:
    async def scenario() -> None:
        pool = BlockingPool(asyncio.get_running_loop())
        running = [pool.run(release.wait, 30) for _ in range(8)]
        queued = pool.run(release.wait, 30)
        await pool.stop(timeout_seconds=0)
        release.set()
        assert await asyncio.gather(*running) == [True] * 8
        with pytest.raises((asyncio.CancelledError, CancelledError)):
            await queued
        with pytest.raises(RuntimeError, match="stopped"):
            pool.run(time.monotonic)

    asyncio.run(scenario())


def test_errors_and_results_come_back_and_threads_are_bounded() -> None:
    async def scenario() -> None:
        pool = BlockingPool(asyncio.get_running_loop())
        names = await asyncio.gather(*(pool.run(_thread_name) for _ in range(200)))
        assert len(set(names)) <= 8
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        await pool.stop(timeout_seconds=5)

    asyncio.run(scenario())


def _thread_name() -> str:
    time.sleep(0.001)  # noqa: TID251  # holds its thread
    return threading.current_thread().name
