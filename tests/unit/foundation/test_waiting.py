"""Backoff and stop signal: how long work waits."""

import random
import threading

from varve.foundation.backoff import Backoff
from varve.foundation.worker import StopSignal


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
