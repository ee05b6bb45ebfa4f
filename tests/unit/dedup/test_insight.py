"""What is told of a deduplication: how far it is, and why each record fared as it did."""

import random

import pytest

from tests.support.dedup_cases import (
    NOW_MS,
    OUTPUT,
    append,
    draw_records,
    model_of,
    rules_of,
)
from tests.support.dedup_contract import STATE, ContractBench
from varve.dedup.insight import DedupInsight, Explanation
from varve.dedup.rules import Verdict
from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.records import Record, build_batch
from varve.topics import StoreCluster


@pytest.fixture
def bench() -> ContractBench:
    return ContractBench(rules_of())


def open_insight(bench: ContractBench, name: str = OUTPUT) -> DedupInsight:
    return DedupInsight(
        StoreCluster(bench.store), name, state_directory=STATE, file_system=bench.fs
    )


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
    bench = ContractBench(rules_of(refresh=refresh))
    records = draw_records(random.Random(41), 150)
    append(bench.input, 0, records)
    bench.run()
    insight = open_insight(bench)
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


def test_partitions_tell_position_lag_and_state(bench: ContractBench) -> None:
    records = draw_records(random.Random(42), 60)
    append(bench.input, 0, records[:40])
    bench.run()
    append(bench.input, 0, records[40:])
    (result,) = open_insight(bench).partitions()
    assert (result.progress.position, result.end_offset, result.lag) == (40, 60, 20)
    assert result.progress.rules == bench.rules
    assert result.state is not None
    assert result.state.bytes > 0
    assert len(result.state.paths) >= 1
    bench.lose_state()
    assert open_insight(bench).partitions()[0].state is None


def test_what_cannot_be_told_is_refused_with_the_reason(bench: ContractBench) -> None:
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
        open_insight(bench).explain(0, 22)
    with pytest.raises(OffsetOutOfRange, match=r"in-0 has no committed record at offset 0"):
        open_insight(bench).explain(0, 0)
    with pytest.raises(NotFound, match="out has no partition 7"):
        open_insight(bench).explain(7, 0)
    bench.input.delete_records(before=10)
    with pytest.raises(OffsetOutOfRange, match=r"in-0 has offsets 10 to 22: offset 4 cannot"):
        open_insight(bench).explain(0, 4)
    with pytest.raises(NotFound, match="has no deduplication 'nothing'"):
        open_insight(bench, "nothing").partitions()


def test_what_the_changelog_has_let_go_is_not_guessed(bench: ContractBench) -> None:
    old = Record(b"a", b"old", timestamp=NOW_MS - 900_000)
    append(bench.input, 0, [old, Record(b"b", b"new", timestamp=NOW_MS)], step=1)
    bench.run()
    assert open_insight(bench).explain(0, 0).verdict is Verdict.KEPT
    changelog = bench.store.topic(f"{OUTPUT}-dedup-changelog")
    changelog.delete_records(before=-1)
    assert open_insight(bench).explain(0, 0).verdict is None
