"""Extents of objects in memory: none twice, none beyond the limit."""

import threading

import pytest

from varve.foundation.errors import StoreUnavailable, Unavailable
from varve.tiering.read.extent_cache import Extent, ExtentCache


class Source:
    """Objects whose byte at a position is the position, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.error: Exception | None = None

    def fetch(self, key: str, start: int, end: int) -> memoryview:
        self.asked.append((key, start, end))
        if self.error is not None:
            raise self.error
        return memoryview(bytes(position % 256 for position in range(start, end)))


def load(cache: ExtentCache, source: Source, key: str, start: int, end: int) -> Extent:
    extent = cache.reserve(key, start, end)
    cache.fill(extent, source.fetch)
    extent.wait()
    return extent


def test_an_extent_is_fetched_once_and_handed_out_as_it_is() -> None:
    cache, source = ExtentCache(limit_bytes=100), Source()
    first = load(cache, source, "a", 10, 30)
    assert first.wait() == bytes(range(10, 30))
    assert load(cache, source, "a", 29, 60) is first
    assert source.asked == [("a", 10, 30)]
    assert cache.usage().hits == 1
    assert cache.usage().held_bytes == 20


def test_extents_of_one_object_do_not_overlap() -> None:
    cache, source = ExtentCache(limit_bytes=100), Source()
    load(cache, source, "a", 50, 60)
    assert load(cache, source, "a", 40, 90).end == 50
    assert load(cache, source, "a", 60, 70).start == 60
    assert load(cache, source, "b", 55, 70).end == 70


def test_the_least_recently_used_goes_first_and_its_readers_keep_it() -> None:
    cache, source = ExtentCache(limit_bytes=30), Source()
    first, second = (load(cache, source, "a", at, at + 10) for at in (0, 10))
    load(cache, source, "b", 0, 10)
    assert cache.reserve("a", 0, 10) is first
    load(cache, source, "c", 0, 10)
    assert cache.reserve("a", 0, 10) is first
    assert cache.reserve("a", 10, 20) is not second
    assert second.wait() == bytes(range(10, 20))
    assert cache.usage().evicted == 1
    assert cache.usage().held_bytes == 30


def test_what_is_larger_than_the_limit_is_handed_out_and_not_held() -> None:
    cache, source = ExtentCache(limit_bytes=10), Source()
    kept = load(cache, source, "a", 0, 5)
    large = load(cache, source, "b", 0, 11)
    assert large.wait() == bytes(range(11))
    assert cache.usage().held_bytes == 5
    assert cache.reserve("a", 0, 5) is kept
    assert cache.reserve("b", 0, 11) is not large


def test_who_wants_what_is_on_its_way_waits_for_it() -> None:
    cache, source = ExtentCache(limit_bytes=100), Source()
    opened = threading.Event()

    def fetch(key: str, start: int, end: int) -> memoryview:
        assert opened.wait(10)
        return source.fetch(key, start, end)

    extent = cache.reserve("a", 0, 10)
    first = threading.Thread(target=cache.fill, args=(extent, fetch))
    first.start()
    while not extent.is_begun:
        pass
    cache.fill(cache.reserve("a", 5, 20), source.fetch)
    assert source.asked == []
    opened.set()
    assert extent.wait() == bytes(range(10))
    first.join(10)
    assert source.asked == [("a", 0, 10)]


def test_a_failed_fetch_is_raised_to_all_who_wait_and_forgotten() -> None:
    cache, source = ExtentCache(limit_bytes=100), Source()
    source.error = StoreUnavailable("down")
    extent = cache.reserve("a", 0, 10)
    cache.fill(extent, source.fetch)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="down"):
            extent.wait()
    assert cache.usage().held_bytes == 0
    source.error = None
    assert load(cache, source, "a", 0, 10).wait() == bytes(range(10))


def test_who_waits_for_a_thread_that_ended_may_try_again() -> None:
    cache, source = ExtentCache(limit_bytes=100), Source()

    def end(key: str, start: int, end: int) -> memoryview:
        raise KeyboardInterrupt

    extent = cache.reserve("a", 0, 10)
    with pytest.raises(KeyboardInterrupt):
        cache.fill(extent, end)
    with pytest.raises(Unavailable, match="try again"):
        extent.wait()
    assert load(cache, source, "a", 0, 10).wait() == bytes(range(10))


def test_what_is_fetched_ahead_is_at_most_half_until_it_is_read() -> None:
    cache, source = ExtentCache(limit_bytes=40), Source()
    ahead = cache.reserve_ahead("a", 0, 20)
    assert ahead is not None
    assert ahead[1]
    assert cache.reserve_ahead("a", 20, 21) is None
    assert load(cache, source, "a", 3, 20) is ahead[0]
    assert cache.reserve_ahead("a", 20, 40) is not None
    again = cache.reserve_ahead("a", 25, 25)
    assert again is not None
    assert not again[1]


def test_a_claim_can_be_withdrawn_until_somebody_begins() -> None:
    cache, source = ExtentCache(limit_bytes=40), Source()
    ahead = cache.reserve_ahead("a", 0, 20)
    assert ahead is not None
    cache.cancel(ahead[0])
    assert cache.reserve_ahead("b", 0, 20) is not None
    cache.fill(ahead[0], source.fetch)
    assert ahead[0].wait() == bytes(range(20))
    assert cache.usage().held_bytes == 0
    begun = load(cache, source, "c", 0, 10)
    cache.cancel(begun)
    assert cache.reserve("c", 0, 10) is begun


def test_what_is_left_behind_makes_room_at_once() -> None:
    cache, source = ExtentCache(limit_bytes=40), Source()
    extent = load(cache, source, "a", 0, 20)
    cache.leave(extent)
    cache.leave(extent)
    assert cache.usage().held_bytes == 0
    assert extent.wait() == bytes(range(20))
    load(cache, source, "a", 0, 20)
    assert cache.usage().held_bytes == 20


def test_what_nobody_came_to_read_gives_way_to_what_is_fetched_ahead_later() -> None:
    cache, source = ExtentCache(limit_bytes=40), Source()
    gone = cache.reserve_ahead("a", 0, 20)
    assert gone is not None
    cache.fill(gone[0], source.fetch)
    later = cache.reserve_ahead("b", 0, 20)
    assert later is not None
    cache.fill(later[0], source.fetch)
    assert cache.usage().held_bytes == 20
    assert cache.reserve("b", 0, 20) is later[0]
