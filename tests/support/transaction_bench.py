"""Producers with transactions on a broker in memory: what clients do, in one call each."""

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.support.broker_kit import BrokerKit
from varve.broker.append_scheduler import AppendEntry
from varve.broker.groups.committed_offsets import CommittedOffset
from varve.broker.settings import TransactionSettings
from varve.broker.transactions.coordinator import TransactionCoordinator
from varve.commit_log import Log, TopicPartition
from varve.records import Record, build_batch
from varve.wire import ErrorCode, KafkaError

TIMEOUT_MS = 1_000
QUICK = TransactionSettings(
    transaction_state_log_num_partitions=2, transaction_abort_interval_ms=200
)
GROUP = "readers"
_PATIENCE = 1_000


@dataclass
class BenchProducer:
    """One run of a producer, with its sequences."""

    transactional_id: str
    producer_id: int
    epoch: int
    sequences: dict[TopicPartition, int]


@dataclass(frozen=True)
class InitResult:
    """The id and epoch of a producer, or the error."""

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


async def code_of(request: Awaitable[object]) -> ErrorCode:
    """The code that a client would be answered with."""
    try:
        await request
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


class TransactionBench:
    """Talks to the coordinator as the handlers do."""

    def __init__(self, kit: BrokerKit) -> None:
        self.kit = kit

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self.kit.broker.transactions

    # What a client does, to be run in the loop

    async def starting(self, transactional_id: str, timeout_ms: int) -> BenchProducer:
        """A new run, tried until what was open is aborted."""
        for _ in range(_PATIENCE):
            result = await self.initializing(transactional_id, timeout_ms)
            if result.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(0)
        assert result.error is ErrorCode.NONE, result
        return BenchProducer(transactional_id, result.producer_id, result.producer_epoch, {})

    async def initializing(
        self, transactional_id: str, timeout_ms: int, producer_id: int = -1, epoch: int = -1
    ) -> InitResult:
        try:
            transaction = await self.coordinator.init_producer(
                transactional_id, timeout_ms, producer_id, epoch
            )
        except KafkaError as error:
            return InitResult(error.code)
        return InitResult(ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch)

    def adding(
        self, producer: BenchProducer, *partitions: TopicPartition
    ) -> Coroutine[Any, Any, ErrorCode]:
        id, number, epoch = producer.transactional_id, producer.producer_id, producer.epoch
        return code_of(self.coordinator.add_partitions(id, number, epoch, frozenset(partitions)))

    async def producing(
        self, producer: BenchProducer, partition: TopicPartition, value: bytes
    ) -> ErrorCode | Exception:
        """As Produce does: asked and submitted in one turn."""
        code = self.check(producer, partition)
        if code:
            return code
        sequence = producer.sequences.get(partition, 0)
        batch = build_batch(
            [Record(None, value)],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        part = AppendEntry(self.log(partition), batch)
        await self.kit.broker.appends.submit([part])
        if part.error is not None:
            return part.error
        producer.sequences[partition] = sequence + 1
        return ErrorCode.NONE

    async def committing_offset(
        self, producer: BenchProducer, partition: TopicPartition, offset: int, group: str = GROUP
    ) -> ErrorCode:
        """Adds the group and commits for it, as one call of a client does."""
        groups = self.kit.broker.groups
        id, number, epoch = producer.transactional_id, producer.producer_id, producer.epoch
        code = await code_of(self.coordinator.add_offsets(id, number, epoch, group))
        code = code or self.check(producer, groups.log.topic.partition_of(group))
        offsets = {partition: CommittedOffset(offset)}
        return code or await code_of(groups.commit_in_transaction(group, number, epoch, offsets))

    def ending(self, producer: BenchProducer, *, is_commit: bool) -> Coroutine[Any, Any, ErrorCode]:
        id, number, epoch = producer.transactional_id, producer.producer_id, producer.epoch
        return code_of(self.coordinator.end(id, number, epoch, is_commit=is_commit))

    # The same, done when they return

    def init(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        producer_id: int = -1,
        epoch: int = -1,
    ) -> InitResult:
        return self.kit.run(self.initializing(transactional_id, timeout_ms, producer_id, epoch))

    def start(self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> BenchProducer:
        return self.kit.run(self.starting(transactional_id, timeout_ms))

    def add(self, producer: BenchProducer, *partitions: TopicPartition) -> ErrorCode:
        return self.kit.run(self.adding(producer, *partitions))

    def produce(
        self, producer: BenchProducer, partition: TopicPartition, value: bytes
    ) -> ErrorCode | Exception:
        return self.kit.run(self.producing(producer, partition, value))

    def commit_offset(
        self, producer: BenchProducer, partition: TopicPartition, offset: int, group: str = GROUP
    ) -> ErrorCode:
        return self.kit.run(self.committing_offset(producer, partition, offset, group))

    def end(self, producer: BenchProducer, *, is_commit: bool) -> ErrorCode:
        return self.kit.run(self.ending(producer, is_commit=is_commit))

    # What came of it

    def check(self, producer: BenchProducer, partition: TopicPartition) -> ErrorCode:
        return self.coordinator.check_produce(
            producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partition=partition,
        )

    def committed(self, partition: TopicPartition, group: str = GROUP) -> int | None:
        found = self.kit.broker.groups.offsets.find(group, partition)
        return None if found is None else found.offset

    def log(self, partition: TopicPartition) -> Log:
        return self.kit.log(partition.topic, partition.partition)

    def read(self, partition: TopicPartition, isolation: str = "read_committed") -> list[bytes]:
        found = self.kit.store.topic(partition.topic).partition(partition.partition)
        return [one.value or b"" for one in found.read(isolation=isolation)]

    def open_count(self) -> int:
        """Transactions that hold readers back, in all logs."""
        logs = [log for topic in self.kit.broker.topics for log in topic.logs if log is not None]
        return sum(len(log.open_transactions()) for log in logs)
