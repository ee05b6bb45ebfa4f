"""The window store: what is kept, what is seen, what is refused, and the example of its page."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.window_bench import WindowBench, memory_bench, put_all, times, visible
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DiskFull, InvalidRequest, InvalidSetting
from varve.testing.faulty_disk import FaultyFileSystem
from varve.windows.changelog import WindowSettings
from varve.windows.entries import TIME_MAX_MS
from varve.windows.window_store import WindowStore


@pytest.fixture
def bench() -> WindowBench:
    return memory_bench()


@pytest.fixture
def store(bench: WindowBench) -> WindowStore:
    return bench.local()


def test_an_entry_is_seen_until_its_age_is_the_retention(store: WindowStore) -> None:
    store.put(b"k", b"v", 1_000)
    put_all(store, [1_000 + 24_999], key=b"other")
    assert store.get(b"k", 1_000) == b"v"
    assert times(store.fetch(b"k", 0, 99_000)) == [1_000]
    put_all(store, [1_000 + 25_000], key=b"other")
    assert store.get(b"k", 1_000) is None
    assert times(store.fetch(b"k", 0, 99_000)) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put(b"k", b"v", 36_000),
        lambda store: store.put(b"k", None, 36_000),
        lambda store: store.put(b"k", b"v", 9_999),
        lambda store: store.maintain(36_000),
    ],
    ids=["put", "delete by put", "expired put", "maintain"],
)
def test_what_a_remove_has_expired_is_dropped_by_the_next_write(
    bench: WindowBench, store: WindowStore, write: Callable[[WindowStore], object]
) -> None:
    put_all(store, [7_000, 31_000])
    store.remove(b"absent", 36_000)
    assert bench.starts() == [0, 30_000]
    write(store)
    assert bench.starts() == [30_000]


def test_expired_puts_warn_once_a_second_with_their_number(
    bench: WindowBench, store: WindowStore, caplog: pytest.LogCaptureFixture
) -> None:
    put_all(store, [100_000])
    with caplog.at_level(logging.WARNING):
        put_all(store, [1, 2, 3])
        bench.clock.advance(999)
        put_all(store, [4])
        bench.clock.advance(1)
        put_all(store, [5, 6])
        bench.clock.advance(-5_000)
        put_all(store, [7])
    counts = [record.__dict__["count"] for record in caplog.records]
    assert counts == [1, 4, 2]


def test_the_machines_clock_moves_nothing_but_warnings(
    bench: WindowBench, store: WindowStore
) -> None:
    put_all(store, [7_000, 31_000])
    before = visible(store)
    for years in (50, -100):
        bench.clock.advance(years * 365 * 24 * 3_600_000)
        assert store.put(b"k", b"v", 31_000)
        assert store.stream_time_ms == 31_000
        assert bench.starts() == [0, 30_000]
    assert [entry.time_ms for entry in before] == times(store.all())


def test_a_time_far_ahead_drops_everything_before_it(
    bench: WindowBench, store: WindowStore
) -> None:
    put_all(store, [7_000, 31_000, TIME_MAX_MS])
    assert times(store.all()) == [TIME_MAX_MS]
    assert len(bench.starts()) == 1
    assert not store.put(b"k", b"v", 31_000)


def test_the_worst_times_of_a_store_without_retention(bench: WindowBench) -> None:
    store = bench.local(retention_ms=0, segment_ms=1)
    put_all(store, [5, 6])
    assert times(store.all()) == []
    assert bench.starts() == [6]


@pytest.mark.parametrize("key", [None, "text", bytearray(b"k")])
def test_keys_are_bytes(store: WindowStore, key: Any) -> None:
    for use in (
        lambda: store.put(key, b"v", 1),
        lambda: store.get(key, 1),
        lambda: store.remove(key, 1),
        lambda: store.fetch(key, 0, 1),
    ):
        with pytest.raises(InvalidRequest, match="give bytes, never None"):
            use()
    assert store.stream_time_ms == -1


def test_values_are_bytes_or_none(store: WindowStore) -> None:
    with pytest.raises(InvalidRequest, match="a value of type int"):
        store.put(b"k", 5, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("time_ms", [None, "1", 1.5, b"1"])
def test_times_are_whole_numbers(store: WindowStore, time_ms: Any) -> None:
    for use in (
        lambda: store.put(b"k", b"v", time_ms),
        lambda: store.remove(b"k", time_ms),
        lambda: store.get(b"k", time_ms),
        lambda: store.fetch(b"k", time_ms, 1),
        lambda: store.fetch(b"k", 0, time_ms),
        lambda: store.fetch_all(time_ms, 1),
        lambda: store.fetch_range(None, None, 0, time_ms),
        lambda: store.maintain(time_ms),
    ):
        with pytest.raises(InvalidRequest, match=f"of type {type(time_ms).__name__}; give milli"):
            use()
    assert store.stream_time_ms == -1


def test_the_keys_of_a_range_are_bytes_or_none(store: WindowStore) -> None:
    for first, last in ((b"a", "z"), ("a", b"z"), (1, None), (None, 1)):
        with pytest.raises(InvalidRequest, match="give bytes"):
            store.fetch_range(first, last, 0, 1)  # type: ignore[arg-type]


def test_an_unwritable_checkpoint_costs_a_longer_restore_and_no_entry() -> None:
    files = FaultyFileSystem(ManualClock())
    bench = memory_bench(files)
    with bench.store() as store:
        put_all(store, [1_000, 2_000])
    store = bench.store()
    assert store.restored.written_count == 0
    put_all(store, [3_000])
    files.fail_under(bench.path("checkpoint.json"), OSError(28, "No space left on device"))
    with pytest.raises(DiskFull, match=r"checkpoint\.json"):
        store.checkpoint()
    assert store.put(b"k", b"v", 4_000)
    with pytest.raises(DiskFull, match=r"checkpoint\.json"):
        store.close()
    assert not store.segments.is_open
    files.mend()
    with bench.store() as again:
        assert again.restored.written_count == 2
        assert times(again.all()) == [1_000, 2_000, 3_000, 4_000]


@pytest.mark.parametrize("time_ms", [-1, 2**63])
def test_times_outside_the_range_are_refused_and_move_nothing(
    bench: WindowBench, store: WindowStore, time_ms: int
) -> None:
    for use in (
        lambda: store.put(b"k", b"v", time_ms),
        lambda: store.remove(b"k", time_ms),
        lambda: store.get(b"k", time_ms),
    ):
        with pytest.raises(InvalidRequest, match="is outside"):
            use()
    assert store.stream_time_ms == -1
    assert bench.starts() == []


def test_bounds_of_a_fetch_may_lie_anywhere(store: WindowStore) -> None:
    put_all(store, [5])
    assert times(store.fetch(b"k", -(2**70), 2**70)) == [5]
    assert times(store.fetch_all(-10, -5)) == []


def test_keys_the_wrong_way_round_give_nothing_and_a_warning(
    store: WindowStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(b"\x01", b"v", 5)
    with caplog.at_level(logging.WARNING):
        assert list(store.fetch_range(b"\xff", b"\x01", 0, 10)) == []
    assert "reversed" in caplog.records[0].message


def test_a_range_of_keys_finds_shorter_and_longer_ones_at_any_time(store: WindowStore) -> None:
    """Keys interleave, and above 2**56 the time's first byte is not zero."""
    base_ms = 2**57
    keys = [b"", b"\x01", b"\x01\x00", b"\x01\x02\x03", b"\x02", b"\xff\xff"]
    for key in keys:
        store.put(key, key, base_ms + len(key))
    for first in keys:
        for last in keys:
            result = store.fetch_range(first, last, base_ms, base_ms + 9)
            assert sorted(item.key for item in result) == [k for k in keys if first <= k <= last]


def test_has_next_does_not_advance(store: WindowStore) -> None:
    put_all(store, [5, 6])
    with store.all() as entries:
        assert entries.has_next()
        assert entries.has_next()
        assert next(entries).time_ms == 5
        assert next(entries).time_ms == 6
        assert not entries.has_next()
        with pytest.raises(StopIteration):
            next(entries)


def test_a_closed_iterator_has_no_more(store: WindowStore) -> None:
    put_all(store, [5, 6])
    entries = store.all()
    assert entries.has_next()
    entries.close()
    entries.close()
    assert not entries.has_next()


def test_opening_twice_is_refused_and_harmless(store: WindowStore) -> None:
    with pytest.raises(InvalidRequest, match="open already"):
        store.open()
    assert store.put(b"k", b"v", 5)
    assert times(store.all()) == [5]


def test_a_duplicate_is_found_by_get_only_when_it_is_the_latest(bench: WindowBench) -> None:
    store = bench.local(retain_duplicates=True)
    store.put(b"k", b"1", 5)
    store.put(b"other", b"2", 5)
    assert store.get(b"k", 5) is None
    assert store.get(b"other", 5) == b"2"


@pytest.mark.parametrize(
    "changes",
    [
        {"retention_ms": -1},
        {"retention_ms": 10.5},
        {"retention_ms": 1 << 63},
        {"segment_ms": -1},
        {"name": ""},
        {"name": "a/b"},
        {"name": "."},
        {"name": ".."},
        {"name": 5},
        {"name": None},
        {"name": b"s"},
        {"retention_ms": "10"},
        {"retention_ms": True},
        {"segment_ms": None},
        {"retain_duplicates": "no"},
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        WindowSettings(**{"name": "s", "retention_ms": 10, **changes})


@pytest.mark.parametrize(
    ("retention_ms", "segment_ms"), [(0, 60_000), (119_999, 60_000), (600_001, 300_000)]
)
def test_the_interval_is_half_the_retention_and_a_minute_at_least(
    retention_ms: int, segment_ms: int
) -> None:
    settings = WindowSettings(name="s", retention_ms=retention_ms)
    assert settings.segment_ms == segment_ms


PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "windows.md"


def test_the_example_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exec(example, {})
        said = re.findall(r"print\(.*\)  # ([^:\n]+)", example)
        assert capsys.readouterr().out.splitlines() == said
