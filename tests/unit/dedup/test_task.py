"""One partition of a deduplication: its chunks, its checkpoints and its state directory."""

import random

import pytest

from tests.support.dedup_cases import NOW_MS, OUTPUT, append, draw_records, rules_of
from tests.support.dedup_contract import STATE, ContractBench
from varve.foundation.errors import Locked
from varve.records import Record, build_batch

CHECKPOINT = f"{STATE}/{OUTPUT}/0/checkpoint.json"


@pytest.fixture
def bench() -> ContractBench:
    return ContractBench(rules_of())


def test_a_chunk_has_no_more_records_than_fit(
    bench: ContractBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve.dedup.task._CHUNK_RECORDS_MAX", 20)
    records = draw_records(random.Random(5), 70)
    append(bench.input, 0, records)
    bench.run()
    bench.check(records)
    assert [item.position for item in bench.reports] == [0, 21, 42, 63, 70]


def test_a_checkpoint_spares_the_restore(bench: ContractBench) -> None:
    append(bench.input, 0, draw_records(random.Random(8), 200))
    bench.run()
    bench.reports.clear()
    bench.run()
    assert [item for item in bench.reports if item.restore_end] == []
    bench.lose_state()
    bench.run()
    assert [item.restored for item in bench.reports if item.restore_end][-1] > 0


def test_ids_are_checkpointed_when_many_are_new_or_time_has_passed(bench: ContractBench) -> None:
    append(bench.input, 0, draw_records(random.Random(9), 100))
    with bench.open(checkpoint_entries=10, chunk_bytes=2_000) as dedup:
        dedup.run_once()
        assert bench.fs.exists(CHECKPOINT)
    append(bench.input, 0, draw_records(random.Random(9), 100, first=100))
    with bench.open(checkpoint_ms=1_000) as dedup:
        bench.fs.remove(CHECKPOINT)
        dedup.run_once()
        assert not bench.fs.exists(CHECKPOINT)
        bench.clock.advance(1_000)
        (task,) = dedup._workers[0].tasks
        task.maintain_if_due()
        assert bench.fs.exists(CHECKPOINT)


def test_a_changelog_that_ends_before_the_checkpoint_is_read_from_its_start(
    bench: ContractBench,
) -> None:
    records = draw_records(random.Random(10), 120)
    append(bench.input, 0, records[:60])
    bench.run()
    with bench.open() as dedup:
        (task,) = dedup._workers[0].tasks
        task._changelog_end = 10_000_000
    append(bench.input, 0, records[60:])
    bench.run()
    bench.check(records)


def test_offsets_without_committed_records_are_left_behind(bench: ContractBench) -> None:
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
    assert bench.run().total == 0
    assert bench.progress().position == 2
    assert bench.records() == []


def test_a_state_directory_in_use_fences_nobody(bench: ContractBench) -> None:
    records = draw_records(random.Random(5), 30)
    with bench.open() as running:
        with pytest.raises(Locked):
            bench.open()
        append(bench.input, 0, records)
        running.run_once()
    bench.check(records)


def test_ids_from_before_an_erasure_are_restored_from_the_changelog(bench: ContractBench) -> None:
    append(bench.input, 0, draw_records(random.Random(8), 200))
    mark = {"varve.erasure.last": "e at 1"}
    with bench.open() as dedup:
        dedup.run_once()
        (task,) = dedup._workers[0].tasks
        before = task._get_store()
        bench.reports.clear()
        bench.store.alter_topic(bench.input.name, mark)
        task.maintain_if_due()
        assert task._get_store() is before
        bench.clock.advance(30_000)
        task.maintain_if_due()
        assert task._get_store() is not before
        assert [item.restored for item in bench.reports if item.restore_end][-1] > 0
    bench.reports.clear()
    bench.run()
    assert [item for item in bench.reports if item.restore_end] == [], "once"
