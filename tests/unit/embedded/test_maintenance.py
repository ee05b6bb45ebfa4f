"""Background work meets a clock that is set wrong."""

import threading
from pathlib import Path

import varve
from varve.foundation.clock import ManualClock

DAY = 86_400_000


def test_a_clock_that_is_set_forward_expires_nothing_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"log.retention.check.interval.ms": 1, "log.initial.task.delay.ms": 0}
    with varve.open(tmp_path, settings=settings, clock=clock) as store:
        topic = store.create_topic("t", settings={"retention.ms": DAY})
        topic.append(value="x")
        clock.jump(30 * DAY)
        passes = threading.Semaphore(0)
        retention = store._maintenance.cleaner.retention
        run_once = retention.run_once

        def count(now_ms: int) -> object:
            try:
                return run_once(now_ms)
            finally:
                passes.release()

        retention.run_once = count  # type: ignore[assignment,method-assign]
        for _ in range(3):
            clock.advance(2)
            assert passes.acquire(timeout=30)
        assert [record.offset for record in topic.read()] == [0]
        assert "set forward by 2592000 s" in store.health().clock
        assert not store.health().is_healthy
        store.clean("t", roll=True)
        assert list(topic.read()) == [], "who asks for it has looked at the clock"
