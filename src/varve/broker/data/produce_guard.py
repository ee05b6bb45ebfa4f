"""Whom Produce asks about batches of transactions."""

from typing import Protocol

from varve.commit_log import TopicPartition
from varve.wire import ErrorCode


class ProduceGuard(Protocol):
    """Knows the transactions under way."""

    def check_produce(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> ErrorCode:
        """NONE when the partition is part of the producer's transaction, which is under way."""
        ...


class NoTransactions:
    """Where nobody coordinates transactions, none is under way."""

    def check_produce(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> ErrorCode:
        return ErrorCode.INVALID_TXN_STATE
