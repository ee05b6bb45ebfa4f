"""The window store behaves alike on every engine: specification by examples."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.window_bench import (
    WindowBench,
    logged_writes,
    memory_bench,
    put_all,
    rocks_bench,
    times,
    visible,
)
from varve.foundation.errors import Closed, Corrupt
from varve.windows.entries import WindowEntry
from varve.windows.window_store import WindowStore


def _memory(_: Path) -> WindowBench:
    return memory_bench()


@pytest.fixture(params=[_memory, rocks_bench], ids=["memory", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> WindowBench:
    make: Callable[[Path], WindowBench] = request.param
    return make(tmp_path)


@pytest.fixture
def store(bench: WindowBench) -> Iterator[WindowStore]:
    with bench.store() as store:
        yield store


def test_the_worked_example(bench: WindowBench, store: WindowStore) -> None:
    """Segments of 10 s, retention of 25 s: time put, stream time, directories, visible from."""
    steps = [
        (7_000, True, 7_000, [0], [7_000]),
        (31_000, True, 31_000, [0, 30_000], [7_000, 31_000]),
        (33_500, True, 33_500, [0, 30_000], [31_000, 33_500]),
        (36_000, True, 36_000, [30_000], [31_000, 33_500, 36_000]),
        (12_000, True, 36_000, [10_000, 30_000], [12_000, 31_000, 33_500, 36_000]),
        (10_500, True, 36_000, [10_000, 30_000], [12_000, 31_000, 33_500, 36_000]),
        (9_999, False, 36_000, [10_000, 30_000], [12_000, 31_000, 33_500, 36_000]),
    ]
    for time_ms, is_written, stream_time_ms, starts, seen in steps:
        assert store.put(b"k", b"v", time_ms) is is_written
        assert store.stream_time_ms == stream_time_ms
        assert bench.starts() == starts
        assert times(store.all()) == seen
    assert store.expired_count == 1
    assert store.dead_on_arrival_count == 1


def test_ranges_come_by_segment_then_key_then_time(store: WindowStore) -> None:
    for key, time_ms in [(b"a", 10_000), (b"aa", 1), (b"a", 1), (b"aa", 0), (b"a", 0)]:
        store.put(key, b"v", time_ms)
    expected = [(b"a", 0), (b"a", 1), (b"aa", 0), (b"aa", 1), (b"a", 10_000)]
    for entries in (
        store.all(),
        store.fetch_all(0, 10_000),
        store.fetch_range(b"a", b"aa", 0, 10_000),
        store.fetch_range(None, None, 0, 10_000),
    ):
        assert [(entry.key, entry.time_ms) for entry in entries] == expected
    for entries in (
        store.all(backward=True),
        store.fetch_all(0, 10_000, backward=True),
        store.fetch_range(b"a", b"aa", 0, 10_000, backward=True),
    ):
        assert [(entry.key, entry.time_ms) for entry in entries] == expected[::-1]


def test_one_key_comes_by_time(store: WindowStore) -> None:
    put_all(store, [20_001, 5, 12_000, 19_999, 4])
    store.put(b"kk", b"other", 5)
    assert times(store.fetch(b"k", 0, 30_000)) == [4, 5, 12_000, 19_999, 20_001]
    assert times(store.fetch(b"k", 5, 19_999)) == [5, 12_000, 19_999]
    assert times(store.fetch(b"k", 5, 19_999, backward=True)) == [19_999, 12_000, 5]
    assert times(store.fetch_range(b"k", b"k", 5, 19_999)) == [5, 12_000, 19_999]
    assert times(store.fetch(b"k", 6, 11_999)) == []
    assert times(store.fetch(b"k", 9, 8)) == []


def test_put_overwrites_and_null_deletes(store: WindowStore) -> None:
    store.put(b"k", b"1", 5)
    store.put(b"k", b"2", 5)
    assert store.get(b"k", 5) == b"2"
    store.put(b"k", None, 5)
    assert store.get(b"k", 5) is None
    assert visible(store) == []


def test_a_delete_into_an_absent_segment_makes_it(bench: WindowBench, store: WindowStore) -> None:
    store.put(b"k", None, 15_000)
    assert bench.starts() == [10_000]


def test_retained_duplicates_all_stay(bench: WindowBench) -> None:
    with bench.store(retain_duplicates=True) as store:
        for value in (b"1", b"2", b"3"):
            assert store.put(b"k", value, 5)
        assert not store.put(b"k", None, 5)
        assert list(store.all()) == [WindowEntry(b"k", 5, value) for value in (b"1", b"2", b"3")]
        assert store.get(b"k", 5) == b"3"
    assert len(logged_writes(bench.changelog)) == 3


def test_a_restart_goes_on_where_it_ended(bench: WindowBench) -> None:
    with bench.store() as store:
        put_all(store, [7_000, 31_000, 33_500])
        before = visible(store)
    with bench.store() as store:
        assert store.stream_time_ms == 33_500
        assert visible(store) == before
        assert store.get(b"k", 7_000) is None
        assert store.put(b"k", b"v", 36_000)
        assert bench.starts() == [30_000]


def test_iteration_goes_on_when_its_segment_is_dropped(store: WindowStore) -> None:
    put_all(store, [1_000, 2_000, 3_000, 21_000, 22_000])
    entries = store.all()
    assert next(entries).time_ms == 1_000
    assert store.put(b"k", b"v", 36_000)
    assert times(entries) == [21_000, 22_000]


def test_a_segment_dropped_before_it_is_reached_is_passed_over(store: WindowStore) -> None:
    put_all(store, [1_000, 21_000])
    entries = store.all()
    assert store.put(b"k", b"v", 36_000)
    assert entries.has_next()
    assert times(entries) == [21_000]


def test_iteration_ends_when_the_store_is_closed(bench: WindowBench) -> None:
    store = bench.store()
    put_all(store, [1_000, 2_000, 21_000])
    begun, fresh = store.all(), store.all()
    assert next(begun).time_ms == 1_000
    store.close()
    assert not begun.has_next()
    assert not fresh.has_next()
    with bench.store() as again:
        assert not begun.has_next()
        assert times(again.all()) == [1_000, 2_000, 21_000]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_an_entry_that_was_looked_ahead_ends_with_the_store(
    bench: WindowBench, *, is_reopened: bool
) -> None:
    store = bench.store()
    put_all(store, [1_000, 2_000, 21_000])
    ahead, begun, fresh = store.all(), store.all(), store.all()
    assert ahead.has_next()
    assert next(begun).time_ms == 1_000
    store.close()
    if is_reopened:
        store.open()
    for entries in (ahead, begun, fresh):
        assert not entries.has_next()
        assert list(entries) == []
    store.close()


def test_a_rebuild_ends_the_iterators_before_it(bench: WindowBench) -> None:
    with bench.store() as store:
        put_all(store, [1_000, 2_000])
        entries = store.all()
        assert entries.has_next()
        store.rebuild(Corrupt("a block"))
        assert list(entries) == []
        assert times(store.all()) == [1_000, 2_000]


def test_iterators_left_open_do_not_hold_the_directory(bench: WindowBench) -> None:
    store = bench.store()
    put_all(store, [1_000, 2_000])
    left = [store.all() for _ in range(3)]
    for entries in left:
        next(entries)
    store.close()
    with bench.store() as again:
        assert len(visible(again)) == 2


def test_a_view_is_frozen_per_segment_when_it_is_reached(store: WindowStore) -> None:
    put_all(store, [1_000, 2_000, 21_000])
    entries = store.all()
    assert next(entries).time_ms == 1_000
    put_all(store, [1_500, 21_500, 15_000])
    assert times(entries) == [2_000, 21_000, 21_500]


def test_a_closed_store_refuses_and_opens_again(bench: WindowBench) -> None:
    store = bench.store()
    put_all(store, [1_000])
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.put(b"k", b"v", 1_000),
        lambda: store.remove(b"k", 1_000),
        lambda: store.maintain(99_000),
        lambda: store.get(b"k", 1_000),
        store.all,
        store.checkpoint,
        store.flush,
    ]
    for use in uses:
        with pytest.raises(Closed):
            use()
    assert store.stream_time_ms == 1_000
    store.open()
    assert times(store.all()) == [1_000]
    store.close()


def test_a_lost_directory_is_restored_from_the_changelog(bench: WindowBench) -> None:
    with bench.store() as store:
        put_all(store, [7_000, 31_000, 36_000, 12_000, 10_500, 9_999])
        store.remove(b"k", 31_000)
        before = visible(store)
    bench.file_system.remove_tree(bench.directory)
    with bench.store() as store:
        assert visible(store) == before
        assert store.stream_time_ms == 36_000
        assert bench.starts() == [10_000, 30_000]
