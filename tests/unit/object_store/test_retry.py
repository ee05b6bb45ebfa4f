"""Trying again: how often, how long, and whose create it was."""

import random

import pytest

from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    ObjectExists,
    ObjectNotFound,
    StoreThrottled,
    StoreUnavailable,
)
from varve.object_store import MemoryObjectStore, RetryingObjectStore, RetryPolicy
from varve.testing import FaultKind, FaultyObjectStore


class Bench:
    """A retrying store over a faulty one, with a clock that moves by the waits alone."""

    def __init__(self, **policy: int) -> None:
        self.clock = ManualClock()
        self.waits: list[float] = []
        self.memory = MemoryObjectStore()
        self.faulty = FaultyObjectStore(self.memory)
        self.store = RetryingObjectStore(
            self.faulty,
            policy=RetryPolicy(**policy),
            clock=self.clock,
            wait=self.wait,
            source=random.Random(1),
        )

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(round(seconds * 1000))

    def fail_next(self, *kinds: FaultKind) -> None:
        for number, kind in enumerate(kinds, start=1):
            self.faulty.fail_at(self.faulty.steps + number, kind)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_waits_double_with_jitter_up_to_the_longest() -> None:
    bench = Bench(attempt_count_max=8, first_wait_ms=100, wait_ms_max=1000, deadline_ms=10**9)
    bench.faulty.go_down()
    with pytest.raises(StoreUnavailable):
        bench.store.get("a")
    for wait, full in zip(bench.waits, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= wait <= full
    assert len(set(bench.waits[-3:])) == 3


def test_a_throttled_request_waits_longer() -> None:
    bench = Bench(first_wait_ms=100)
    bench.fail_next(FaultKind.THROTTLED)
    bench.store.put("a", b"1")
    assert 0.2 <= bench.waits[0] <= 0.4


def test_attempts_are_bounded_and_counted_in_the_message() -> None:
    bench = Bench(attempt_count_max=3)
    bench.fail_next(*[FaultKind.THROTTLED] * 3)
    with pytest.raises(StoreThrottled, match=r"memory:: put 'a' failed.*tried 3 times"):
        bench.store.put("a", b"1")
    assert bench.faulty.steps == 3


def test_time_is_bounded() -> None:
    bench = Bench(attempt_count_max=1000, wait_ms_max=1000, deadline_ms=5000)
    bench.faulty.go_down()
    with pytest.raises(StoreUnavailable):
        bench.store.head("a")
    assert 3.9 < sum(bench.waits) <= 5


def test_other_errors_are_not_repeated(bench: Bench) -> None:
    with pytest.raises(ObjectNotFound):
        bench.store.get("a")
    assert (bench.faulty.steps, bench.waits) == (1, [])


@pytest.mark.parametrize("theirs", [b"theirs", b"ours", b"min", b"mine and more", b""])
def test_a_lost_race_is_told_apart_from_a_lost_answer(theirs: bytes, bench: Bench) -> None:
    bench.memory.create("a", theirs)
    bench.fail_next(FaultKind.ERROR_BEFORE)
    with pytest.raises(ObjectExists):
        bench.store.create("a", b"mine")
    assert bench.store.get("a") == theirs


def test_a_list_without_progress_ends() -> None:
    bench = Bench(attempt_count_max=4)
    bench.faulty.go_down()
    with pytest.raises(StoreUnavailable, match="tried 4 times"):
        list(bench.store.list(""))


def test_parts_are_repeated_only_if_they_can_be_read_again(bench: Bench) -> None:
    bench.fail_next(FaultKind.PARTIAL, FaultKind.ERROR_AFTER)
    bench.store.put_parts("a", [b"12", b"34"], size=4)
    assert bench.store.get("a") == b"1234"
    bench.fail_next(FaultKind.PARTIAL)
    with pytest.raises(StoreUnavailable):
        bench.store.put_parts("b", iter([b"12", b"34"]), size=4)
    with pytest.raises(ObjectNotFound):
        bench.memory.get("b")


def test_closing_ends_the_waiting() -> None:
    memory = MemoryObjectStore()
    faulty = FaultyObjectStore(memory)
    store = RetryingObjectStore(faulty, policy=RetryPolicy(first_wait_ms=60_000))
    faulty.go_down()
    store.close()
    with pytest.raises(StoreUnavailable, match="tried 1 times"):
        store.get("a")
