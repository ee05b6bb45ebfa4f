"""Transactions over several logs of a store, which has no transaction coordinator.

A `StoreCoordinator` records durably which transactions are committed; the logs only hold their
batches and markers. `dedup` records commits in its progress topic, the Spark sink in a ledger.

Invariant  all batches are on disk before the coordinator records the commit, and a marker that
           commits is written only after it has.
Crash      `init_transactions` ends the open transactions of earlier writers, as decided.
Threads    one.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import ProducerStateEntry
from varve.embedded import Store
from varve.foundation.errors import Closed, StoreError
from varve.records import Producer, stamp_producer_all

FIRST_PRODUCER_ID = 1 << 62
"""Kafka's coordinators count producer ids up from 0; writers to an open store use ids from here."""
PRODUCER_ID_BITS = 61
"""Bits of the hash that is added to the first id: the sum fits a signed 64-bit number."""
PRODUCER_EPOCH_MAX = (1 << 15) - 2
"""Kafka's last epoch that a producer may use; the next writer needs another producer id."""


class StoreCoordinator(Protocol):
    """Decides the transactions of one writer."""

    def init_producer(self) -> Producer:
        """Fences earlier writers and ends their transactions; returns the producer to use."""

    def record_commit(self, writer: "StoreTransactionalWriter") -> None:
        """Makes the decision to commit durable; all batches are on disk, no marker is written."""

    def finish(self, writer: "StoreTransactionalWriter") -> None:
        """Called after the markers are written."""

    def end_as_decided(self, writer: "StoreTransactionalWriter") -> None:
        """Ends a failed or aborted transaction in each log; commits it only if that is recorded."""


class StoreTransactionalWriter:
    """A `TransactionalWriter` to logs of a store, for any number of transactions."""

    def __init__(self, store: Store, coordinator: StoreCoordinator) -> None:
        self.next_sequences: dict[TopicPartition, int] = {}
        """By partition, the sequence of the producer's next record."""
        self._store = store
        self._coordinator = coordinator
        self._producer: Producer | None = None
        self._logs: dict[TopicPartition, Log] = {}

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            raise Closed("the writer has no producer: call init_transactions first")
        return self._producer

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that have batches of the open transaction."""
        return self._logs

    def get_log(self, partition: TopicPartition) -> Log:
        return self._store.topic(partition.topic).partition(partition.partition).log

    def init_transactions(self) -> None:
        self._producer = self._coordinator.init_producer()
        self.next_sequences.clear()
        self._logs.clear()

    def append(
        self,
        batches: Mapping[TopicPartition, Sequence[bytes | bytearray]],
        *,
        default_timestamp: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        """Appends to the open transaction, or begins one; the end offsets of these partitions.

        An error ends the transaction, and the writer needs `init_transactions` again.
        """
        producer = self.producer
        try:
            return {
                partition: self._append(producer, partition, partition_batches, default_timestamp)
                for partition, partition_batches in batches.items()
                if partition_batches
            }
        except StoreError:
            self._end_after_error()
            raise

    def _append(
        self,
        producer: Producer,
        partition: TopicPartition,
        batches: Sequence[bytes | bytearray],
        default_timestamp: int | None,
    ) -> int:
        log = self.get_log(partition)
        stamped, next_sequence = stamp_producer_all(
            batches,
            producer,
            self.next_sequences.get(partition, 0),
            default_timestamp=default_timestamp,
        )
        self._logs[partition] = log
        for batch in stamped:
            log.append(batch, waits=False)
        log.sync_appends()
        self.next_sequences[partition] = next_sequence
        return log.end_offset

    def commit(self) -> None:
        """Syncs the batches, records the commit, writes the markers.

        An error before the commit is recorded aborts the transaction; after a later one the next
        writer writes the missing markers. In both cases the writer needs `init_transactions` again.
        """
        producer = self.producer
        try:
            for log in self._logs.values():
                log.flush()
            self._coordinator.record_commit(self)
        except StoreError:
            self._end_after_error()
            raise
        # A failure from here on leaves a recorded commit: the next writer ends the transaction.
        self._producer = None
        for log in self._logs.values():
            write_marker(log, producer, is_committed=True)
        self._coordinator.finish(self)
        self._producer = producer
        self._logs.clear()

    def abort(self) -> None:
        """Ends the open transaction, if any; the writer remains usable."""
        self._coordinator.end_as_decided(self)
        self._logs.clear()

    def _end_after_error(self) -> None:
        """Ends the transaction, as readers wait for it. If that fails, the next writer ends it."""
        with suppress(StoreError):
            self._coordinator.end_as_decided(self)
        self._producer = None
        self._logs.clear()


def open_transactions_of(log: Log, producer_ids: Collection[int]) -> list[ProducerStateEntry]:
    """The entries of these producers that have an open transaction in the log."""
    if not any(transaction.producer_id in producer_ids for transaction in log.open_transactions()):
        return []
    return [
        entry
        for entry in log.producer_entries()
        if entry.producer_id in producer_ids and entry.transaction_first_offset is not None
    ]


def write_marker(log: Log, producer: Producer, *, is_committed: bool) -> None:
    """Ends the producer's transaction; without one it only records the epoch in the log."""
    log.end_transaction(
        producer_id=producer.id, producer_epoch=producer.epoch, committed=is_committed
    )
