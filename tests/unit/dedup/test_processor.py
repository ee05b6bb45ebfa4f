"""All partitions of a deduplication, in a store and behind a server."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from varve.dedup import Deduplicator
from varve.dedup.rules import LatePolicy
from varve.dedup.task import TaskSettings, TaskState
from varve.disk import MemoryFileSystem
from varve.embedded import Store
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Fenced, InvalidRequest, NotFound, RecordTooLarge, StoreError
from varve.foundation.metrics import exposition
from varve.kafka_client.address import ClusterAddress, parse_cluster_address
from varve.kafka_client.client import KafkaClient
from varve.kafka_client.transaction import fetch_offsets
from varve.records import Record
from varve.rocks.memory_database import MemoryDatabases
from varve.testing import KafkaKit

RULES = rules_of()
PARTITIONS = 3
SMALL = TaskSettings(chunk_bytes=700)


class Bench:
    """Where a deduplication is opened: `place` is a store or the address of a server."""

    def __init__(self, store: Store, place: Store | ClusterAddress) -> None:
        self.store = store
        self.place = place
        self.clock = ManualClock(NOW_MS)
        self.fs = MemoryFileSystem(self.clock)
        self.told: list[TaskState] = []

    def open(self, **more: object) -> Deduplicator:
        options = {"settings": SMALL, "side": SIDE, "rules": RULES, **more}
        return Deduplicator.open(
            self.place,
            SOURCE,
            OUTPUT,
            state="/state",
            databases=MemoryDatabases(self.fs),
            file_system=self.fs,
            clock=self.clock,
            random=random.Random(4),
            on_progress=self.told.append,
            **options,  # type: ignore[arg-type]  # a dict of tests
        )

    def fill(self, count: int, seed: int = 0) -> dict[int, list[Record]]:
        created = {}
        for partition in range(PARTITIONS):
            created[partition] = draw_records(random.Random(seed * 10 + partition), count)
            append(self.store.topic(SOURCE), partition, created[partition])
        return created

    def check(self, records: dict[int, list[Record]]) -> None:
        for partition, options in records.items():
            model = model_of(RULES, options)
            assert committed(self.store, OUTPUT, partition) == model.output
            assert committed(self.store, SIDE, partition) == model.side
        assert open_transactions(self.store) == 0


@pytest.fixture
def embedded() -> Iterator[Bench]:
    clock = ManualClock(NOW_MS)
    fs = MemoryFileSystem(clock)
    with varve.open("/d", fs=fs, clock=clock, random=random.Random(1), maintain=False) as store:
        store.create_topic(SOURCE, partitions=PARTITIONS)
        yield Bench(store, store)


@pytest.fixture
def kit() -> Iterator[KafkaKit]:
    with KafkaKit() as created:
        yield created


@pytest.fixture
def served(kit: KafkaKit) -> Bench:
    address = parse_cluster_address({"bootstrap.servers": kit.bootstrap})
    assert address is not None
    client = KafkaClient(address, threading.Event().wait)
    client.create_topic(SOURCE, partitions=PARTITIONS, exist_ok=True)
    client.close()
    return Bench(kit.store, address)


@pytest.fixture(params=["embedded", "served"])
def bench(request: pytest.FixtureRequest) -> Bench:
    result = request.getfixturevalue(request.param)
    assert isinstance(result, Bench)
    return result


def test_all_partitions_come_out_without_duplicates(bench: Bench) -> None:
    records = bench.fill(80)
    with bench.open() as dedup:
        dedup.run_once()
        assert [item.lag for item in dedup.states()] == [0] * PARTITIONS
        assert sum(item.counts.total for item in dedup.states()) == 80 * PARTITIONS
    bench.check(records)
    more = bench.fill(40, seed=1)
    with bench.open() as dedup:
        dedup.run_once()
        counts = [item.counts.total for item in dedup.states()]
    assert counts == [120] * PARTITIONS, "counts are those of a life"
    bench.check({item: records[item] + more[item] for item in records})


def test_a_first_start_that_was_cut_off_is_begun_again(embedded: Bench) -> None:
    """The changelog is made first; before its first entry nothing is lost without the progress."""
    records = embedded.fill(20)
    embedded.store.create_topic(f"{OUTPUT}-dedup-changelog", partitions=PARTITIONS)
    with embedded.open() as dedup:
        dedup.run_once()
    embedded.check(records)


def test_an_input_is_followed_until_the_stop(bench: Bench) -> None:
    with following(bench) as failures:
        records = bench.fill(30)
        wait_for(bench, 30 * PARTITIONS, failures)
    bench.check(records)


def test_a_second_instance_fences_the_first(bench: Bench) -> None:
    records = bench.fill(30)
    first = bench.open()
    second_fs = Bench(bench.store, bench.place)
    with second_fs.open() as second:
        second.run_once()
    more = bench.fill(10, seed=1)
    with pytest.raises(StoreError) as caught:
        first.run_once()
    assert isinstance(caught.value, Fenced) or "newer instance" in str(caught.value)
    first.close()
    with second_fs.open() as third:
        third.run_once()
    bench.check({item: records[item] + more[item] for item in records})


def test_one_partition_that_fails_ends_all_and_is_named(embedded: Bench) -> None:
    embedded.store.create_topic(OUTPUT, partitions=PARTITIONS, settings={"max.message.bytes": 600})
    topic = embedded.store.topic(SOURCE)
    append(topic, 1, [Record(b"k", bytes(700), timestamp=NOW_MS)])
    with (
        pytest.raises(RecordTooLarge, match=r"in-1, offset 0: .*max\.message\.bytes"),
        embedded.open() as dedup,
    ):
        dedup.run_once()
    assert open_transactions(embedded.store) == 0


def test_progress_is_told_and_measured(embedded: Bench) -> None:
    records = embedded.fill(60)
    with embedded.open() as dedup:
        dedup.run_once()
        text = exposition(dedup.metrics)
        kept = sum(dedup.metrics.value("kept", item) for item in range(PARTITIONS))
        assert kept == sum(item.counts.kept for item in dedup.states())
    assert 'varve_dedup_lag_records{name="out",partition="0",topic="in"} 0.0' in text
    last = {item.partition: item for item in embedded.told}
    assert [last[item].position for item in range(PARTITIONS)] == [60] * PARTITIONS
    with embedded.open() as again:
        assert again.metrics.value("kept", 0) == 0, "counted since the process began"
    embedded.check(records)


def test_a_side_topic_goes_with_its_policy(embedded: Bench) -> None:
    with pytest.raises(InvalidRequest, match="a side topic requires a policy"):
        embedded.open(side=None)
    with pytest.raises(InvalidRequest, match="a side topic requires a policy"):
        embedded.open(rules=rules_of(late=LatePolicy.DROP))


def test_a_lacking_input_is_told(bench: Bench) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        Deduplicator.open(
            bench.place,
            "nowhere",
            OUTPUT,
            rules_of(late=LatePolicy.DROP),
            state="/state",
            databases=MemoryDatabases(bench.fs),
            file_system=bench.fs,
        )


def test_a_server_tells_the_lag_by_a_group(served: Bench) -> None:
    served.fill(30)
    with served.open() as dedup:
        dedup.run_once()
    assert isinstance(served.place, ClusterAddress)
    client = KafkaClient(served.place, threading.Event().wait)
    notes = fetch_offsets(client, "varve-dedup-out")
    client.close()
    assert sorted((item.topic, item.partition, item.offset) for item in notes) == [
        (SOURCE, partition, 30) for partition in range(PARTITIONS)
    ]


def test_a_server_may_lose_its_power(served: Bench, kit: KafkaKit) -> None:
    """What it lost is written again; ids that were remembered of it are forgotten."""
    records = served.fill(40)
    kit.store.flush()
    with served.open() as dedup:
        dedup.run_once()
    kit.restart(crash=True)
    served.store = kit.store
    with served.open() as dedup:
        dedup.run_once()
    served.check(records)


def test_a_server_may_be_started_anew_under_a_run(served: Bench, kit: KafkaKit) -> None:
    with following(served) as failures:
        records = served.fill(30)
        for round in (1, 2):
            wait_for(served, 30 * round * PARTITIONS, failures)
            kit.restart()
            served.store = kit.store
            for partition, more in served.fill(30, seed=round).items():
                records[partition] = records[partition] + more
        wait_for(served, 90 * PARTITIONS, failures)
    served.check(records)


@contextmanager
def following(bench: Bench) -> Iterator[list[BaseException]]:
    """A deduplication that runs in a thread meanwhile, and what it fails of: in the end nothing."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            with bench.open() as dedup:
                dedup.run(stop)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(20)
    assert failures == []


def taken(bench: Bench) -> int:
    """How many records were told of as committed."""
    return sum({item.partition: item.counts.total for item in bench.told}.values())


def wait_for(bench: Bench, count: int, failures: Sequence[BaseException]) -> None:
    for _ in range(600):
        if taken(bench) == count or failures:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{taken(bench)} records were taken, not {count}")


def test_more_lateness_lets_the_changelog_of_a_server_keep_longer(served: Bench) -> None:
    topic, more_ms = f"{OUTPUT}-dedup-changelog", 86_400_000
    with served.open():
        before_ms = served.store.topic(topic).settings.retention_ms
    with served.open(rules=replace(RULES, lateness_ms=RULES.lateness_ms + more_ms)):
        assert served.store.topic(topic).settings.retention_ms == before_ms + more_ms
