"""A feed gives each row with the one before it, in one order, and goes on where it was."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.feed_bench import BenchMaker, FeedBench, build_feed, row_key_of, short
from tests.support.memory_topic import MemoryTopic
from varve.records import CommittedBatches
from varve.shapes.feed import order
from varve.shapes.offset import ShapeOffset
from varve.topics import Position


def test_changes_carry_the_row_before_and_the_offset_of_their_record(bench: FeedBench) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("a", {"n": 2})
    bench.put("b", {"n": 3})
    bench.put("a", None)
    changes = bench.changes()
    assert [short(item) for item in changes] == [
        ("a", b"2", b"1"),
        ("b", b"3", None),
        ("a", None, b"2"),
    ]
    assert [item.offset for item in changes] == [
        ShapeOffset(2, 0),
        ShapeOffset(3, 0),
        ShapeOffset(4, 0),
    ]
    assert changes[0].key_columns == {"key": b'"a"'}
    assert changes[0].row == {"key": b'"a"', "n": b"2"}
    assert bench.feed.position == ShapeOffset(4, 0)


def test_what_changes_nothing_gives_no_change_and_moves_the_position(bench: FeedBench) -> None:
    bench.open()
    bench.put("a", {"n": 1})
    bench.put("a", {"n": 1})
    bench.put("gone", None)
    assert len(bench.changes()) == 1
    assert bench.feed.position == ShapeOffset(3, 0)
    assert bench.feed.counts.unchanged == 2


def test_a_topic_that_gets_more_partitions_keeps_its_offsets(bench: FeedBench) -> None:
    bench.open()
    bench.put("a", {"n": 1})
    bench.put("b", {"n": 2})
    first = bench.poll_all()
    bench.store.add_partitions("orders", 2)
    bench.put("c", {"n": 3}, partition=1)
    bench.crash()
    assert bench.poll_all()[:2] == first
    bench.put("a", {"n": 4}, partition=0)
    bench.put("c", {"n": 5}, partition=1)
    options = bench.poll_all()
    assert len(options) == 2
    bench.crash()
    assert bench.poll_all()[-2:] == options


def test_large_spans_are_read_again_in_parts(
    bench: FeedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_REPLAY_BYTES", 1000)
    bench.open()
    for number in range(2000):
        bench.put(f"k{number % 1500}", {"n": number})
    first = bench.poll_all()
    bench.store.add_partitions("orders", 2)
    bench.put("c", {"n": 3}, partition=1)
    bench.crash()
    polled = bench.feed.poll(max_records=5000, wait_ms=0)
    assert 0 < len(polled) < 1500
    assert [*[change for changes, _ in polled for change in changes], *bench.changes()][:2000] == [
        change for changes, _ in first for change in changes
    ]


def test_partitions_that_come_while_the_feed_runs_are_found(bench: FeedBench) -> None:
    bench.open()
    bench.put("a", {"n": 1})
    options = bench.poll_all()
    bench.store.add_partitions("orders", 2)
    bench.put("b", {"n": 2}, partition=1)
    bench.clock.advance(30_000)
    options += bench.poll_all()
    assert len(options) == 2
    bench.crash()
    assert bench.poll_all() == options


def test_ranges_that_the_table_has_are_cut_off_the_journal(
    tmp_path: Path, make_bench: BenchMaker
) -> None:
    bench = make_bench(partitions=2)
    bench.open()
    path = tmp_path / "tables" / "orders" / "journal"
    for number in range(40):
        bench.put(f"k{number}", {"n": number})
    while not bench.feed.is_caught_up or bench.feed.counts.records < 40:
        bench.poll(1)
    assert path.stat().st_size > 0
    bench.feed.checkpoint(bench.feed.mark())
    assert bench.crash() is None
    assert path.stat().st_size == 0
    assert bench.poll_all() == []


class _OnlyFirst(MemoryTopic):
    """Gives a partition its records only if it is asked for first, as large batches come."""

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        first = dict([next(iter(positions.items()))])
        return super().fetch(first, max_bytes=max_bytes, wait_ms=wait_ms)


def test_a_partition_that_always_has_news_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    source = _OnlyFirst(partitions=2)
    feed = build_feed(source, tmp_path)
    feed.open()
    source.append(1, b"patient", b"{}")
    options: list[str] = []
    for number in range(4):
        source.append(0, b"busy", b'{"n":%d}' % number)
        for item in feed.poll(max_records=10, wait_ms=0):
            options += [change.key for change in item.changes]
    feed.close()
    assert row_key_of("patient") in options
