"""Topics of a store that is open in this process.

A store has no transaction coordinator. A `StoreCoordinator` records durably which transactions are
committed; the logs only hold their batches and markers. `dedup` records commits in its progress
topic, the Spark sink in a ledger.

Invariant  the history before a position is checked at the first fetch from a log: an open log
           loses no records. A fetch without data waits until one of its logs has new records,
           and does not poll them. All batches of a transaction are on disk before the coordinator
           records the commit, and a marker that commits is written only after it has.
Crash      `init_transactions` ends the open transactions of earlier writers, as decided.
Threads    any; each log has its lock. One thread uses a reader or a writer.
"""

import threading
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from varve.commit_log import FetchResult, Isolation, Log, TopicPartition
from varve.commit_log.producer_state import ProducerStateEntry
from varve.embedded import Store, Topic
from varve.foundation.errors import NotFound, OffsetOutOfRange, StoreError, Unavailable
from varve.foundation.settings import to_kafka_names
from varve.records import (
    BatchHeader,
    CommittedBatches,
    Producer,
    find_header,
)
from varve.topics.cluster import (
    LogTruncated,
    OffsetRange,
    Position,
    TopicInfo,
    TransactionalWriter,
    find_break,
)
from varve.topics.outputs import DerivedOutput, LocalOutputRegistry


class StoreCluster:
    """A store as a cluster; the caller owns and closes the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def name(self) -> str:
        return ", ".join(directory.path for directory in self.store.directories)

    def describe(self, topic: str) -> TopicInfo:
        return _describe(self.store.topic(topic))

    def settings(self, topic: str) -> Mapping[str, str]:
        return to_kafka_names(self.store.topic(topic).settings)

    def find_or_create(
        self, topic: str, *, partitions: int | None = None, settings: Mapping[str, str]
    ) -> TopicInfo:
        try:
            return self.describe(topic)
        except NotFound:
            overrides = dict(settings) or None
            return _describe(
                self.store.create_topic(topic, partitions=partitions, settings=overrides)
            )

    def alter(self, topic: str, settings: Mapping[str, str]) -> None:
        self.store.alter_topic(topic, settings)

    def reader(
        self, topic: str, *, isolation: Isolation = Isolation.READ_COMMITTED
    ) -> "StoreReader":
        return StoreReader(self, topic, isolation=isolation)

    def register_output(self, output: DerivedOutput) -> None:
        directory = self.store.directories[0].path
        registry = LocalOutputRegistry(directory, self.store.fs)
        registry.note(replace(output, place=output.place or directory))

    def writer(self, coordinator: "StoreCoordinator") -> "StoreTransactionalWriter":
        """Writes exactly once; the coordinator remembers which transactions are committed."""
        return StoreTransactionalWriter(self.store, coordinator)

    def new_session(self) -> "StoreCluster":
        return self

    def close(self) -> None:
        """The store is closed by its owner."""


class StoreReader:
    """Reads a topic of a store."""

    def __init__(self, cluster: StoreCluster, topic: str, *, isolation: Isolation) -> None:
        self.topic = topic
        self.cluster_name = cluster.name
        self._cluster = cluster
        self._isolation = isolation
        self._topic_id: UUID | None = None
        self._checked_logs: dict[int, Log] = {}

    def info(self) -> TopicInfo:
        return _describe(self._get_topic())

    def settings(self) -> Mapping[str, str]:
        return self._cluster.settings(self.topic)

    def offsets(self, partition: int) -> OffsetRange:
        log = self._get_log(partition)
        return OffsetRange(log.log_start_offset, max(log.log_start_offset, self._end_offset(log)))

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        fetched = self._fetch_all(positions, max_bytes)
        if fetched or not wait_ms:
            return fetched
        has_more = threading.Event()
        logs = [self._get_log(partition) for partition in positions]
        for log in logs:
            log.notify_readers(has_more)
        try:
            # An append before `notify_readers` did not set the event.
            fetched = self._fetch_all(positions, max_bytes)
            if not fetched and has_more.wait(wait_ms / 1000):
                fetched = self._fetch_all(positions, max_bytes)
            return fetched
        finally:
            for log in logs:
                log.stop_notifying(has_more)

    def find_batch_before(self, partition: int, offset: int) -> BatchHeader | None:
        previous_offset = offset - 1
        try:
            read = self._read(self._get_log(partition), previous_offset, 1, Isolation.LOG_END)
        except OffsetOutOfRange:
            return None
        return find_header(read.data, previous_offset)

    def close(self) -> None:
        self._topic_id = None
        self._checked_logs.clear()

    def _fetch_all(
        self, positions: Mapping[int, Position], max_bytes: int
    ) -> dict[int, CommittedBatches]:
        fetched = {}
        for partition, position in positions.items():
            batches = self._fetch(partition, position, max_bytes)
            if batches is not None:
                fetched[partition] = batches
        return fetched

    def _fetch(self, partition: int, position: Position, max_bytes: int) -> CommittedBatches | None:
        log = self._get_log(partition)
        if self._checked_logs.get(partition) is not log:
            self._check_history(log, partition, position)
        offset, end = position.offset, self._end_offset(log)
        if offset == end and offset >= log.log_start_offset:
            return None
        if offset > end:
            raise LogTruncated(
                f"{log.topic_partition} ends at offset {end}, and was read up to {offset} before"
            )
        read = self._read(log, offset, max_bytes, self._isolation)
        fetched = CommittedBatches(
            read.data,
            read.aborted,
            # Without a batch up to the end, as after a lost segment, the reader continues there.
            start_offset=offset if read.data else read.next_offset,
            end_offset=end,
            where=str(log.topic_partition),
        )
        return fetched if fetched.next_offset > offset else None

    def _check_history(self, log: Log, partition: int, position: Position) -> None:
        reason = find_break(self, partition, position)
        if reason is not None:
            raise LogTruncated(f"{log.topic_partition}: {reason}")
        self._checked_logs[partition] = log

    def _read(self, log: Log, offset: int, max_bytes: int, isolation: Isolation) -> FetchResult:
        return log.read(start_offset=offset, max_bytes=max_bytes, isolation=isolation)

    def _end_offset(self, log: Log) -> int:
        is_committed = self._isolation is Isolation.READ_COMMITTED
        return log.last_stable_offset if is_committed else log.high_watermark

    def _get_topic(self) -> Topic:
        topic = self._cluster.store.topic(self.topic)
        if self._topic_id is None:
            self._topic_id = topic.id
        elif topic.id not in (None, self._topic_id):
            raise NotFound(f"topic {self.topic} was deleted and created again since it was read")
        return topic

    def _get_log(self, partition: int) -> Log:
        topic = self._get_topic()
        try:
            return topic.partition(partition).log
        except NotFound as error:
            # The topic exists: the partition may be on a disk that is offline.
            raise Unavailable(f"topic {self.topic} lacks a partition: {error}") from error


def _describe(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.id, topic.partition_count)


# Writing

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


class StoreTransactionalWriter(TransactionalWriter):
    """Writes to logs of a store, in any number of transactions."""

    def __init__(self, store: Store, coordinator: StoreCoordinator) -> None:
        super().__init__()
        self._store = store
        self._coordinator = coordinator
        self._logs: dict[TopicPartition, Log] = {}

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

    def _add_partitions(self, partitions: Set[TopicPartition]) -> None:
        """Does nothing: a log becomes part of the transaction with its first batch."""

    def _write(self, partition: TopicPartition, batches: Sequence[bytearray]) -> int:
        log = self._logs[partition] = self.get_log(partition)
        for batch in batches:
            log.append(batch, waits=False)
        log.sync_appends()
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
        self._coordinator.end_as_decided(self)
        self._logs.clear()

    def _end_after_error(self) -> None:
        with suppress(StoreError):  # the next writer ends it then
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
