"""An internal topic in which a coordinator keeps its state, of each key the last record.

All records of a name (a group, a transactional id) stand in one partition, chosen by Java's hash of
it. The topic is made when a name is first used.

Crash      the topic is made with `flush=ack`: an append to it is answered when it is on disk.
Threads    the loop's alone; reading at the start and making the topic run off the loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from varve.broker.background import BlockingPool
from varve.broker.topics import Topics
from varve.commit_log import Log, TopicPartition
from varve.embedded import Store
from varve.foundation.errors import DirectoryOffline, TopicExists

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StateTopic:
    """The partitions of one such topic, which may not be there yet."""

    def __init__(
        self,
        name: str,
        store: Store,
        topics: Topics,
        *,
        blocking: BlockingPool,
        partition_count: int,
        segment_bytes: int,
    ) -> None:
        """Partitions and segments are those it is made with."""
        self._name = name
        self._store = store
        self._topics = topics
        self._blocking = blocking
        self._partition_count = partition_count
        self._segment_bytes = segment_bytes
        self._creation: asyncio.Future[None] | None = None

    @property
    def is_made(self) -> bool:
        return self._topics.find(self._name) is not None

    def partition_of(self, name: str) -> TopicPartition:
        """Where a name's records stand, or will stand once the topic is made."""
        found = self._topics.find(self._name)
        count = self._partition_count if found is None else len(found.logs)
        return TopicPartition(self._name, partition_for(name, count))

    def find_log(self, name: str) -> Log | None:
        """None where the partition of a name is offline or not made yet."""
        topic = self._topics.find(self._name)
        return None if topic is None else topic.find_log(partition_for(name, len(topic.logs)))

    def get_log(self, name: str) -> Log:
        """The partition of a name; raises DirectoryOffline."""
        log = self.find_log(name)
        if log is not None:
            return log
        if not self.is_made:
            raise DirectoryOffline(f"{self._name} is gone; restart the broker")
        raise DirectoryOffline(
            f"{self.partition_of(name)} is offline: mend its disk and reopen the store"
        )

    async def ensure(self) -> None:
        """Makes the topic unless it is there."""
        if self.is_made:
            return
        if self._creation is None:
            self._creation = self._blocking.run(self._create)
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    async def read(self, replay: Callable[[Log], T]) -> AsyncIterator[T]:
        """What each partition tells; those that are offline are passed over."""
        topic = self._topics.find(self._name)
        for number, log in enumerate(() if topic is None else topic.logs):
            if log is None:
                logger.warning(
                    "state of a coordinator is offline",
                    extra={"topic": self._name, "partition": number},
                )
                continue
            yield await self._blocking.run(replay, log)

    def _create(self) -> None:
        try:
            self._store.create_topic(
                self._name,
                partitions=self._partition_count,
                settings={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": self._segment_bytes,
                    "flush": "ack",
                },
            )
        except TopicExists:
            return

    def _created(self, creation: "asyncio.Future[None]") -> None:
        self._creation = None
        if not creation.cancelled() and creation.exception() is None:
            self._topics.refresh()


def partition_for(name: str, partition_count: int) -> int:
    """As Kafka chooses: the absolute value of Java's hash, 0 for the one that has none."""
    code = 0
    data = name.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        code = (31 * code + (data[index] << 8) + data[index + 1]) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
