"""Reads the input topic of a deduplication, and commits its results exactly once.

Through the Kafka protocol a chunk is a transaction of the id `varve-dedup-<name>-<partition>`, and
its position also an offset of the group `varve-dedup-<name>`, so that Kafka's tools show the lag.
In a store the progress topic records the commits: `ProgressCoordinator` is their coordinator.

Invariant  a commit is all or nothing: readers of committed records see output, side and changelog
           records and the progress together, or none of them. In a store a transaction is committed
           if and only if its commit marker is in the progress topic; markers in the other topics
           follow that decision.
Crash      `open_writer` ends transactions that a crash left open. One that is open in the progress
           topic is aborted. One that is open elsewhere is committed if the last committed progress
           has its producer and its last sequence, else aborted.
           docs/reference/formats/dedup-progress.md
Threads    one; `new_session` serves another thread.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from varve.commit_log import Isolation, Log, TopicPartition
from varve.commit_log.producer_state import ProducerStateEntry
from varve.commit_log.settings import LAST_ERASURE, NO_ERASURE
from varve.dedup.output import BatchLimit
from varve.dedup.progress import Progress, find_progress, progress_batch
from varve.dedup.rules import IdSource
from varve.dedup.topics import (
    RETENTION,
    DedupTopics,
    check_own_topics,
    check_partitions,
    find_longer_retention,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, NotFound, StoreError
from varve.kafka_client.transaction import CommittedOffset
from varve.kernels.batch_layout import INT32_MAX
from varve.records import Producer, increment_sequence, stamp_producer
from varve.topics import (
    KafkaCluster,
    KafkaTransactionalWriter,
    StoreCluster,
    StoreTransactionalWriter,
    TopicReader,
)
from varve.topics.outputs import HERE, DerivedOutput, OutputKind
from varve.topics.store_cluster import (
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


PREFIX: Final = "varve-dedup-"
"""Prefix of the transactional ids, and of the group whose offsets are the positions."""
_MESSAGE_BYTES_MAX: Final = 1_048_588
"""Kafka's default of max.message.bytes, for a cluster that reports no limit."""


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """The results of a chunk; batches have neither offsets nor a producer."""

    output: Sequence[bytes | bytearray]
    side: Sequence[bytes | bytearray]
    changelog: Sequence[bytes | bytearray]
    progress: Progress


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Topic ids of input and output as text, empty if the cluster has none."""

    input: str
    output: str


class PartitionWriter:
    """Commits chunks of one partition; after an error another writer is needed."""

    def __init__(
        self,
        cluster: StoreCluster | KafkaCluster,
        topics: DedupTopics,
        partition: int,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._partition = partition
        self._clock = clock
        self._coordinator: ProgressCoordinator | None = None
        self.transaction: StoreTransactionalWriter | KafkaTransactionalWriter
        if isinstance(cluster, StoreCluster):
            self._coordinator = ProgressCoordinator(cluster, topics, partition, clock)
            self.transaction = cluster.writer(self._coordinator)
        else:
            self.transaction = cluster.writer(f"{PREFIX}{topics.name}-{partition}")

    def commit(self, commit: TaskCommit) -> int:
        """Commits atomically; returns the end offset of new changelog entries.

        0 if there are none, -1 if it is unknown.
        """
        changelog_end = self.append(commit)
        self.transaction.commit()
        return changelog_end

    def append(self, commit: TaskCommit) -> int:
        """Appends the records of a commit to the open transaction, as `commit` does."""
        topics = self._topics
        batches = {topics.changelog: commit.changelog, topics.output: commit.output}
        if topics.side is not None:
            batches[topics.side] = commit.side
        if isinstance(self.transaction, KafkaTransactionalWriter):
            batches[topics.progress] = [progress_batch(commit.progress, self._clock.now_ms())]
        ends = self.transaction.append(
            {
                TopicPartition(topic, self._partition): topic_batches
                for topic, topic_batches in batches.items()
            }
        )
        if isinstance(self.transaction, KafkaTransactionalWriter):
            offset = CommittedOffset(topics.input, commit.progress.position, "", self._partition)
            self.transaction.commit_offset(f"{PREFIX}{topics.name}", offset)
        elif self._coordinator is not None:
            self._coordinator.progress = commit.progress
        return ends.get(TopicPartition(topics.changelog, self._partition), 0)


class DedupBackend:
    """The topics of one deduplication; `prepare` comes first."""

    def __init__(
        self,
        cluster: StoreCluster | KafkaCluster,
        topics: DedupTopics,
        *,
        settings: Mapping[str, Mapping[str, str]],
        clock: Clock,
    ) -> None:
        self.topics = topics
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._input: TopicReader | None = None

    @property
    def name(self) -> str:
        return self._cluster.name

    @property
    def input(self) -> TopicReader:
        if self._input is None:
            self._input = self._cluster.reader(self.topics.input)
        return self._input

    def new_session(self) -> "DedupBackend":
        """The same topics for another thread."""
        return DedupBackend(
            self._cluster.new_session(), self.topics, settings=self._settings, clock=self._clock
        )

    def close(self) -> None:
        if self._input is not None:
            self._input.close()
        self._cluster.close()

    # Topics

    def prepare(self) -> int:
        """Creates the topics that are missing; returns the number of partitions.

        Raises NotFound without the input, InvalidRequest for topics that do not fit it.
        """
        topics = self.topics
        count = self.partition_count(topics.input)
        own = [name for name in (topics.changelog, topics.progress) if self._has_topic(name)]
        has_entries = topics.changelog in own and self._has_entries()
        check_own_topics(topics, own, cluster=self.name, has_entries=has_entries)
        for name in topics.written:
            topic_info = self._cluster.find_or_create(
                name, partitions=count, settings=self._settings[name]
            )
            check_partitions(topics, name, topic_info.partition_count, expected=count)
        retention_ms = int(self._cluster.settings(topics.changelog).get(RETENTION, -1))
        altered = find_longer_retention(retention_ms, self._settings[topics.changelog])
        if altered:
            self._cluster.alter(topics.changelog, altered)
        return count

    def register_outputs(self, state_directory: str, by: IdSource) -> None:
        """Registers what erasures of the input must reach, before the first record is copied."""
        topics, input_topic = self.topics, self._cluster.describe(self.topics.input)
        output = DerivedOutput(
            kind=OutputKind.TOPIC,
            topic=input_topic.name,
            topic_id=input_topic.id_text,
            place=HERE,
            name=topics.output,
            noted_ms=self._clock.now_ms(),
        )
        self._cluster.register_output(output)
        if topics.side is not None:
            self._cluster.register_output(replace(output, name=topics.side))
        how = (("by", str(by)), ("changelog", topics.changelog), ("progress", topics.progress))
        path = os.path.abspath(state_directory)
        self._cluster.register_output(
            replace(output, kind=OutputKind.IDS, place=path, name=topics.name, how=how)
        )

    def last_erasure(self) -> str:
        """The last erasure of the input; `NO_ERASURE` also where a broker knows of none."""
        return self.input.settings().get(LAST_ERASURE, NO_ERASURE)

    def _has_topic(self, name: str) -> bool:
        try:
            self._cluster.describe(name)
        except NotFound:
            return False
        return True

    def _has_entries(self) -> bool:
        """Whether anything was ever written to the changelog."""
        topic = self.topics.changelog
        reader = self._cluster.reader(topic, isolation=Isolation.READ_UNCOMMITTED)
        try:
            return any(reader.offsets(number).end for number in range(self.partition_count(topic)))
        finally:
            reader.close()

    def partition_count(self, topic: str) -> int:
        """Raises NotFound."""
        return self._cluster.describe(topic).partition_count

    def topic_ids(self) -> TopicIds:
        names = (self.topics.input, self.topics.output)
        return TopicIds(*(self._cluster.describe(name).id_text for name in names))

    def limits(self) -> Mapping[str, BatchLimit]:
        """The largest batches of the written topics, by name."""
        batch_limits = {}
        for name in self.topics.written:
            settings = self._cluster.settings(name)
            sizes = [settings.get("max.message.bytes"), settings.get("segment.bytes")]
            limits_bytes = [int(size) for size in sizes if size is not None]
            batch_limits[name] = BatchLimit(name, min(limits_bytes, default=_MESSAGE_BYTES_MAX))
        return batch_limits

    def read_changelog(self) -> TopicReader:
        """A reader of the changelog; the caller closes it."""
        return self._cluster.reader(self.topics.changelog)

    # Partitions

    def find_progress(self, partition: int) -> Progress | None:
        """The last committed progress; does not fence the writer."""
        reader = self._cluster.reader(self.topics.progress)
        try:
            return find_progress(reader, partition)
        finally:
            reader.close()

    def open_writer(self, partition: int) -> PartitionWriter:
        """Fences earlier writers of the partition and ends their transactions."""
        writer = PartitionWriter(self._cluster, self.topics, partition, self._clock)
        writer.transaction.init_transactions()
        return writer
