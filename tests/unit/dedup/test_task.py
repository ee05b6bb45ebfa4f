"""One partition of a deduplication: exact, and exact again after whatever was lost."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

import varve
from tests.support.dedup_cases import (
    NOW_MS,
    OUTPUT,
    SIDE,
    SOURCE,
    append,
    committed,
    draw_records,
    model_of,
    open_transactions,
    rules_of,
)
from varve.dedup.backend import DedupBackend
from varve.dedup.rules import DedupRules, LatePolicy, NullPolicy
from varve.dedup.task import Task, TaskContext, TaskSettings, TaskState
from varve.dedup.topics import DedupTopics, topic_settings
from varve.disk import MemoryFileSystem
from varve.embedded import Store
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest, Locked, OffsetOutOfRange, RecordTooLarge
from varve.records import Record, build_batch
from varve.rocks.memory_database import MemoryDatabases
from varve.topics import StoreCluster

RULES = rules_of()
AS_USUAL = TaskSettings()
STATE = "/d.dedup/out"


class Bench:
    """A store in memory, one partition of input, and tasks over it."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.fs = MemoryFileSystem(self.clock)
        self.store: Store = varve.open(
            "/d", fs=self.fs, clock=self.clock, random=random.Random(1), maintain=False
        )
        self.input = self.store.create_topic(SOURCE)
        self.told: list[TaskState] = []

    def task(
        self, rules: DedupRules = RULES, *, name: str = OUTPUT, settings: TaskSettings = AS_USUAL
    ) -> Task:
        topics = DedupTopics(
            input=SOURCE,
            output=OUTPUT,
            name=name,
            side=SIDE if rules.late is LatePolicy.SIDE else None,
        )
        created = topic_settings(
            topics, retention_ms=rules.retention_ms, segment_ms=rules.segment_ms
        )
        cluster = StoreCluster(self.store)
        backend = DedupBackend(cluster, topics, settings=created, clock=self.clock)
        backend.prepare()
        place = TaskContext(
            backend=backend,
            rules=rules,
            settings=settings,
            state_directory=f"/d.dedup/{name}",
            databases=MemoryDatabases(self.fs),
            file_system=self.fs,
            clock=self.clock,
            random=random.Random(3),
            on_progress=self.told.append,
        )
        return Task(place, 0)

    def run(
        self, rules: DedupRules = RULES, *, is_clean: bool = True, settings: TaskSettings = AS_USUAL
    ) -> Task:
        """A start, all that is there, and an end."""
        task = self.task(rules, settings=settings)
        task.open()
        while task.run_once():
            pass
        task.close(is_clean=is_clean)
        return task

    def check(self, records: list[Record], rules: DedupRules = RULES) -> None:
        model = model_of(rules, records)
        assert committed(self.store, OUTPUT) == model.output
        if rules.late is LatePolicy.SIDE:
            assert committed(self.store, SIDE) == model.side
        assert open_transactions(self.store) == 0


@pytest.fixture
def bench() -> Iterator[Bench]:
    created = Bench()
    yield created
    created.store.close()


@pytest.mark.parametrize("chunk_bytes", [1, 900, 1 << 20])
def test_where_chunks_are_cut_changes_nothing(bench: Bench, chunk_bytes: int) -> None:
    records = draw_records(random.Random(5), 240)
    append(bench.input, 0, records)
    bench.run(settings=TaskSettings(chunk_bytes=chunk_bytes))
    bench.check(records)


def test_a_chunk_has_no_more_records_than_fit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve.dedup.task._CHUNK_RECORDS_MAX", 20)
    records = draw_records(random.Random(5), 70)
    append(bench.input, 0, records)
    bench.run()
    bench.check(records)
    assert [item.position for item in bench.told] == [0, 21, 42, 63, 70]


@pytest.mark.parametrize(
    "rules",
    [
        rules_of(late=LatePolicy.FORWARD),
        rules_of(late=LatePolicy.DROP, null=NullPolicy.DROP),
        rules_of(refresh=True),
        rules_of(before=0, after=3_000, lateness=0),
    ],
)
def test_every_policy_has_its_records_where_it_says(bench: Bench, rules: DedupRules) -> None:
    records = draw_records(random.Random(6), 300)
    append(bench.input, 0, records)
    task = bench.task(rules)
    task.open()
    while task.run_once():
        pass
    assert task.state().counts.total == len(records)
    task.close()
    bench.check(records, rules)


def test_records_come_out_as_they_came(bench: Bench) -> None:
    options = Record(b"k", b"v", (("a", b"1"), ("b", None)), timestamp=NOW_MS - 5)
    append(bench.input, 0, [options])
    bench.run()
    (result,) = bench.store.topic(OUTPUT).read()
    assert (result.key, result.value, result.headers, result.timestamp) == (
        options.key,
        options.value,
        options.headers,
        options.timestamp,
    )


@pytest.mark.parametrize("loss", ["nothing", "unflushed", "directory", "checkpoint", "segments"])
def test_ids_survive_whatever_happens_to_their_directory(bench: Bench, loss: str) -> None:
    records = draw_records(random.Random(7), 300)
    append(bench.input, 0, records[:150])
    bench.run(is_clean=loss != "unflushed", settings=TaskSettings(chunk_bytes=500))
    match loss:
        case "directory":
            bench.fs.remove_tree(f"{STATE}/0")
        case "checkpoint":
            with bench.fs.open_writable(f"{STATE}/0/checkpoint.json") as file:
                file.write_at(0, b"no")
        case "segments":
            for item in bench.fs.scan(f"{STATE}/0"):
                if item.is_directory:
                    bench.fs.remove_tree(f"{STATE}/0/{item.name}")
    append(bench.input, 0, records[150:])
    bench.run()
    bench.check(records)


def test_a_checkpoint_spares_the_restore(bench: Bench) -> None:
    records = draw_records(random.Random(8), 200)
    append(bench.input, 0, records)
    bench.run()
    bench.told.clear()
    bench.run()
    assert [item for item in bench.told if item.restore_end] == []
    bench.fs.remove_tree(f"{STATE}/0")
    bench.run()
    assert [item.restored for item in bench.told if item.restore_end][-1] > 0


def test_ids_are_checkpointed_when_many_are_new_or_time_has_passed(bench: Bench) -> None:
    records = draw_records(random.Random(9), 100)
    append(bench.input, 0, records)
    task = bench.task(settings=TaskSettings(checkpoint_entries=10, chunk_bytes=2_000))
    task.open()
    task.run_once()
    assert bench.fs.exists(f"{STATE}/0/checkpoint.json")
    bench.fs.remove(f"{STATE}/0/checkpoint.json")
    task.close(is_clean=False)
    task = bench.task(settings=TaskSettings(checkpoint_ms=1_000))
    task.open()
    task.run_once()
    assert not bench.fs.exists(f"{STATE}/0/checkpoint.json")
    bench.clock.advance(1_000)
    task.maintain_if_due()
    assert bench.fs.exists(f"{STATE}/0/checkpoint.json")
    task.close()


def test_a_changelog_that_ends_before_the_checkpoint_is_read_from_its_start(bench: Bench) -> None:
    records = draw_records(random.Random(10), 120)
    append(bench.input, 0, records[:60])
    task = bench.run()
    store = bench.task()
    store.open()
    store._get_store().checkpoint(10_000_000)
    store.close(is_clean=False)
    append(bench.input, 0, records[60:])
    bench.run()
    bench.check(records)
    assert task.state().counts.total == 60


def test_other_rules_are_refused_and_other_policies_are_not(bench: Bench) -> None:
    append(bench.input, 0, draw_records(random.Random(11), 50))
    bench.run()
    with pytest.raises(
        InvalidRequest, match=r"by key, 1000 ms before.*start again with another --name"
    ):
        bench.task(rules_of(before=999)).open()
    bench.run(replace(RULES, late=LatePolicy.DROP, future=LatePolicy.DROP, missing=LatePolicy.DROP))
    other = bench.task(rules_of(before=999), name="other")
    other.open()
    other.close()


def test_more_lateness_does_not_trust_what_was_forgotten(bench: Bench) -> None:
    """A record that was late stays so: its window is no longer whole."""
    append(bench.input, 0, [Record(b"a", b"0", timestamp=NOW_MS - 50_000)])
    append(bench.input, 0, [Record(b"b", b"1", timestamp=NOW_MS - 40_000)])
    bench.run(rules_of(lateness=100))
    append(bench.input, 0, [Record(b"a", b"2", timestamp=NOW_MS - 50_000)])
    task = bench.run(rules_of(lateness=90_000))
    assert task.state().counts.late == 1


def test_topics_that_were_made_again_are_told(bench: Bench) -> None:
    append(bench.input, 0, draw_records(random.Random(12), 20))
    bench.run()
    bench.store.delete_topic(SOURCE, at_once=True)
    bench.input = bench.store.create_topic(SOURCE)
    with pytest.raises(InvalidRequest, match=r"topic in was deleted and created again"):
        bench.task().open()


def test_a_name_is_of_one_input(bench: Bench) -> None:
    append(bench.input, 0, draw_records(random.Random(12), 20))
    bench.run()
    bench.store.create_topic("elsewhere")
    task = bench.task()
    task._backend.topics = replace(task._backend.topics, output="elsewhere")
    with pytest.raises(InvalidRequest, match=r"out is from in to out, not from in to elsewhere"):
        task.open()


def test_records_that_were_deleted_unread_are_told(bench: Bench) -> None:
    records = draw_records(random.Random(13), 40)
    append(bench.input, 0, records[:20], step=5)
    bench.run()
    append(bench.input, 0, records[20:], step=5)
    bench.input.delete_records(before=30)
    with pytest.raises(OffsetOutOfRange, match=r"in-0 begins at offset 30.*up to 20.*--skip-lost"):
        bench.task().open()
    task = bench.run(settings=TaskSettings(skips_lost=True))
    assert task.state().counts.total == 30


def test_an_error_names_partition_and_offset(bench: Bench) -> None:
    bench.store.create_topic(OUTPUT, settings={"max.message.bytes": 500})
    small = [Record(b"%d" % item, b"s", timestamp=NOW_MS) for item in range(5)]
    append(bench.input, 0, [*small, Record(b"k", bytes(600), timestamp=NOW_MS)], step=1)
    task = bench.task(settings=TaskSettings(chunk_bytes=1))
    task.open()
    for _ in range(5):
        assert task.run_once()
    with pytest.raises(RecordTooLarge, match=r"in-0, offset 5: the record with offset 5"):
        task.run_once()
    assert committed(bench.store, OUTPUT) == [b"s"] * 5
    assert open_transactions(bench.store) == 0
    task.close(is_clean=False)


def test_offsets_without_committed_records_are_left_behind(bench: Bench) -> None:
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
    task = bench.run()
    assert task.state().position == 2
    again = bench.task()
    again.open()
    assert again.state().position == 2
    assert not again.run_once()
    again.close()
    assert committed(bench.store, OUTPUT) == []


def test_what_is_open_in_the_input_is_waited_for(bench: Bench) -> None:
    log = bench.input.partition(0).log
    append(bench.input, 0, [Record(b"a", b"first", timestamp=NOW_MS)])
    for sequence in range(2):
        batch = build_batch(
            [Record(b"k%d" % sequence, b"open", timestamp=NOW_MS)],
            producer_id=5,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        log.append(batch)
    bench.run()
    assert committed(bench.store, OUTPUT) == [b"first"]
    log.end_transaction(producer_id=5, producer_epoch=0, committed=True)
    bench.run()
    assert committed(bench.store, OUTPUT) == [b"first", b"open", b"open"]


def test_time_that_passes_expires_nothing(bench: Bench) -> None:
    """Ids go by the stream time alone, however long nothing comes."""
    append(bench.input, 0, [Record(b"a", b"first", timestamp=NOW_MS)])
    task = bench.task()
    task.open()
    task.run_once()
    bench.clock.advance(10 * 24 * 3_600_000)
    task.maintain_if_due()
    append(bench.input, 0, [Record(b"a", b"copy", timestamp=NOW_MS + 10)])
    task.run_once()
    assert task.state().counts.duplicates == 1
    task.close()


def test_a_state_directory_in_use_fences_nobody(bench: Bench) -> None:
    records = draw_records(random.Random(5), 30)
    running = bench.task()
    running.open()
    with pytest.raises(Locked):
        bench.task().open()
    append(bench.input, 0, records)
    running.run_once()
    running.close()
    bench.check(records)
