"""Reads the input topic of a deduplication, and commits its results exactly once.

Through the Kafka protocol a chunk is a transaction of the id `varve-dedup-<name>-<partition>`, and
its position also an offset of the group `varve-dedup-<name>`, so that Kafka's tools show the lag.
In a store the progress topic records the commits: see `progress_coordinator`.

Invariant  a commit is all or nothing: readers of committed records see output, side and changelog
           records and the progress together, or none of them.
Crash      `open_task` ends transactions that a crash left open before it returns the progress.
Threads    one; `new_session` serves another thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from varve.commit_log import Isolation, TopicPartition
from varve.dedup.output import BatchLimit
from varve.dedup.progress import Progress, find_progress, progress_batch
from varve.dedup.progress_coordinator import ProgressCoordinator
from varve.dedup.topics import (
    RETENTION,
    DedupTopics,
    check_own_topics,
    check_partitions,
    find_longer_retention,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, NotFound
from varve.kafka_client.transaction import CommittedOffset
from varve.topics import (
    KafkaCluster,
    KafkaTransactionalWriter,
    StoreCluster,
    StoreTransactionalWriter,
    TopicReader,
)

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
    """Commits chunks of one partition."""

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
        self._changelog_end = 0
        self._coordinator: ProgressCoordinator | None = None
        self.transaction: StoreTransactionalWriter | KafkaTransactionalWriter
        if isinstance(cluster, StoreCluster):
            self._coordinator = ProgressCoordinator(cluster, topics, partition, clock)
            self.transaction = cluster.writer(self._coordinator)
        else:
            self.transaction = cluster.writer(f"{PREFIX}{topics.name}-{partition}")

    def init(self) -> None:
        self.transaction.init_transactions()

    def commit(self, commit: TaskCommit) -> int:
        """Commits atomically; returns the end offset of the changelog, 0 if it is unknown.

        After an error, call `init` again.
        """
        self.append(commit)
        self.transaction.commit()
        return self._changelog_end

    def append(self, commit: TaskCommit) -> None:
        """Appends the records of a commit to the open transaction."""
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
        changelog = TopicPartition(topics.changelog, self._partition)
        self._changelog_end = max(self._changelog_end, ends.get(changelog, 0))
        if isinstance(self.transaction, KafkaTransactionalWriter):
            offset = CommittedOffset(topics.input, commit.progress.position, "", self._partition)
            self.transaction.commit_offset(f"{PREFIX}{topics.name}", offset)
        elif self._coordinator is not None:
            self._coordinator.progress = commit.progress


class DedupBackend:
    """The topics of one deduplication. `prepare` comes first, and `open_task` before commits."""

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
        self._writers: dict[int, PartitionWriter] = {}

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
        self._writers.clear()
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

    def open_task(self, partition: int) -> Progress | None:
        """Fences earlier writers of the partition and ends their transactions.

        Returns the last committed progress; None if nothing was committed yet.
        """
        writer = PartitionWriter(self._cluster, self.topics, partition, self._clock)
        writer.init()
        self._writers[partition] = writer
        return self.find_progress(partition)

    def commit(self, partition: int, commit: TaskCommit) -> int:
        """Commits atomically; returns the end offset of the changelog, 0 if it is unknown.

        After an error the partition must be opened again.
        """
        writer = self._writers.pop(partition, None)
        if writer is None:
            raise Closed(f"{self.topics.output}-{partition}: open the task before a commit")
        changelog_end = writer.commit(commit)
        self._writers[partition] = writer
        return changelog_end

    def close_task(self, partition: int) -> None:
        self._writers.pop(partition, None)
