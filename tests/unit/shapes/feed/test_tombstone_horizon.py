"""What a log that has lost records leaves uncertain, and when it has lost too much."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.feed_bench import BenchMaker, FeedBench, short
from tests.support.memory_topic import MemoryTopic
from varve.foundation.clock import ManualClock
from varve.shapes.feed.resuming import TombstoneHorizon
from varve.shapes.feed.table_store import ResetKind
from varve.shapes.offset import ShapeOffset


def test_gaps_after_a_restart_make_the_first_record_of_a_key_uncertain(
    make_bench: BenchMaker,
) -> None:
    bench = make_bench(settings={"cleanup.policy": "compact", "segment.bytes": 300})
    bench.open()
    bench.put("a", {"n": 1})
    bench.put("b", {"n": 1})
    bench.put("a", {"n": 2})
    bench.put("a", {"n": 3})
    bench.poll_all()
    bench.store.clean("orders", roll=True, at_once=True)
    bench.put("b", {"n": 2})
    assert bench.crash() is None
    result = [(short(item), item.is_uncertain) for item in bench.changes()]
    assert result == [
        (("b", b"1", None), True),
        (("a", b"3", None), True),
        (("b", b"2", b"1"), True),
    ]
    bench.put("a", {"n": 4})
    assert [item.is_uncertain for item in bench.changes()] == [False]


def test_a_gap_before_a_checkpoint_makes_uncertain_what_lies_behind_it(
    make_bench: BenchMaker,
) -> None:
    bench = make_bench(settings={"cleanup.policy": "compact"})
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("a", {"n": 2})
    bench.put("b", {"n": 1})
    bench.put("a", {"n": 1})
    assert [item.offset for item in bench.changes()][-1] == ShapeOffset(4, 0)
    bench.store.clean("orders", roll=True, at_once=True)
    bench.crash()
    assert [short(item.changes[0]) for item in bench.poll(1)] == [("b", b"1", None)]
    bench.feed.checkpoint(bench.feed.mark())
    for _ in range(2):
        # The row is that of the table, but shapes may hold another one.
        result = [(short(item), item.offset, item.is_uncertain) for item in bench.changes()]
        assert result == [(("a", b"1", b"1"), ShapeOffset(4, 0), True)]
        assert bench.crash() is None
    bench.changes()
    bench.feed.checkpoint(bench.feed.mark())
    bench.crash()
    bench.put("a", {"n": 3})
    assert [item.is_uncertain for item in bench.changes()] == [False]


def test_deletions_that_may_be_lost_reset_the_topic(make_bench: BenchMaker) -> None:
    settings: dict[str, str | int] = {"cleanup.policy": "compact", "delete.retention.ms": 1000}
    bench = make_bench(settings=settings)
    bench.open()
    for number in range(3):
        bench.put("a", {"n": number})
    bench.store.clean("orders", roll=True, at_once=True)
    bench.crash()
    bench.clock.advance(1001)
    (only,) = bench.poll()
    assert only.reset is not None
    assert only.reset.kind is ResetKind.SOURCE_LOST
    assert "tombstones may have left the log" in only.reset.text


def test_deletions_may_be_lost_under_settings_altered_while_the_feed_runs(
    make_bench: BenchMaker,
) -> None:
    bench = make_bench(settings={"cleanup.policy": "delete"})
    bench.open()
    bench.put("z", {"n": 0})
    bench.poll_all()
    bench.store.alter_topic("orders", {"cleanup.policy": "compact", "delete.retention.ms": 1000})
    for number in range(3):
        bench.put("a", {"n": number})
    bench.store.clean("orders", roll=True, at_once=True)
    bench.clock.advance(1001)
    (only,) = bench.poll()
    assert only.reset is not None
    assert "delete.retention.ms=1000" in only.reset.text


class _Settings(MemoryTopic):
    """Has another retention of tombstones each time it is asked."""

    def __init__(self, *retentions_ms: int | None) -> None:
        super().__init__()
        self.left = list(retentions_ms)

    def settings(self) -> Mapping[str, str]:
        self.tombstones_ms = self.left.pop(0)
        return super().settings()


def test_how_long_deletions_are_kept_is_asked_for_seldom() -> None:
    clock = ManualClock()
    topic = _Settings(None, 60_000, 10_000, 1_000)
    horizon = TombstoneHorizon(topic, clock, clock.now_ms())
    assert not horizon.may_have_passed()
    assert len(topic.left) == 3
    clock.advance(1_001)
    horizon.advance()
    for _ in range(3):
        assert not horizon.may_have_passed()
        assert len(topic.left) == 2
    clock.advance(1_000)
    horizon.advance()
    assert not horizon.may_have_passed()
    clock.advance(1_000)
    horizon.advance()
    assert horizon.may_have_passed()
    assert topic.left == []


def _without_an_early_record(path: Path) -> FeedBench:
    """A feed that was at the end of its topic, then stopped, and now finds a gap."""
    settings: dict[str, str | int] = {"cleanup.policy": "compact", "delete.retention.ms": 60_000}
    bench = FeedBench(path, settings=settings)
    bench.put("z", {"n": 0})
    bench.open()
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    bench.feed.close()
    for number in range(3):
        bench.put("a", {"n": number})
    bench.store.clean("orders", roll=True, at_once=True)
    return bench


def test_a_clock_set_back_while_the_feed_was_closed_counts_as_long_away(tmp_path: Path) -> None:
    bench = _without_an_early_record(tmp_path)
    bench.clock.advance(-1)
    bench.crash()
    (only,) = bench.poll()
    assert only.reset is not None
    assert "at an unknown time" in only.reset.text
    bench.close()


@pytest.mark.parametrize(
    ("retention_ms", "has_passed"), [(29, (True, True)), (39, (False, True)), (40, (False, False))]
)
def test_a_clock_set_back_while_the_feed_runs_takes_nothing_from_its_absence(
    retention_ms: int, has_passed: tuple[bool, bool]
) -> None:
    clock = ManualClock()
    topic = MemoryTopic()
    topic.tombstones_ms = retention_ms
    horizon = TombstoneHorizon(topic, clock, clock.now_ms() - 30)
    clock.advance(-50)
    horizon.advance()
    assert horizon.may_have_passed() is has_passed[0]
    clock.advance(10)
    horizon.advance()
    assert horizon.may_have_passed() is has_passed[1]
