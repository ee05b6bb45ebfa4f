"""Which transactions of a deduplication in a store are committed: those in its progress topic.

Invariant  a transaction is committed if and only if its commit marker is in the progress topic.
           Markers in the other topics say the same, sooner or later.
Crash      an open transaction in the progress topic is aborted. One that is open elsewhere is
           committed if the last committed progress has its producer and its last sequence, else
           aborted. docs/formats/dedup-progress.md
Threads    one.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import ProducerStateEntry
from varve.dedup.progress import Progress, find_progress, progress_batch
from varve.dedup.topics import DedupTopics
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError
from varve.kernels.batch_layout import INT32_MAX
from varve.records import Producer, increment_sequence, stamp_producer
from varve.topics import StoreCluster, StoreTransaction
from varve.topics.store_transaction import (
    FIRST_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_BITS,
    open_transactions_of,
    write_marker,
)

_MISSING_MAX: Final = 1 << 30
"""Sequences wrap: a difference above this one means that the log is ahead."""


class ProgressCoordinator:
    """Decides the transactions of one partition; `progress` is that of the next commit."""

    def __init__(
        self, cluster: StoreCluster, topics: DedupTopics, partition: int, clock: Clock
    ) -> None:
        self.progress: Progress | None = None
        self._store = cluster.store
        self._topics = topics
        self._partition = partition
        self._clock = clock
        self._reader = cluster.reader(topics.progress)
        self._generation = 0

    def init_producer(self) -> Producer:
        producer, former = self._next_producer()
        own = self._get_log(self._topics.progress)
        # From here on no earlier writer can decide anything: the progress may be read.
        _fence(own, producer, former, None)
        own.flush()
        progress = find_progress(self._reader, self._partition)
        for name, log in self._find_logs(progress):
            is_written = name in self._topics.written
            if is_written or open_transactions_of(log, {producer.id, former}):
                _fence(log, producer, former, progress)
                log.flush()
        return producer

    def decide(self, transaction: StoreTransaction) -> None:
        own = self._get_log(self._topics.progress)
        self._append_progress(transaction, own)
        # A position must not outlive the records that it counts: the log would assign their
        # offsets again.
        self._get_log(self._topics.input).flush()
        own.flush()
        write_marker(own, transaction.producer, is_committed=True)
        own.flush()

    def finish(self, transaction: StoreTransaction) -> None:
        """The markers are durable with the next commit at the latest: that is soon enough."""

    def resolve(self, transaction: StoreTransaction) -> None:
        """Ends what a failed commit left open, unless a later writer exists."""
        producer = transaction.producer
        own = self._get_log(self._topics.progress)
        entries = open_transactions_of(own, {producer.id})
        if any(entry.epoch != producer.epoch for entry in entries):
            return
        for entry in entries:
            _end(own, entry, is_committed=False)
        own.flush()
        progress = find_progress(self._reader, self._partition)
        for name in self._topics.written:
            log = self._get_log(name)
            for entry in open_transactions_of(log, {producer.id}):
                if entry.epoch == producer.epoch:
                    _end(log, entry, is_committed=_is_decided(log, progress, entry))

    def _append_progress(self, transaction: StoreTransaction, log: Log) -> None:
        assert self.progress is not None, "a commit has a progress"
        producer, sequences = transaction.producer, transaction.next_sequences
        own = TopicPartition(self._topics.progress, self._partition)
        sequence = sequences.get(own, 0)
        sequences[own] = increment_sequence(sequence, 1)
        by_topic = {
            name: sequences.get(TopicPartition(name, self._partition), 0)
            for name in self._topics.written
        }
        progress = self.progress.by(producer, self._generation, by_topic)
        batch = progress_batch(progress, self._clock.now_ms())
        log.append(stamp_producer(batch, producer, sequence))

    def _next_producer(self) -> tuple[Producer, int]:
        """The producer that fences all earlier ones, and the id of the generation before it."""
        progress = find_progress(self._reader, self._partition)
        generation = 0 if progress is None else progress.generation
        epochs = self._find_epochs(self._producer_id(generation + 1))
        if epochs:
            generation += 1
        else:
            epochs = self._find_epochs(self._producer_id(generation))
            if progress is not None and progress.producer is not None:
                epochs.append(progress.producer.epoch)
        epoch = max(epochs, default=-1)
        if epoch >= PRODUCER_EPOCH_MAX:
            generation, epoch = generation + 1, -1
        self._generation = generation
        former = self._producer_id(max(0, generation - 1))
        return Producer(self._producer_id(generation), epoch + 1), former

    def _find_epochs(self, producer_id: int) -> list[int]:
        """The epochs by which the logs know a producer."""
        logs = [self._get_log(name) for name in self._topics.written]
        known = (log.active_producers().get(producer_id) for log in logs)
        return [producer.epoch for producer in known if producer is not None]

    def _producer_id(self, generation: int) -> int:
        text = f"{self._topics.name}/{self._partition}/{generation}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return FIRST_PRODUCER_ID + (int.from_bytes(digest) >> (64 - PRODUCER_ID_BITS))

    def _find_logs(self, progress: Progress | None) -> Iterator[tuple[str, Log]]:
        """All logs but that of the progress: earlier rules may have written to other topics."""
        needed = {*self._topics.written, *(() if progress is None else progress.sequences)}
        for topic in self._store.topics():
            if topic.name == self._topics.progress or self._partition >= topic.partition_count:
                continue
            try:
                yield topic.name, topic.partition(self._partition).log
            except StoreError:
                if topic.name in needed:
                    raise

    def _get_log(self, topic: str) -> Log:
        return self._store.topic(topic).partition(self._partition).log


def _fence(log: Log, producer: Producer, former: int, progress: Progress | None) -> None:
    """Ends what is open, and lets the log know the producer's epoch, so that it takes no lower."""
    is_committed = False
    for entry in open_transactions_of(log, {producer.id, former}):
        if entry.producer_id == producer.id:
            is_committed = _is_decided(log, progress, entry)
        else:
            _end(log, entry, is_committed=_is_decided(log, progress, entry))
    write_marker(log, producer, is_committed=is_committed)


def _is_decided(log: Log, progress: Progress | None, entry: ProducerStateEntry) -> bool:
    """Whether the open transaction belongs to the progress that was committed.

    Raises Corrupt where the log has lost a part of it.
    """
    if progress is None or progress.producer != Producer(entry.producer_id, entry.epoch):
        return False
    expected = progress.sequences.get(log.topic_partition.topic, 0)
    following = increment_sequence(entry.last_sequence, 1)
    missing = (expected - following) % (INT32_MAX + 1)
    if 0 < missing < _MISSING_MAX:
        raise Corrupt(
            f"{log.topic_partition} has records up to sequence {entry.last_sequence} of a "
            f"transaction that was on disk up to {expected - 1} when it was committed: the log was "
            "truncated; restore its files from a copy, or start again with another name"
        )
    return following == expected


def _end(log: Log, entry: ProducerStateEntry, *, is_committed: bool) -> None:
    write_marker(log, Producer(entry.producer_id, entry.epoch), is_committed=is_committed)
