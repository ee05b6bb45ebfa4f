"""The cache bounded in bytes, and loads shared by threads."""

import threading

import pytest

from varve.foundation.byte_cache import ByteCache
from varve.foundation.errors import Corrupt, Unavailable
from varve.foundation.single_flight import Flight, SingleFlight


def test_the_least_recently_used_values_are_evicted_first() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert (cache.held_bytes, len(cache)) == (8, 2)
    assert (cache.hits, cache.misses, cache.evictions) == (3, 1, 1)


def test_the_limit_holds_for_any_sizes() -> None:
    cache: ByteCache[int, int] = ByteCache(100)
    for number in range(1000):
        cache.put(number % 37, number, (number * 7919) % 130)
        assert cache.held_bytes <= 100


def test_a_value_above_the_limit_is_not_held_and_replaces_the_old_one() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    cache.put("a", 1, 4)
    cache.put("a", 2, 11)
    assert cache.get("a") is None
    assert cache.held_bytes == 0


def test_removed_values_give_their_bytes_back() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    cache.put("a", 1, 4)
    cache.put("a", 2, 6)
    assert cache.held_bytes == 6
    cache.remove("a")
    cache.remove("a")
    assert cache.held_bytes == 0
    cache.put("b", 1, 4)
    cache.clear()
    assert (len(cache), cache.held_bytes) == (0, 0)


class _SlowLoad:
    """A load that waits until it may end; counts its calls."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls = 0
        self.was_stale = False
        self.started = threading.Event()
        self.may_end = threading.Event()
        self._error = error

    def __call__(self, flight: Flight[int]) -> int:
        self.calls += 1
        self.started.set()
        assert self.may_end.wait(10)
        self.was_stale = flight.is_stale
        if self._error is not None:
            raise self._error
        return 42


class _WatchedKey:
    """A key that counts how often it was looked up."""

    def __init__(self) -> None:
        self.lookups = 0

    def __hash__(self) -> int:
        self.lookups += 1
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def _load_in_threads(load: _SlowLoad, count: int) -> list[object]:
    """What threads got that asked while the first one loaded: a value or the class of an error."""
    flights: SingleFlight[_WatchedKey, int] = SingleFlight()
    key = _WatchedKey()
    results: list[object] = []

    def run() -> None:
        try:
            results.append(flights.load(key, load))
        except Exception as error:
            results.append(type(error))

    threads = [threading.Thread(target=run) for _ in range(count)]
    threads[0].start()
    assert load.started.wait(10)
    lookups = key.lookups
    for thread in threads[1:]:
        thread.start()
    while key.lookups < lookups + count - 1:
        assert any(thread.is_alive() for thread in threads)
    load.may_end.set()
    for thread in threads:
        thread.join(10)
    return results


def test_one_load_serves_all_who_ask_meanwhile() -> None:
    load = _SlowLoad()
    assert _load_in_threads(load, 4) == [42] * 4
    assert load.calls == 1


def test_the_value_is_not_kept_after_the_load() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    load = _SlowLoad()
    load.may_end.set()
    assert [flights.load("key", load), flights.load("key", load)] == [42, 42]
    assert load.calls == 2
    assert not flights.is_loading("key")


def test_an_error_is_raised_for_all_who_wait() -> None:
    load = _SlowLoad(Corrupt("damaged"))
    assert _load_in_threads(load, 4) == [Corrupt] * 4
    assert load.calls == 1


def test_those_who_wait_for_an_interrupted_load_may_try_again() -> None:
    flight: Flight[int] = Flight()
    flight.fail(KeyboardInterrupt())
    with pytest.raises(Unavailable, match="try again"):
        flight.wait()


def test_an_invalidated_load_is_stale_and_not_shared_any_more() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    first, second = _SlowLoad(), _SlowLoad()
    thread = threading.Thread(target=flights.load, args=("key", first))
    thread.start()
    assert first.started.wait(10)
    flights.invalidate("key")
    second.may_end.set()
    assert flights.load("key", second) == 42
    first.may_end.set()
    thread.join(10)
    assert (first.was_stale, second.was_stale) == (True, False)
