"""A transactional id takes Kafka's steps, in Kafka's order, under Kafka's numbers."""

from collections.abc import Callable

import pytest

from varve.broker.transactions.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    Status,
    Transaction,
    is_exhausted,
)
from varve.commit_log import TopicPartition

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)


def _new(**changes: object) -> Transaction:
    fields: dict[str, object] = {
        "transactional_id": "id",
        "producer_id": 7,
        "producer_epoch": 3,
        "timeout_ms": 1_000,
        "update_ms": 50,
    }
    return Transaction(**(fields | changes))  # type: ignore[arg-type]  # by name


def test_statuses_have_kafkas_numbers_and_names() -> None:
    assert [(one.value, one.display_name) for one in Status] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]


def test_a_transaction_begins_with_its_first_partition_and_keeps_its_start() -> None:
    begun = _new().with_partitions(frozenset({A}), now_ms=100)
    grown = begun.with_partitions(frozenset({B}), now_ms=120)
    assert grown.status is Status.ONGOING
    assert grown.partitions == {A, B}
    assert (grown.start_ms, grown.update_ms) == (100, 120)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_decided_transaction_knows_its_partitions_until_it_is_complete(is_commit: bool) -> None:
    ongoing = _new().with_partitions(frozenset({A}), now_ms=100)
    decided = ongoing.prepared(is_commit=is_commit, now_ms=110)
    assert decided.is_decided
    assert decided.partitions == {A}
    completed = decided.completed(now_ms=120)
    assert completed.status is (Status.COMPLETE_COMMIT if is_commit else Status.COMPLETE_ABORT)
    assert completed.partitions == NO_PARTITIONS
    assert completed.is_idle


def test_steps_out_of_order_are_our_own_mistake() -> None:
    mistakes: list[Callable[[], Transaction]] = [
        lambda: _new().prepared(is_commit=True, now_ms=1),
        lambda: _new(status=Status.ONGOING).completed(now_ms=1),
        lambda: _new(status=Status.PREPARE_COMMIT).with_partitions(frozenset({A}), now_ms=1),
        lambda: _new(status=Status.ONGOING).dead(),
        lambda: _new().fenced(),
    ]
    for mistake in mistakes:
        with pytest.raises(AssertionError):
            mistake()


def test_fencing_takes_the_next_epoch_and_ends_in_an_abort() -> None:
    ongoing = _new().with_partitions(frozenset({A}), now_ms=100)
    aborted = ongoing.fenced().prepared(is_commit=False, now_ms=110)
    assert (aborted.status, aborted.producer_epoch) == (Status.PREPARE_ABORT, 4)
    assert aborted.last_producer_epoch == NO_EPOCH


def test_a_producer_that_did_not_hear_the_answer_gets_the_same_epoch_again() -> None:
    bumped = _new().with_next_epoch(expected_epoch=3, timeout_ms=5, now_ms=60)
    assert bumped is not None
    assert (bumped.producer_epoch, bumped.last_producer_epoch, bumped.timeout_ms) == (4, 3, 5)
    again = bumped.with_next_epoch(expected_epoch=3, timeout_ms=5, now_ms=61)
    assert again is not None
    assert (again.producer_epoch, again.last_producer_epoch) == (4, 3)
    assert bumped.with_next_epoch(expected_epoch=2, timeout_ms=5, now_ms=62) is None
    unasked = bumped.with_next_epoch(expected_epoch=None, timeout_ms=5, now_ms=63)
    assert unasked is not None
    assert (unasked.producer_epoch, unasked.last_producer_epoch) == (5, NO_EPOCH)


def test_the_last_epochs_are_not_given_away() -> None:
    assert is_exhausted(EPOCH_MAX - 1)
    assert not is_exhausted(EPOCH_MAX - 2)
    spent = _new(producer_epoch=EPOCH_MAX - 1)
    assert spent.needs_producer_id(None)
    assert spent.needs_producer_id(EPOCH_MAX - 1)
    assert not spent.needs_producer_id(EPOCH_MAX - 2)
    assert not _new().needs_producer_id(None)
    assert _new(producer_epoch=NO_EPOCH).needs_producer_id(None)


def test_a_new_producer_id_knows_the_one_before() -> None:
    spent = _new(producer_epoch=EPOCH_MAX - 1)
    renewed = spent.with_producer_id(8, keeps_epoch=True, timeout_ms=5, now_ms=60)
    assert (renewed.producer_id, renewed.producer_epoch) == (8, 0)
    assert (renewed.last_producer_id, renewed.last_producer_epoch) == (7, EPOCH_MAX - 1)
    assert renewed.knows_producer(7, EPOCH_MAX - 1)
    assert not renewed.knows_producer(7, 5)
    assert not renewed.knows_producer(9, 0)
    again = renewed.with_next_epoch(expected_epoch=EPOCH_MAX - 1, timeout_ms=5, now_ms=61)
    assert again is not None
    assert (again.producer_id, again.producer_epoch) == (8, 0)
    assert _new(producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH).knows_producer(1, 1)
