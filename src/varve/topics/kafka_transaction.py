"""Transactions through a cluster's transaction coordinator.

Invariant  batches of a partition carry ascending sequences from 0 on, as each `init_transactions`
           brings a new producer epoch. A failed transaction is aborted before the error is raised.
Crash      the coordinator ends an open transaction: it commits once the commit is recorded, and
           otherwise aborts at the next `init_transactions` or after the timeout.
Threads    one.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from varve.commit_log import TopicPartition
from varve.foundation.errors import Closed, StoreError
from varve.kafka_client.client import KafkaClient
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer
from varve.records import Producer, decode_header, stamp_producer_all


class KafkaTransactionalWriter:
    """A transactional writer through the Kafka protocol."""

    def __init__(self, client: KafkaClient, transactional_id: str, *, timeout_ms: int) -> None:
        self._requests = TransactionalProducer(client, transactional_id, timeout_ms=timeout_ms)
        self._is_ready = False
        self._added_partitions: set[TopicPartition] = set()
        self._next_sequences: dict[TopicPartition, int] = {}

    @property
    def producer(self) -> Producer:
        if not self._is_ready:
            raise Closed("the writer has no producer: call init_transactions first")
        return Producer(self._requests.producer_id, self._requests.producer_epoch)

    def init_transactions(self) -> None:
        self._requests.begin()
        self._next_sequences.clear()
        self._added_partitions.clear()
        self._is_ready = True

    def append(
        self,
        batches: Mapping[TopicPartition, Sequence[bytes | bytearray]],
        *,
        default_timestamp: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        producer = self.producer
        nonempty = {
            partition: partition_batches
            for partition, partition_batches in batches.items()
            if partition_batches
        }
        try:
            self._add_partitions(nonempty.keys() - self._added_partitions)
            return {
                partition: self._append(producer, partition, partition_batches, default_timestamp)
                for partition, partition_batches in nonempty.items()
            }
        except StoreError:
            self._abort_after_error()
            raise

    def commit_offset(self, group: str, offset: CommittedOffset) -> None:
        """Makes a committed offset of a consumer group part of the transaction."""
        _ = self.producer
        try:
            self._requests.commit_offset(group, offset)
        except StoreError:
            self._abort_after_error()
            raise

    def commit(self) -> None:
        self._end(is_committed=True)

    def abort(self) -> None:
        self._end(is_committed=False)

    def _end(self, *, is_committed: bool) -> None:
        _ = self.producer
        self._is_ready = False
        self._requests.end(is_committed=is_committed)
        self._is_ready = True
        self._added_partitions.clear()

    def _add_partitions(self, partitions: set[TopicPartition]) -> None:
        if not partitions:
            return
        numbers: dict[str, list[int]] = {}
        for partition in sorted(partitions):
            numbers.setdefault(partition.topic, []).append(partition.partition)
        self._requests.add_topics(numbers)
        self._added_partitions |= partitions

    def _append(
        self,
        producer: Producer,
        partition: TopicPartition,
        batches: Sequence[bytes | bytearray],
        default_timestamp: int | None,
    ) -> int:
        stamped, next_sequence = stamp_producer_all(
            batches,
            producer,
            self._next_sequences.get(partition, 0),
            default_timestamp=default_timestamp,
        )
        offset = self._requests.append_all(partition.topic, partition.partition, stamped)
        self._next_sequences[partition] = next_sequence
        return -1 if offset < 0 else offset + decode_header(stamped[-1]).last_offset_delta + 1

    def _abort_after_error(self) -> None:
        """Aborts the transaction; if that fails, the next writer or the timeout aborts it."""
        with suppress(StoreError):
            self._requests.end(is_committed=False)
        self._is_ready = False
