"""The transaction coordinator of a deduplication in a store: commits by its progress topic.

Invariant  a transaction is committed if and only if its commit marker is in the progress topic.
           Markers in the other topics follow that decision.
Crash      an open transaction in the progress topic is aborted. One that is open elsewhere is
           committed if the last committed progress has its producer and its last sequence, else
           aborted. docs/reference/formats/dedup-progress.md
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
from varve.topics import StoreCluster, StoreTransactionalWriter
from varve.topics.store_transaction import (
    FIRST_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_BITS,
    open_transactions_of,
    write_marker,
)

_MISSING_MAX: Final = 1 << 30
"""Sequences wrap around: a greater difference means that the log is ahead of the progress."""


class ProgressCoordinator:
    """Decides the transactions of one partition; set `progress` before a commit."""

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
        producer, former_id = self._next_producer()
        progress_log = self._get_log(self._topics.progress)
        # From here on earlier writers cannot commit, so the progress is final.
        _fence(progress_log, producer, former_id, None)
        progress_log.flush()
        progress = find_progress(self._reader, self._partition)
        for name, log in self._find_logs(progress):
            is_written = name in self._topics.written
            if is_written or open_transactions_of(log, {producer.id, former_id}):
                _fence(log, producer, former_id, progress)
                log.flush()
        return producer

    def record_commit(self, writer: StoreTransactionalWriter) -> None:
        progress_log = self._get_log(self._topics.progress)
        self._append_progress(writer, progress_log)
        # The input is durable before the position in it: a log that lost its end would assign
        # the offsets of the lost records again.
        self._get_log(self._topics.input).flush()
        progress_log.flush()
        write_marker(progress_log, writer.producer, is_committed=True)
        progress_log.flush()

    def finish(self, writer: StoreTransactionalWriter) -> None:
        """Does nothing: the next commit makes the markers durable, which is early enough."""

    def end_as_decided(self, writer: StoreTransactionalWriter) -> None:
        """Ends the transaction of a failed commit, unless a later writer exists."""
        producer = writer.producer
        progress_log = self._get_log(self._topics.progress)
        entries = open_transactions_of(progress_log, {producer.id})
        if any(entry.epoch != producer.epoch for entry in entries):
            return
        for entry in entries:
            _end_transaction(progress_log, entry, is_committed=False)
        progress_log.flush()
        progress = find_progress(self._reader, self._partition)
        for name in self._topics.written:
            log = self._get_log(name)
            for entry in open_transactions_of(log, {producer.id}):
                if entry.epoch == producer.epoch:
                    _end_transaction(log, entry, is_committed=_is_committed(log, progress, entry))

    def _append_progress(self, writer: StoreTransactionalWriter, log: Log) -> None:
        assert self.progress is not None, "a commit has a progress"
        producer, sequences = writer.producer, writer.next_sequences
        progress_partition = TopicPartition(self._topics.progress, self._partition)
        sequence = sequences.get(progress_partition, 0)
        sequences[progress_partition] = increment_sequence(sequence, 1)
        by_topic = {
            name: sequences.get(TopicPartition(name, self._partition), 0)
            for name in self._topics.written
        }
        progress = self.progress.with_producer(producer, self._generation, by_topic)
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
        former_id = self._producer_id(max(0, generation - 1))
        return Producer(self._producer_id(generation), epoch + 1), former_id

    def _find_epochs(self, producer_id: int) -> list[int]:
        """The epochs of a producer in the written logs."""
        logs = [self._get_log(name) for name in self._topics.written]
        producers = (log.active_producers().get(producer_id) for log in logs)
        return [producer.epoch for producer in producers if producer is not None]

    def _producer_id(self, generation: int) -> int:
        text = f"{self._topics.name}/{self._partition}/{generation}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return FIRST_PRODUCER_ID + (int.from_bytes(digest) >> (64 - PRODUCER_ID_BITS))

    def _find_logs(self, progress: Progress | None) -> Iterator[tuple[str, Log]]:
        """All logs but the progress log: earlier rules may have written to other topics."""
        required = {*self._topics.written, *(() if progress is None else progress.sequences)}
        for topic in self._store.topics():
            if topic.name == self._topics.progress or self._partition >= topic.partition_count:
                continue
            try:
                yield topic.name, topic.partition(self._partition).log
            except StoreError:
                if topic.name in required:
                    raise

    def _get_log(self, topic: str) -> Log:
        return self._store.topic(topic).partition(self._partition).log


def _fence(log: Log, producer: Producer, former_id: int, progress: Progress | None) -> None:
    """Ends open transactions, and records the producer's epoch, which fences lower ones."""
    is_committed = False
    for entry in open_transactions_of(log, {producer.id, former_id}):
        if entry.producer_id == producer.id:
            is_committed = _is_committed(log, progress, entry)
        else:
            _end_transaction(log, entry, is_committed=_is_committed(log, progress, entry))
    write_marker(log, producer, is_committed=is_committed)


def _is_committed(log: Log, progress: Progress | None, entry: ProducerStateEntry) -> bool:
    """Whether the open transaction belongs to the committed progress.

    Raises Corrupt if the log has lost a part of it.
    """
    if progress is None or progress.producer != Producer(entry.producer_id, entry.epoch):
        return False
    expected_sequence = progress.sequences.get(log.topic_partition.topic, 0)
    next_sequence = increment_sequence(entry.last_sequence, 1)
    missing_count = (expected_sequence - next_sequence) % (INT32_MAX + 1)
    if 0 < missing_count < _MISSING_MAX:
        raise Corrupt(
            f"{log.topic_partition} has records up to sequence {entry.last_sequence} of a "
            f"transaction that was on disk up to {expected_sequence - 1} when it was committed: "
            "the log was truncated; restore its files from a copy, or start again with another name"
        )
    return next_sequence == expected_sequence


def _end_transaction(log: Log, entry: ProducerStateEntry, *, is_committed: bool) -> None:
    write_marker(log, Producer(entry.producer_id, entry.epoch), is_committed=is_committed)
