"""The machine's clock moves by years: a store forgets by stream time, its log by the clock."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import varve
from tests.support.window_bench import WindowBench, memory_bench, put_all, times, window_settings
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.windows.changelog import TopicChangelog, create_changelog_topic

YEAR_MS = 365 * 24 * 3_600_000
NOW_MS = ManualClock().now_ms()


@dataclass
class Years:
    """A store with its changelog in a topic, and the clock of both."""

    bench: WindowBench
    topics: varve.Store
    clock: ManualClock

    def pass_by(self, years: float) -> None:
        """The clock moves, and the topic is maintained as long as there is work."""
        self.clock.advance(int(years * YEAR_MS))
        for _ in range(3):
            self.topics.run_once(self.clock.now_ms())


@pytest.fixture
def years() -> Iterator[Years]:
    clock = ManualClock(NOW_MS)
    file_system = MemoryFileSystem(clock)
    bench = memory_bench()
    bench.clock = clock
    with varve.open("/log", fs=file_system, clock=clock, maintain=False) as topics:
        topic = create_changelog_topic(topics, "c", window_settings())
        bench.changelog = TopicChangelog(topic, 0)
        yield Years(bench, topics, clock)


def test_a_store_that_was_closed_well_outlives_its_changelog(years: Years) -> None:
    with years.bench.store() as store:
        put_all(store, [NOW_MS, NOW_MS + 1_000])
    years.pass_by(30)
    assert years.bench.changelog.start_offset == years.bench.changelog.end_offset == 2
    with years.bench.store() as store:
        assert times(store.all()) == [NOW_MS, NOW_MS + 1_000]
        assert store.stream_time_ms == NOW_MS + 1_000
        assert store.put(b"k", b"v", NOW_MS + 2_000)


def test_a_directory_lost_after_years_is_restored_empty(years: Years) -> None:
    with years.bench.store() as store:
        put_all(store, [NOW_MS])
    years.pass_by(30)
    years.bench.file_system.remove_tree(years.bench.directory)
    with years.bench.store() as store:
        assert times(store.all()) == []
        put_all(store, [NOW_MS + 5])
    with years.bench.store() as store:
        assert times(store.all()) == [NOW_MS + 5]


def test_a_clock_that_goes_back_takes_nothing(years: Years) -> None:
    with years.bench.store() as store:
        put_all(store, [NOW_MS])
    years.pass_by(-30)
    years.bench.file_system.remove_tree(years.bench.directory)
    with years.bench.store() as store:
        put_all(store, [NOW_MS + 5])
        assert times(store.all()) == [NOW_MS, NOW_MS + 5]


def test_events_of_the_far_future_and_past_are_restored(years: Years) -> None:
    """A topic would refuse such times, or let them go at once, if it compared them with its clock.

    Those of the past are older than the changelog's retention as soon as they are written; its
    active segment stays until it is rolled.
    """
    with years.bench.store() as store:
        put_all(store, [0, 1_000])
    years.bench.file_system.remove_tree(years.bench.directory)
    with years.bench.store() as store:
        assert times(store.all()) == [0, 1_000]
        put_all(store, [NOW_MS + 100 * YEAR_MS])
    years.bench.file_system.remove_tree(years.bench.directory)
    with years.bench.store() as store:
        assert times(store.all()) == [NOW_MS + 100 * YEAR_MS]
