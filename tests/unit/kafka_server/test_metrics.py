"""Figures that are counted in the loop while another thread collects them."""

import asyncio
from collections.abc import Callable
from typing import Any

from varve.kafka_server.frames import MemoryBudget
from varve.kafka_server.metrics import EVENT_LOOP_LAG, REQUESTS, ServerMetrics


class InterruptedKey:
    """An API key during whose lookup another thread does something."""

    name = "FETCH"

    def __init__(self) -> None:
        self.interruption: Callable[[], object] | None = None

    def __hash__(self) -> int:
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            interruption()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_metrics() -> ServerMetrics:
    loop = asyncio.new_event_loop()
    loop.close()
    return ServerMetrics(MemoryBudget(1, loop), MemoryBudget(1, loop))


def _count(metrics: ServerMetrics, key: Any) -> None:
    metrics.count(key, request_bytes=1, response_bytes=1, seconds=0.0)


def test_a_request_that_is_counted_during_a_collection_is_not_lost() -> None:
    metrics, key = _make_metrics(), InterruptedKey()
    _count(metrics, key)
    key.interruption = lambda: list(metrics.collect())
    _count(metrics, key)
    list(metrics.collect())
    assert metrics.value(REQUESTS, "fetch") == 2


def test_the_largest_lag_since_the_last_collection_is_reported() -> None:
    metrics = _make_metrics()
    for seconds in (0.1, 0.5, 0.2):
        metrics.loop_lagged(seconds)
    list(metrics.collect())
    assert metrics.value(EVENT_LOOP_LAG) == 0.5
    list(metrics.collect())
    assert metrics.value(EVENT_LOOP_LAG) == 0
