"""The topics a broker serves, by name and by id.

Invariant  a topic that was deleted and made again has another id; the old id finds nothing.
Threads    looked up in the loop's thread; changed by work off the loop, which `refresh` follows.
           `look` may be called in any.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from varve.commit_log import Log, LogSettings, TopicPartition
from varve.embedded import Store
from varve.embedded.topic import Topic
from varve.foundation.errors import StoreError
from varve.wire import NO_ID, ErrorCode

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


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

    def find_log(self, partition: int) -> Log | None:
        return self.logs[partition] if 0 <= partition < len(self.logs) else None

    def why_missing(self, partition: int) -> ErrorCode:
        """What a client is told of a partition for which `find_log` gave None."""
        if 0 <= partition < len(self.logs):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def leader_epoch_of(log: Log) -> int:
    """The epoch this broker leads a partition in."""
    epochs = log.epochs
    return epochs[-1].epoch if epochs else 0


def check_leader_epoch(log: Log, epoch: int) -> ErrorCode:
    """Whether a client's idea of the epoch is the present one; -1 is none."""
    if epoch < 0:
        return ErrorCode.NONE
    current = leader_epoch_of(log)
    if epoch == current:
        return ErrorCode.NONE
    is_past = epoch < current
    return ErrorCode.FENCED_LEADER_EPOCH if is_past else ErrorCode.UNKNOWN_LEADER_EPOCH


def epoch_at(log: Log, offset: int) -> int:
    """The leader epoch in which the record at an offset was written; -1 if none is known."""
    epochs = log.epochs
    passed = bisect_right(epochs, offset, key=lambda one: one.start_offset)
    return epochs[passed - 1].epoch if passed else -1


@dataclass(frozen=True, slots=True)
class TopicsView:
    """The topics of the store at one look; `generation` is what was shown when it began."""

    generation: int
    by_name: dict[str, ServedTopic]


class Topics:
    """What the store holds, as far as it was looked at last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_name: dict[str, ServedTopic] = {}
        self._by_id: dict[UUID, ServedTopic] = {}
        self.generation = 0
        """Grows whenever topics may have changed."""
        self.refresh()

    def refresh(self) -> None:
        """Looks at the store anew; to be called after topics were made, altered or deleted."""
        self.show(self.look())

    def look(self) -> "TopicsView":
        """What the store holds now; thousands of partitions are better looked at off the loop."""
        generation = self.generation
        return TopicsView(generation, {one.name: _serve(one) for one in self._store.topics()})

    def show(self, view: "TopicsView") -> None:
        """Serves what was seen; looks again if something else was shown since it was looked at."""
        if view.generation != self.generation:
            view = self.look()
        self._by_name = view.by_name
        self._by_id = {one.id: one for one in view.by_name.values() if one.id != NO_ID}
        self.generation += 1

    def find(self, name: str) -> ServedTopic | None:
        return self._by_name.get(name)

    def find_by_id(self, id: UUID) -> ServedTopic | None:
        return self._by_id.get(id)

    def find_colliding(self, name: str, others: Iterable[str] = ()) -> str | None:
        """A topic that differs from a name in dots and underscores alone, here or in `others`.

        Kafka takes no second one of the two: names of metrics have underscores for dots.
        """
        wanted = name.replace(".", "_")
        if wanted == name and "_" not in name:
            return None
        for one in (*self._by_name, *INTERNAL_TOPICS, *others):
            if one != name and one.replace(".", "_") == wanted:
                return one
        return None

    def find_log(self, partition: TopicPartition) -> Log | None:
        topic = self._by_name.get(partition.topic)
        return None if topic is None else topic.find_log(partition.partition)

    def __iter__(self) -> Iterator[ServedTopic]:
        """By name."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])


def _serve(topic: Topic) -> ServedTopic:
    return ServedTopic(topic, tuple(_find_log(topic, one) for one in range(topic.partition_count)))


def _find_log(topic: Topic, partition: int) -> Log | None:
    try:
        return topic.partition(partition).log
    except StoreError:
        return None
