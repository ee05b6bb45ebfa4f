"""A table that takes longer to fill than its topic keeps deletions."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.feed_bench import build_feed, row_key_of
from tests.support.slow_topic import SlowTopic
from varve.foundation.clock import ManualClock
from varve.shapes.feed.initial_load import FullScan, InitialRows

_KEPT_MS: Final = 1000


class _Bench:
    """Rows a and b, others, and a deletion of a that lies far behind it."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.source = SlowTopic(self.clock, tombstones_ms=_KEPT_MS)
        self.fillings = 0
        self.opened: Callable[[], None] = lambda: None
        self.open_rows: Callable[[], InitialRows] = self._open_rows
        for key in ("a", "b", "c", "d", "e", "f"):
            self.put(key, 1)
        self.source.append(0, b"a", None)
        self.put("g", 1)
        self.feed = build_feed(
            self.source, path / "tables", rows=lambda reader: self.open_rows(), clock=self.clock
        )

    def put(self, key: str, n: int) -> None:
        self.source.append(0, key.encode(), b'{"n": %d}' % n)

    def keys(self) -> list[str]:
        with self.feed.view() as view:
            return sorted(key for key, _ in view.rows())

    def clean_twice(self) -> None:
        self.source.clean()
        self.clock.advance(_KEPT_MS + 1)
        self.source.clean()

    def _open_rows(self) -> InitialRows:
        self.fillings += 1
        reader = FullScan(self.source)
        self.opened()
        return reader


@pytest.fixture
def bench(tmp_path: Path) -> _Bench:
    return _Bench(tmp_path)


def test_rows_whose_deletions_went_before_they_were_read_are_not_kept(
    bench: _Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def happen(next_offset: int) -> None:
        if next_offset == 3:
            bench.clean_twice()

    bench.source.happen = happen
    bench.feed.open()
    assert bench.keys() == [row_key_of(key) for key in "bcdefg"]
    assert bench.fillings == 2
    assert "took longer to load than tombstones are kept" in caplog.text
    bench.feed.close()


def test_a_filling_within_the_time_reads_once(bench: _Bench) -> None:
    bench.clean_twice()
    bench.clock.advance(_KEPT_MS)
    bench.source.happen = lambda next_offset: bench.clock.advance(_KEPT_MS // 10)
    bench.feed.open()
    assert bench.fillings == 1
    bench.feed.close()


def test_a_topic_that_keeps_all_is_read_once_however_long_it_takes(bench: _Bench) -> None:
    bench.source.tombstones_ms = None
    bench.source.happen = lambda next_offset: bench.clock.advance(_KEPT_MS + 1)
    bench.feed.open()
    assert bench.fillings == 1
    bench.feed.close()


def test_a_filling_that_is_stopped_while_it_is_checked_begins_anew(bench: _Bench) -> None:
    def happen(next_offset: int) -> None:
        if next_offset == 3:
            bench.clean_twice()
        if bench.fillings == 2:
            raise OSError("killed")

    bench.source.happen = happen
    with pytest.raises(OSError, match="killed"):
        bench.feed.open()
    bench.source.happen = lambda next_offset: None
    reset = bench.feed.open()
    assert reset is not None
    assert bench.keys() == [row_key_of(key) for key in "bcdefg"]
    assert bench.fillings == 3
    bench.feed.close()


def test_deletions_that_went_since_an_old_state_was_taken_reset_the_topic(bench: _Bench) -> None:
    reader = FullScan(bench.source)
    reader.taken_ms = bench.clock.now_ms()
    records = [list(part) for part in reader.read()]
    bench.source.append(0, b"b", None)
    bench.put("h", 1)
    bench.clean_twice()
    bench.open_rows = lambda: reader
    reader.read = lambda: iter(records)  # type: ignore[method-assign]  # as a snapshot has them
    bench.feed.open()
    (only,) = bench.feed.poll(max_records=10, wait_ms=0)
    assert only.reset is not None
    assert "tombstones may have left the log" in only.reset.text
    bench.feed.close()
