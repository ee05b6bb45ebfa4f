"""The topics a broker serves, by name and by id; and the leader epochs of their logs.

Invariant  a topic that was deleted and recreated has another id; the old id finds nothing.
Threads    looked up in the loop's thread; changed by work off the loop, after which `refresh` is
           called. `snapshot` may be called in any thread.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from varve.commit_log import Log, LogSettings, TopicPartition
from varve.embedded import Store
from varve.embedded.topic import Topic
from varve.foundation.errors import StoreError
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.state_records import BROKER_TOPICS, INTERNAL_TOPICS

K = TypeVar("K", str, UUID)


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic; the log of a partition whose directory is offline is None."""

    topic: Topic
    logs: tuple[Log | None, ...]

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def id(self) -> UUID:
        return self.topic.id or NO_ID

    @property
    def settings(self) -> LogSettings:
        return self.topic.settings

    @property
    def is_internal(self) -> bool:
        return self.topic.name in INTERNAL_TOPICS

    @property
    def is_written_by_clients(self) -> bool:
        return self.topic.name not in BROKER_TOPICS

    def find_log(self, partition: int) -> Log | None:
        return self.logs[partition] if 0 <= partition < len(self.logs) else None

    def get_log(self, partition: int, *, leader_epoch: int = -1) -> Log:
        """Raises KafkaError for a partition that is offline, does not exist or has another epoch
        than the client knows.
        """
        log = self.find_log(partition)
        if log is None:
            raise KafkaError(self.missing_partition_code(partition))
        error = check_leader_epoch(log, leader_epoch)
        if error:
            raise KafkaError(error)
        return log

    def missing_partition_code(self, partition: int) -> ErrorCode:
        """The error of a partition for which `find_log` returns None."""
        if 0 <= partition < len(self.logs):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def current_leader_epoch(log: Log) -> int:
    """The epoch in which this broker leads a partition."""
    epochs = log.epochs
    return epochs[-1].epoch if epochs else 0


def check_leader_epoch(log: Log, epoch: int) -> ErrorCode:
    """Compares the epoch that a client knows, -1 where it knows none."""
    if epoch < 0:
        return ErrorCode.NONE
    current = current_leader_epoch(log)
    if epoch == current:
        return ErrorCode.NONE
    is_past = epoch < current
    return ErrorCode.FENCED_LEADER_EPOCH if is_past else ErrorCode.UNKNOWN_LEADER_EPOCH


def epoch_at(log: Log, offset: int) -> int:
    """The leader epoch in which the record at an offset was written; -1 if none is known."""
    epochs = log.epochs
    passed = bisect_right(epochs, offset, key=lambda entry: entry.start_offset)
    return epochs[passed - 1].epoch if passed else -1


def by_topic(partitions: Iterable[tuple[K, int]]) -> dict[K, list[int]]:
    """Partition numbers by topic name or id, both in order."""
    numbers: dict[K, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return numbers


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    return by_topic((partition.topic, partition.partition) for partition in partitions)


@dataclass(frozen=True, slots=True)
class TopicsView:
    """The topics of the store at one time, and the `Topics.generation` at that time."""

    generation: int
    by_name: dict[str, ServedTopic]


class Topics:
    """The topics of the store, as of the last refresh."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_name: dict[str, ServedTopic] = {}
        self._by_id: dict[UUID, ServedTopic] = {}
        self.generation = 0
        """Grows whenever topics may have changed."""
        self.refresh()

    def refresh(self) -> None:
        """To be called after topics were created, altered or deleted."""
        self.serve(self.snapshot())

    def snapshot(self) -> TopicsView:
        """What the store has now; with thousands of partitions to be called off the loop."""
        generation = self.generation
        return TopicsView(generation, {topic.name: _serve(topic) for topic in self._store.topics()})

    def serve(self, view: TopicsView) -> None:
        """Serves a snapshot, or a newer one if another was served since it was taken."""
        if view.generation != self.generation:
            view = self.snapshot()
        self._by_name = view.by_name
        self._by_id = {topic.id: topic for topic in view.by_name.values() if topic.id != NO_ID}
        self.generation += 1

    def find(self, name: str) -> ServedTopic | None:
        return self._by_name.get(name)

    def find_by_id(self, id: UUID) -> ServedTopic | None:
        return self._by_id.get(id)

    def get(self, *, name: str | None = None, id: UUID | None = None) -> ServedTopic:
        """The topic with a name, or where that is None with an id; raises KafkaError."""
        if name is not None:
            topic, code = self.find(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic, code = self.find_by_id(id or NO_ID), ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            text = f"topic id {id}" if name is None else f"topic {name:.260}"
            raise KafkaError(code, f"{text} does not exist")
        return topic

    def find_colliding(self, name: str, others: Iterable[str] = ()) -> str | None:
        """A topic, served or in `others`, that differs from a name in dots and underscores alone.

        Kafka rejects the second of the two: names of metrics have underscores for dots.
        """
        metric_name = name.replace(".", "_")
        if metric_name == name and "_" not in name:
            return None
        for other in (*self._by_name, *BROKER_TOPICS, *others):
            if other != name and other.replace(".", "_") == metric_name:
                return other
        return None

    def find_log(self, partition: TopicPartition) -> Log | None:
        topic = self._by_name.get(partition.topic)
        return None if topic is None else topic.find_log(partition.partition)

    def __iter__(self) -> Iterator[ServedTopic]:
        """By name."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])


def _serve(topic: Topic) -> ServedTopic:
    logs = (_find_log(topic, number) for number in range(topic.partition_count))
    return ServedTopic(topic, tuple(logs))


def _find_log(topic: Topic, partition: int) -> Log | None:
    try:
        return topic.partition(partition).log
    except StoreError:  # its directory is offline or missing: the topic is served without it
        return None
