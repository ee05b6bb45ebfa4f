"""Ranges kept: what is asked again, what is forgotten, and how much is held."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from varve.foundation.errors import InvalidSetting, StoreUnavailable
from varve.object_store import (
    CachingObjectStore,
    FaultKind,
    FaultyObjectStore,
    MemoryObjectStore,
)

DATA = bytes(number % 251 for number in range(1000))


def _bench(
    limit_bytes: int = 400, chunk_bytes: int = 100
) -> tuple[CachingObjectStore, FaultyObjectStore]:
    below = FaultyObjectStore(MemoryObjectStore())
    below.put("a", DATA)
    return CachingObjectStore(below, limit_bytes=limit_bytes, chunk_bytes=chunk_bytes), below


def test_a_range_is_asked_for_once() -> None:
    store, below = _bench()
    for start, end in [(10, 20), (50, 150), (0, 200), (199, 200)]:
        assert bytes(store.get_range("a", start, end)) == DATA[start:end]
    assert [str(step) for step in below.trace[1:]] == ["2: get ranges a", "3: get ranges a"]
    usage = store.usage()
    assert (usage.hits, usage.misses, usage.held_bytes) == (4, 2, 200)


def test_a_range_within_a_chunk_is_no_copy() -> None:
    store, _ = _bench()
    first, second = store.get_range("a", 10, 20), store.get_range("a", 15, 30)
    assert first.obj is second.obj


def test_the_limit_holds_and_the_least_used_goes_first() -> None:
    store, below = _bench()
    for number in range(4):
        store.get_range("a", number * 100, number * 100 + 1)
    store.get_range("a", 0, 1)
    store.get_range("a", 450, 451)
    usage = store.usage()
    assert (usage.held_bytes, usage.evicted) == (400, 1)
    steps = below.steps
    store.get_range("a", 0, 1)
    assert below.steps == steps
    store.get_range("a", 100, 101)
    assert below.steps == steps + 1


def test_more_than_the_limit_at_once_passes_by() -> None:
    store, _ = _bench()
    assert bytes(store.get_range("a", 0, 1000)) == DATA
    assert store.usage().held_bytes == 0


def test_the_end_of_an_object_is_found_in_the_cache() -> None:
    store, below = _bench(limit_bytes=10_000)
    below.put("b", b"x" * 250)
    assert bytes(store.get_range("b", 240, 600)) == b"x" * 10
    assert bytes(store.get_range("b", 0, 600)) == b"x" * 250
    assert bytes(store.get_range("b", 250, 290)) == b""
    assert bytes(store.get_range("b", 700, 900)) == b""


def test_what_is_written_through_it_is_forgotten() -> None:
    store, _ = _bench()
    assert bytes(store.get_range("a", 0, 3)) == DATA[:3]
    store.put("a", b"one")
    assert bytes(store.get_range("a", 0, 3)) == b"one"
    store.put_parts("a", [b"two"], size=3)
    assert bytes(store.get_range("a", 0, 3)) == b"two"
    store.delete(["a"])
    store.create("a", b"other")
    assert bytes(store.get_range("a", 0, 9)) == b"other"
    assert store.usage().held_bytes == 5


def test_a_failed_fetch_is_tried_by_the_next_one() -> None:
    store, below = _bench()
    below.fail_at(below.steps + 1, FaultKind.ERROR_BEFORE)
    with pytest.raises(StoreUnavailable):
        store.get_range("a", 0, 10)
    assert bytes(store.get_range("a", 0, 10)) == DATA[:10]


class Gate(MemoryObjectStore):
    """A store whose ranges wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)
        self.let_through = threading.Semaphore(0)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        found = super().get_ranges(key, ranges)
        self.arrived.release()
        assert self.let_through.acquire(timeout=30)
        return found


def test_many_threads_cause_one_request() -> None:
    below = Gate()
    below.put("a", DATA)
    store = CachingObjectStore(below, limit_bytes=1000, chunk_bytes=100)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(store.get_range, "a", 0, 10) for _ in range(8)]
        assert below.arrived.acquire(timeout=30)
        below.let_through.release()
        assert [bytes(future.result(30)) for future in found] == [DATA[:10]] * 8
    assert not below.arrived.acquire(blocking=False)


def test_what_was_on_its_way_during_a_put_is_not_kept() -> None:
    below = Gate()
    below.put("a", b"old")
    store = CachingObjectStore(below, limit_bytes=1000, chunk_bytes=100)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.get_range, "a", 0, 3)
        assert below.arrived.acquire(timeout=30)
        store.put("a", b"new")
        below.let_through.release(2)
        assert bytes(found.result(30)) == b"old"
    assert bytes(store.get_range("a", 0, 3)) == b"new"


def test_threads_read_what_is_there() -> None:
    store, _ = _bench(limit_bytes=300, chunk_bytes=50)

    def read(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(100):
            start = source.randrange(1000)
            end = start + source.randrange(200)
            assert bytes(store.get_range("a", start, end)) == DATA[start:end]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    usage = store.usage()
    assert usage.held_bytes <= 300


def test_a_cache_must_hold_a_chunk() -> None:
    with pytest.raises(InvalidSetting, match="10 bytes cannot hold chunks of 20"):
        CachingObjectStore(MemoryObjectStore(), limit_bytes=10, chunk_bytes=20)


def test_closing_frees_what_is_held() -> None:
    store, _ = _bench()
    store.get_range("a", 0, 1)
    store.close()
    assert store.usage().held_bytes == 0
