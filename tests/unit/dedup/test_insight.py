"""What is told of a deduplication: how far it is, and why each record fared as it did."""

import random
from collections.abc import Iterator

import pytest

import varve
from tests.support.dedup_cases import (
    NOW_MS,
    OUTPUT,
    SIDE,
    SOURCE,
    append,
    draw_records,
    model_of,
    rules_of,
)
from varve.dedup import Deduplicator
from varve.dedup.insight import DedupInsight, Explanation
from varve.dedup.rules import DedupRules, Verdict
from varve.disk import MemoryFileSystem
from varve.embedded import Store
from varve.foundation.clock import ManualClock
from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.records import Record, build_batch
from varve.rocks.memory_database import MemoryDatabases
from varve.topics import StoreCluster


class Bench:
    """A store in memory with a partition of input, deduplicated."""

    def __init__(self, rules: DedupRules) -> None:
        self.rules = rules
        self.clock = ManualClock(NOW_MS)
        self.fs = MemoryFileSystem(self.clock)
        self.store: Store = varve.open(
            "/d", fs=self.fs, clock=self.clock, random=random.Random(1), maintain=False
        )
        self.input = self.store.create_topic(SOURCE)

    def run(self) -> None:
        with Deduplicator.open(
            self.store,
            SOURCE,
            OUTPUT,
            self.rules,
            side=SIDE,
            databases=MemoryDatabases(self.fs),
            file_system=self.fs,
            clock=self.clock,
            random=random.Random(2),
        ) as dedup:
            dedup.run_once()

    def insight(self, name: str = OUTPUT) -> DedupInsight:
        return DedupInsight(
            StoreCluster(self.store),
            name,
            state_directory="/d.dedup",
            file_system=self.fs,
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    created = Bench(rules_of())
    yield created
    created.store.close()


def check(result: Explanation, records: list[Record], output: set[bytes | None]) -> None:
    record = records[result.offset]
    rules = result.progress.rules
    match result.verdict:
        case Verdict.KEPT:
            assert record.value in output
        case Verdict.NO_ID:
            assert record.key is None
        case Verdict.MISSING:
            assert record.timestamp == -1
        case Verdict.FUTURE:
            assert record.timestamp > NOW_MS + rules.max_future_ms
        case Verdict.LATE:
            before = [item.timestamp for item in records[: result.offset]]
            newest = max(item for item in before if item <= NOW_MS + rules.max_future_ms)
            assert record.timestamp < newest - rules.lateness_ms
        case Verdict.DUPLICATE:
            assert result.witness is not None
            assert record.value not in output
            witness = records[result.witness.offset]
            assert result.witness.offset < result.offset
            assert (witness.key, witness.value in output) == (record.key, True)
            if not rules.is_refreshing:
                assert witness.timestamp == result.witness.time_ms
            apart = result.timestamp - result.witness.time_ms
            assert -rules.after_ms <= apart <= rules.before_ms
        case _:
            raise AssertionError(f"nothing is told of offset {result.offset}")


@pytest.mark.parametrize("refresh", [False, True])
def test_every_record_is_explained(refresh: bool) -> None:
    bench = Bench(rules_of(refresh=refresh))
    records = draw_records(random.Random(41), 150)
    append(bench.input, 0, records)
    bench.run()
    insight = bench.insight()
    model = model_of(bench.rules, records)
    result = [insight.explain(0, offset) for offset in range(len(records))]
    for item in result:
        check(item, records, set(model.output))
    assert {item.verdict for item in result} == set(Verdict)
    (partition,) = insight.partitions()
    counts = partition.progress.counts
    assert sum(item.verdict is Verdict.DUPLICATE for item in result) == counts.duplicates
    assert sum(item.verdict is Verdict.KEPT for item in result) == counts.kept
    insight.close()
    bench.store.close()


def test_partitions_tell_position_lag_and_state(bench: Bench) -> None:
    records = draw_records(random.Random(42), 60)
    append(bench.input, 0, records[:40])
    bench.run()
    append(bench.input, 0, records[40:])
    (result,) = bench.insight().partitions()
    assert (result.progress.position, result.end_offset, result.lag) == (40, 60, 20)
    assert result.progress.rules == bench.rules
    assert result.state is not None
    assert result.state.bytes > 0
    assert len(result.state.paths) >= 1
    bench.fs.remove_tree("/d.dedup")
    assert bench.insight().partitions()[0].state is None


def test_what_cannot_be_told_is_refused_with_the_reason(bench: Bench) -> None:
    log = bench.input.partition(0).log
    batch = build_batch(
        [Record(b"k", b"never", timestamp=NOW_MS)],
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append(batch)
    log.end_transaction(producer_id=5, producer_epoch=0, committed=False)
    append(bench.input, 0, draw_records(random.Random(43), 20), step=1)
    bench.run()
    append(bench.input, 0, [Record(b"k", b"new", timestamp=NOW_MS)])
    with pytest.raises(OffsetOutOfRange, match=r"offset 22 was not processed yet, out is at 22"):
        bench.insight().explain(0, 22)
    with pytest.raises(OffsetOutOfRange, match=r"in-0 has no committed record at offset 0"):
        bench.insight().explain(0, 0)
    with pytest.raises(NotFound, match="out has no partition 7"):
        bench.insight().explain(7, 0)
    bench.input.delete_records(before=10)
    with pytest.raises(OffsetOutOfRange, match=r"in-0 has offsets 10 to 22: offset 4 cannot"):
        bench.insight().explain(0, 4)
    with pytest.raises(NotFound, match="has no deduplication 'nothing'"):
        bench.insight("nothing").partitions()


def test_what_the_changelog_has_let_go_is_not_guessed(bench: Bench) -> None:
    old = Record(b"a", b"old", timestamp=NOW_MS - 900_000)
    append(bench.input, 0, [old, Record(b"b", b"new", timestamp=NOW_MS)], step=1)
    bench.run()
    assert bench.insight().explain(0, 0).verdict is Verdict.KEPT
    changelog = bench.store.topic(f"{OUTPUT}-dedup-changelog")
    changelog.delete_records(before=-1)
    assert bench.insight().explain(0, 0).verdict is None
