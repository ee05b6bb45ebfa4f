"""Who drops expired segments and who does not, operation by operation."""

from collections.abc import Callable

import pytest

from tests.support.window_bench import WindowBench, memory_bench, put_all
from varve.windows.entries import encode_window_key
from varve.windows.window_store import WindowStore

Operation = Callable[[WindowStore], object]


@pytest.fixture
def bench() -> WindowBench:
    return memory_bench()


@pytest.fixture
def store(bench: WindowBench) -> WindowStore:
    """Segments 0 and 3 are there; `remove` has raised stream time so that 0 is expired."""
    store = bench.local()
    put_all(store, [7_000, 31_000])
    store.remove(b"absent", 36_000)
    return store


def test_remove_raises_stream_time_and_drops_nothing(
    bench: WindowBench, store: WindowStore
) -> None:
    assert store.stream_time_ms == 36_000
    assert bench.starts() == [0, 30_000]


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.put(b"k", b"v", 36_000),
        lambda store: store.put(b"k", None, 36_000),
        lambda store: store.put(b"k", b"v", 9_999),
        lambda store: store.maintain(36_000),
    ],
    ids=["put", "delete by put", "expired put", "maintain"],
)
def test_writes_clean_up(bench: WindowBench, store: WindowStore, operation: Operation) -> None:
    operation(store)
    assert bench.starts() == [30_000]


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.get(b"k", 31_000),
        lambda store: store.get(b"k", 7_000),
        lambda store: list(store.fetch(b"k", 0, 99_000)),
        lambda store: list(store.backward_fetch(b"k", 0, 99_000)),
        lambda store: list(store.fetch_range(b"a", b"z", 0, 99_000)),
        lambda store: list(store.backward_fetch_range(b"a", b"z", 0, 99_000)),
        lambda store: list(store.fetch_all(0, 99_000)),
        lambda store: list(store.backward_fetch_all(0, 99_000)),
        lambda store: list(store.all()),
        lambda store: list(store.backward_all()),
        lambda store: store.remove(b"k", 31_000),
        lambda store: store.flush(),
        lambda store: store.checkpoint(),
        lambda store: store.close(),
    ],
    ids=[
        "get",
        "get expired",
        "fetch",
        "backward_fetch",
        "fetch_range",
        "backward_fetch_range",
        "fetch_all",
        "backward_fetch_all",
        "all",
        "backward_all",
        "remove",
        "flush",
        "checkpoint",
        "close",
    ],
)
def test_everything_else_does_not(
    bench: WindowBench, store: WindowStore, operation: Operation
) -> None:
    operation(store)
    assert bench.starts() == [0, 30_000]
    assert store.stream_time_ms == 36_000


def test_a_restored_batch_cleans_up(bench: WindowBench) -> None:
    store = bench.local()
    store.restore_batch([(encode_window_key(b"k", time), b"v") for time in (7_000, 31_000)])
    assert bench.starts() == [0, 30_000]
    store.restore_batch([(encode_window_key(b"k", 36_000), b"v")])
    assert bench.starts() == [30_000]


def test_opening_cleans_up(bench: WindowBench, store: WindowStore) -> None:
    store.close()
    with bench.local():
        assert bench.starts() == [30_000]


def test_remove_makes_no_segment(bench: WindowBench, store: WindowStore) -> None:
    assert not store.remove(b"k", 25_000)
    assert bench.starts() == [0, 30_000]


def test_reads_make_no_segment_and_move_nothing(bench: WindowBench, store: WindowStore) -> None:
    assert store.get(b"k", 25_000) is None
    assert list(store.fetch(b"k", 20_000, 29_999)) == []
    assert bench.starts() == [0, 30_000]
    assert store.stream_time_ms == 36_000
