"""Backoff, stop signal and rate limit: how long work waits."""

import random
import threading

from varve.foundation.backoff import Backoff
from varve.foundation.clock import ManualClock
from varve.foundation.rate_limit import RateLimit
from varve.foundation.stop_signal import StopSignal


class _VirtualStop(StopSignal):
    """Moves the clock instead of sleeping."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.waited_ms: list[float] = []
        self._clock = clock

    def wait_ms(self, wait_ms: float) -> bool:
        self.waited_ms.append(wait_ms)
        self._clock.advance(round(wait_ms))
        return self.is_set


def test_waits_double_up_to_the_maximum() -> None:
    backoff = Backoff(100, 1000)
    assert [backoff.wait_ms(attempt) for attempt in range(1, 7)] == [
        *(100, 200, 400, 800, 1000, 1000),
    ]
    assert backoff.wait_ms(10**9) == 1000
    assert backoff.wait_ms(0) == 100


def test_a_random_source_spreads_the_waits_over_their_upper_half() -> None:
    source = random.Random(1)
    waits = {Backoff(100, 100).wait_ms(1, source) for _ in range(200)}
    assert min(waits) >= 50
    assert max(waits) <= 100
    assert len(waits) > 20


def test_a_stop_wakes_those_who_wait() -> None:
    stop = StopSignal()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(stop.wait_ms(60_000)))
    thread.start()
    stop.set()
    thread.join(10)
    assert results == [True]
    assert stop.is_set


def test_a_wait_without_a_stop_ends_by_itself() -> None:
    assert StopSignal().wait_ms(1) is False


def test_the_rate_holds_over_time_whatever_the_sizes() -> None:
    clock = ManualClock()
    limit = RateLimit(1_000_000, clock, _VirtualStop(clock))
    start_ms = clock.now_ms()
    source = random.Random(2)
    total = 0
    while clock.now_ms() - start_ms < 60_000:
        size = source.randrange(1, 400_000)
        limit.spend(size)
        total += size
    assert abs(total - 60_000_000) < 1_500_000


def test_work_below_the_rate_never_waits() -> None:
    clock = ManualClock()
    limit = RateLimit(1000, clock, stop := _VirtualStop(clock))
    for _ in range(100):
        limit.spend(100)
        clock.advance(200)
    assert stop.waited_ms == []


def test_a_clock_that_is_set_back_does_not_stop_the_work() -> None:
    clock = ManualClock()
    limit = RateLimit(1000, clock, stop := _VirtualStop(clock))
    limit.spend(10)
    clock.advance(-3_600_000)
    limit.spend(10)
    assert stop.waited_ms == []
