"""All cleaner threads together stay below the rate, whatever the clock does."""

from varve.cleaning.work_budget import Throttle
from varve.foundation.clock import ManualClock

RATE = 1_000_000.0


class _Waits:
    """Sleeps by moving the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.total_ms = 0.0

    def __call__(self, wait_ms: float) -> None:
        self.total_ms += wait_ms
        self._clock.advance(round(wait_ms))


def test_bytes_take_the_time_that_the_rate_gives_them() -> None:
    clock = ManualClock()
    start = clock.now_ms()
    throttle = Throttle(RATE, clock, _Waits(clock))
    for _ in range(100):
        throttle.spend(100_000)
    assert 9_000 <= clock.now_ms() - start <= 10_500


def test_no_more_than_a_window_of_unused_rate_is_made_up_for() -> None:
    clock = ManualClock()
    throttle = Throttle(RATE, clock, waits := _Waits(clock))
    clock.advance(3_600_000)
    throttle.spend(2_000_000)
    assert waits.total_ms >= 1_700


def test_a_clock_set_back_makes_nobody_wait_for_it() -> None:
    clock = ManualClock()
    for rate in (RATE, 1.7e308):
        throttle = Throttle(rate, clock, waits := _Waits(clock))
        throttle.spend(1000)
        clock.advance(-3_600_000)
        throttle.spend(1000)
        assert waits.total_ms == 0
