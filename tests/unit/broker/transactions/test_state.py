"""A transactional id takes Kafka's steps, in Kafka's order, under Kafka's numbers."""

from collections.abc import Callable

import pytest

from varve.broker.transactions.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    Status,
    Transaction,
    is_exhausted,
)
from varve.commit_log import TopicPartition

A = TopicPartition("a", 0)


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


def test_the_last_epochs_are_not_given_away() -> None:
    assert is_exhausted(EPOCH_MAX - 1)
    assert not is_exhausted(EPOCH_MAX - 2)
    spent = _new(producer_epoch=EPOCH_MAX - 1)
    assert spent.needs_producer_id(None)
    assert spent.needs_producer_id(EPOCH_MAX - 1)
    assert not spent.needs_producer_id(EPOCH_MAX - 2)
    assert not _new().needs_producer_id(None)
    assert _new(producer_epoch=NO_EPOCH).needs_producer_id(None)
