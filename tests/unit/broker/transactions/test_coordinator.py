"""The coordinator answers as Kafka's, and its transactions are whole or not there."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.transaction_bench import (
    QUICK,
    TIMEOUT_MS,
    BenchProducer,
    InitResult,
    TransactionBench,
)
from varve.broker.settings import TransactionSettings
from varve.broker.transactions.coordinator import END_WAIT_MS
from varve.broker.transactions.transaction import EPOCH_MAX, Status
from varve.commit_log import TopicPartition
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidProducerEpoch
from varve.testing.faulty_disk import FaultyFileSystem
from varve.wire import ErrorCode
from varve.wire.messages.state_records import TRANSACTIONS_TOPIC

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)


@pytest.fixture
def bench() -> Iterator[TransactionBench]:
    with BrokerKit(transactions=QUICK) as kit:
        kit.make_topic("a")
        kit.make_topic("b", partitions=2, settings={"flush": "ack"})
        yield TransactionBench(kit)


def _status(bench: TransactionBench, transactional_id: str = "t") -> Status:
    found = bench.coordinator.find(transactional_id)
    assert found is not None
    return found.status


def _begin(bench: TransactionBench, transactional_id: str = "t") -> BenchProducer:
    producer = bench.start(transactional_id)
    assert bench.add(producer, A, B) is ErrorCode.NONE
    for partition in (A, B):
        assert bench.produce(producer, partition, transactional_id.encode()) is ErrorCode.NONE
    return producer


def _decide(
    bench: TransactionBench, producer: BenchProducer, *, is_commit: bool
) -> "asyncio.Task[ErrorCode]":
    """Goes as far as the decision is on disk, and no marker yet."""
    kit = bench.kit
    ending = kit.loop.create_task(bench.ending(producer, is_commit=is_commit))
    while _status(bench, producer.transactional_id) is Status.ONGOING:
        kit.loop.run_until_complete(asyncio.sleep(0))
        if not (kit.broker.appends.run_once() or kit.syncs.run_once()):
            kit.work.run_once()
    assert not ending.done()
    return ending


# InitProducerId


def test_the_log_of_transactions_is_made_at_first_use_and_synced(bench: TransactionBench) -> None:
    assert bench.kit.broker.topics.find(TRANSACTIONS_TOPIC) is None
    bench.start("t")
    made = bench.kit.topic(TRANSACTIONS_TOPIC)
    assert len(made.logs) == QUICK.transaction_state_log_num_partitions
    assert made.settings.is_compacted
    assert made.settings.syncs_every_append


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(bench: TransactionBench, timeout_ms: int) -> None:
    assert bench.init("t", timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert bench.coordinator.find("t") is None


def test_an_empty_id_or_half_a_producer_is_refused(bench: TransactionBench) -> None:
    assert bench.init("").error is ErrorCode.INVALID_REQUEST
    assert bench.init("t", producer_id=3).error is ErrorCode.INVALID_REQUEST
    assert bench.init("t", epoch=3).error is ErrorCode.INVALID_REQUEST


def test_a_producer_that_tells_its_epoch_may_ask_again(bench: TransactionBench) -> None:
    first = bench.start("t")
    told = {"producer_id": first.producer_id, "epoch": first.epoch}
    bumped = InitResult(ErrorCode.NONE, first.producer_id, first.epoch + 1)
    assert bench.init("t", **told) == bumped
    assert bench.init("t", **told) == bumped
    bench.start("t")
    assert bench.init("t", **told).error is ErrorCode.PRODUCER_FENCED
    assert bench.init("t", producer_id=99, epoch=0).error is ErrorCode.PRODUCER_FENCED


def test_used_up_epochs_lead_to_a_new_producer_id(bench: TransactionBench) -> None:
    producer = bench.start("t")
    entry = bench.coordinator.table.find("t")
    assert entry is not None
    for _ in range(EPOCH_MAX - 1):
        bumped = entry.current.with_next_epoch(expected_epoch=None, timeout_ms=1, now_ms=1)
        assert bumped is not None
        entry.current = bumped
    last = EPOCH_MAX - 1
    assert entry.current.producer_epoch == last
    told = {"producer_id": producer.producer_id, "epoch": last}
    renewed = bench.init("t", **told)
    assert renewed.error is ErrorCode.NONE
    assert renewed.producer_epoch == 0
    assert renewed.producer_id != producer.producer_id
    assert bench.init("t", **told) == renewed
    assert bench.init("t", **{**told, "epoch": 5}).error is ErrorCode.PRODUCER_FENCED
    old = BenchProducer("t", producer.producer_id, last, {})
    assert bench.add(old, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.check(old, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_two_at_once_do_not_become_the_same_producer(bench: TransactionBench) -> None:
    bench.kit.hold_work(appends=True)
    asked = [bench.kit.loop.create_task(bench.initializing("t", 1_000)) for _ in range(2)]
    bench.kit.settle()
    bench.kit.release_work()
    errors = [one.result().error for one in asked]
    assert errors == [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS]


def test_a_client_that_goes_away_does_not_cut_a_step(bench: TransactionBench) -> None:
    bench.kit.hold_work(appends=True)
    asked = bench.kit.loop.create_task(bench.initializing("t", 1_000))
    bench.kit.settle()
    asked.cancel()
    bench.kit.release_work()
    assert asked.cancelled()
    assert _status(bench) is Status.EMPTY
    assert bench.start("t").epoch == 1


# Adding and ending


def test_nothing_can_be_ended_that_was_not_begun(bench: TransactionBench) -> None:
    unknown = BenchProducer("nobody", 1, 0, {})
    assert bench.end(unknown, is_commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.add(unknown, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = bench.start("t")
    assert bench.end(producer, is_commit=True) is ErrorCode.INVALID_TXN_STATE
    foreign = BenchProducer("t", producer.producer_id + 1, producer.epoch, {})
    assert bench.end(foreign, is_commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ahead = BenchProducer("t", producer.producer_id, producer.epoch + 1, {})
    assert bench.end(ahead, is_commit=True) is ErrorCode.PRODUCER_FENCED
    assert bench.add(ahead, A) is ErrorCode.PRODUCER_FENCED


def test_partitions_that_are_there_already_write_nothing(bench: TransactionBench) -> None:
    producer = _begin(bench)
    logs = [log for log in bench.kit.topic(TRANSACTIONS_TOPIC).logs if log is not None]
    before = [log.end_offset for log in logs]
    assert bench.add(producer, A) is ErrorCode.NONE
    assert [log.end_offset for log in logs] == before


def test_everybody_waits_until_the_markers_are_written(bench: TransactionBench) -> None:
    producer = _begin(bench)
    bench.kit.hold_work(syncs=True)  # the log of transactions waits for the disk
    ending = bench.kit.loop.create_task(bench.ending(producer, is_commit=True))
    bench.kit.settle()
    assert not ending.done()
    assert bench.add(producer, A) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(producer, is_commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.init("t").error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.check(producer, A) is ErrorCode.NOT_ENOUGH_REPLICAS
    bench.kit.release_work()
    assert ending.result() is ErrorCode.NONE


def test_an_end_is_answered_though_markers_take_long(bench: TransactionBench) -> None:
    producer = _begin(bench)
    log = bench.log(B)
    ending = _decide(bench, producer, is_commit=True)
    bench.kit.hold_work(syncs=True)
    bench.kit.settle()
    assert not ending.done()
    bench.kit.advance(END_WAIT_MS)
    assert ending.result() is ErrorCode.NONE
    assert bench.end(producer, is_commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(producer, is_commit=False) is ErrorCode.INVALID_TXN_STATE
    bench.kit.release_work()
    assert _status(bench) is Status.COMPLETE_COMMIT
    assert log.open_transactions() == []


# Produce


def test_batches_go_on_while_another_partition_is_added(bench: TransactionBench) -> None:
    producer = bench.start("t")
    bench.add(producer, A)
    bench.kit.hold_work(appends=True)
    adding = bench.kit.loop.create_task(
        bench.coordinator.add_partitions("t", producer.producer_id, producer.epoch, frozenset({B}))
    )
    bench.kit.settle()
    assert not adding.done()
    assert bench.check(producer, A) is ErrorCode.NONE
    assert bench.check(producer, B) is ErrorCode.INVALID_TXN_STATE
    bench.kit.release_work()
    assert bench.check(producer, B) is ErrorCode.NONE


def test_without_verification_only_the_log_checks() -> None:
    settings = TransactionSettings(transaction_partition_verification_enable=False)
    with BrokerKit(transactions=settings) as kit:
        kit.make_topic("a")
        bench = TransactionBench(kit)
        assert bench.check(BenchProducer("nobody", 1, 0, {}), A) is ErrorCode.NONE


# Timeouts and expiry


def test_overdue_transactions_are_aborted_together(bench: TransactionBench) -> None:
    producers = [bench.start(f"t{number}") for number in range(5)]
    for producer in producers:
        bench.add(producer, TopicPartition("events", 0))
    bench.kit.hold_work(appends=True)
    bench.kit.advance(TIMEOUT_MS + 500)
    coordinator = bench.coordinator
    assert {entry.next_status for entry in coordinator.table} == {Status.PREPARE_ABORT}
    bench.kit.release_work()
    assert {entry.current.status for entry in coordinator.table} == {Status.COMPLETE_ABORT}


def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(
    bench: TransactionBench,
) -> None:
    producer = _begin(bench)
    bench.kit.advance(TIMEOUT_MS - 200)
    assert _status(bench) is Status.ONGOING
    bench.kit.advance(600)
    assert _status(bench) is Status.COMPLETE_ABORT
    assert bench.open_count() == 0
    assert bench.read(A) == []
    assert bench.end(producer, is_commit=True) is ErrorCode.PRODUCER_FENCED
    assert bench.check(producer, A) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(InvalidProducerEpoch):
        bench.log(A).end_transaction(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, committed=True
        )


def test_ids_that_are_not_used_are_forgotten(bench: TransactionBench) -> None:
    settings = TransactionSettings(
        transactional_id_expiration_ms=1_000, transaction_expiration_interval_ms=500
    )
    with BrokerKit(transactions=settings) as kit:
        kit.make_topic("a")
        bench = TransactionBench(kit)
        bench.start("idle")
        used = bench.start("used", timeout_ms=60_000)
        bench.add(used, A)
        kit.advance(1_600)
        assert bench.coordinator.find("idle") is None
        assert bench.coordinator.find("used") is not None
        kit.restart()
        assert bench.coordinator.find("idle") is None
        assert bench.coordinator.find("used") is not None
        assert bench.start("idle").epoch == 0


# Restarts


def test_everything_is_known_after_a_restart(bench: TransactionBench) -> None:
    done = _begin(bench, "done")
    bench.end(done, is_commit=True)
    bench.start("idle")
    ongoing = _begin(bench, "open")
    before = {one.transactional_id: one for one in bench.coordinator.list_transactions()}
    bench.kit.restart()
    after = {one.transactional_id: one for one in bench.coordinator.list_transactions()}
    assert after == before
    assert bench.produce(ongoing, A, b"more") is ErrorCode.NONE
    assert bench.end(ongoing, is_commit=True) is ErrorCode.NONE
    assert bench.read(A) == [b"done", b"open", b"more"]


# Partitions in trouble


def test_a_deleted_topic_is_left_out_of_its_transaction(bench: TransactionBench) -> None:
    producer = _begin(bench)
    bench.kit.store.delete_topic("a")
    bench.kit.broker.topics.refresh()
    assert bench.end(producer, is_commit=True) is ErrorCode.NONE
    assert _status(bench) is Status.COMPLETE_COMMIT
    assert bench.read(B) == [b"t"]


def test_a_log_that_knows_a_newer_producer_does_not_hold_up_the_end(
    bench: TransactionBench,
) -> None:
    producer = _begin(bench)
    bench.log(A).end_transaction(
        producer_id=producer.producer_id, producer_epoch=producer.epoch + 3, committed=False
    )
    assert bench.end(producer, is_commit=False) is ErrorCode.NONE
    assert _status(bench) is Status.COMPLETE_ABORT
    assert bench.open_count() == 0


def test_ids_of_an_offline_partition_are_not_called_unknown(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start("t")
    topics = bench.kit.broker.topics
    served = bench.kit.topic(TRANSACTIONS_TOPIC)
    offline = replace(served, logs=(None,) * len(served.logs))
    monkeypatch.setattr(topics, "find", lambda name: offline if name == served.name else None)
    hidden = BenchProducer("hidden", 5, 0, {})
    assert bench.add(hidden, A) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.end(hidden, is_commit=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.check(hidden, A) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.init("hidden").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.init("t").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [one.transactional_id for one in bench.coordinator.list_transactions()] == ["t"]


def test_a_log_of_transactions_that_somebody_else_made_is_synced_too() -> None:
    with BrokerKit() as kit:
        made = kit.make_topic(TRANSACTIONS_TOPIC, settings={"cleanup.policy": "compact"})
        assert not made.settings.syncs_every_append
        TransactionBench(kit).start("t")
        log = kit.log(TRANSACTIONS_TOPIC)
        assert log.recovery_point == log.end_offset == 1


@pytest.fixture
def full() -> Iterator[tuple[TransactionBench, FaultyFileSystem]]:
    """On a disk that can run full."""
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    with BrokerKit(fs=fs, clock=clock, transactions=QUICK) as kit:
        kit.make_topic("a")
        kit.make_topic("b", partitions=2, settings={"flush": "ack"})
        yield TransactionBench(kit), fs


def test_markers_are_tried_until_the_disk_takes_them(
    full: tuple[TransactionBench, FaultyFileSystem],
) -> None:
    bench, fs = full
    producer = _begin(bench)
    ending = _decide(bench, producer, is_commit=True)
    fs.full_at(fs.used_bytes())
    bench.kit.advance(3_000)
    assert ending.result() is ErrorCode.NONE
    assert _status(bench) is Status.PREPARE_COMMIT
    assert bench.add(producer, A) is ErrorCode.CONCURRENT_TRANSACTIONS
    fs.full_at(None)
    bench.kit.advance(10_000)
    assert _status(bench) is Status.COMPLETE_COMMIT
    assert bench.read(A) == bench.read(B) == [b"t"]


def test_a_step_that_cannot_be_written_is_not_taken(
    full: tuple[TransactionBench, FaultyFileSystem],
) -> None:
    bench, fs = full
    producer = _begin(bench)
    fs.full_at(fs.used_bytes())
    assert bench.end(producer, is_commit=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.init("new").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.find("new") is None
    assert bench.init("t").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert _status(bench) is Status.ONGOING
    assert bench.check(producer, A) is ErrorCode.NONE
    fs.full_at(None)
    assert bench.end(producer, is_commit=True) is ErrorCode.NONE
    assert bench.read(A) == [b"t"]
    assert bench.start("new").epoch == 0
