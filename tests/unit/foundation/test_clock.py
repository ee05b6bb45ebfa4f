"""Time by which records are removed: a jump of the wall clock does not make all of them old."""

from varve.foundation.clock import ManualClock, RemovalClock, SystemClock

HOUR = 3_600_000


def new_clock() -> tuple[ManualClock, RemovalClock]:
    clock = ManualClock()
    return clock, RemovalClock(clock, jump_max_ms=HOUR, hold_ms=24 * HOUR)


def test_time_that_passes_is_followed() -> None:
    clock, removal = new_clock()
    for _ in range(3):
        clock.advance(30 * 24 * HOUR)
        assert removal.now_ms() == clock.now_ms()
    assert removal.describe_hold() == ""


def test_a_jump_ahead_is_followed_after_a_day_of_steady_time() -> None:
    clock, removal = new_clock()
    before = clock.now_ms()
    clock.jump(90 * 24 * HOUR)
    assert removal.now_ms() == before
    assert "set forward by 7776000 s" in removal.describe_hold()
    clock.advance(23 * HOUR)
    assert removal.now_ms() == before + 23 * HOUR
    clock.jump(5 * HOUR)
    clock.advance(2 * HOUR)
    assert removal.now_ms() == before + 25 * HOUR, "another jump begins another day"
    clock.advance(24 * HOUR)
    removal.now_ms()
    clock.advance(24 * HOUR)
    assert removal.now_ms() == clock.now_ms()
    assert removal.describe_hold() == ""


def test_a_jump_that_is_set_back_is_forgotten() -> None:
    clock, removal = new_clock()
    clock.jump(90 * 24 * HOUR)
    removal.now_ms()
    clock.jump(-90 * 24 * HOUR)
    clock.advance(HOUR)
    assert removal.now_ms() == clock.now_ms()
    assert removal.describe_hold() == ""


def test_a_clock_that_is_set_back_and_right_again_is_followed() -> None:
    clock, removal = new_clock()
    clock.jump(-90 * 24 * HOUR)
    assert removal.now_ms() == clock.now_ms()
    clock.jump(90 * 24 * HOUR)
    assert removal.now_ms() == clock.now_ms()


def test_a_small_correction_is_followed() -> None:
    clock, removal = new_clock()
    clock.jump(HOUR - 1)
    assert removal.now_ms() == clock.now_ms()


def test_the_time_that_nobody_can_set_goes_on() -> None:
    clock = SystemClock()
    assert clock.elapsed_ms() <= clock.elapsed_ms()
