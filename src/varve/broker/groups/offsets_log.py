"""`__consumer_offsets`: where groups and committed offsets are kept.

All records of a group stand in one partition, chosen by Java's hash of its name. The topic is made
when a group first needs it.

Invariant  `append` returns in the order of the calls on one partition, when the records are as
           durable as the topic promises: what follows an `await` of it may change memory without
           looking at others.
Crash      the topic is made with `flush=ack`: what was answered is on disk. Records of one append
           are there together or not at all. `load` reads them back; see `replay` for what an open
           transaction means.
Threads    the loop's alone; reading at the start and making the topic run off the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from varve.broker.appends import AppendPart, Appends
from varve.broker.groups.record_types import RecordType, encode_record
from varve.broker.groups.replay import Replayed, ReplayedRecord, replay
from varve.broker.groups.settings import GroupSettings
from varve.broker.topics import OFFSETS_TOPIC, Topics
from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import Origin
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.foundation.errors import DirectoryOffline, TopicExists
from varve.records import build_batch
from varve.wire import Message

logger = logging.getLogger(__name__)

T = TypeVar("T")

Loader = Callable[[Any, Any, int], None]
"""Takes the key, the value and the offset of a live record; both are of the type it asked for."""


class Offload(Protocol):
    """Runs work in another thread."""

    def __call__(self, work: Callable[..., T], *args: object) -> "asyncio.Future[T]": ...


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """In whose transaction records are written."""

    producer_id: int
    producer_epoch: int


class OffsetsLog:
    """The partitions of `__consumer_offsets`."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        appends: Appends,
        *,
        clock: Clock,
        offload: Offload,
        settings: GroupSettings,
    ) -> None:
        self._store = store
        self._topics = topics
        self._appends = appends
        self._clock = clock
        self._offload = offload
        self._settings = settings
        self._loaders: dict[RecordType, list[Loader]] = {}
        self._pending_loaders: list[Callable[[ReplayedRecord], None]] = []
        self._creation: asyncio.Future[None] | None = None
        self._last_appends: dict[int, asyncio.Future[int]] = {}

    def on_loaded(self, type: RecordType, call: Loader) -> None:
        """Asks for every live record of a type when the topic is read; called in the loop, in the
        order in which the records stand in their partition.
        """
        self._loaders.setdefault(type, []).append(call)

    def on_pending(self, call: Callable[[ReplayedRecord], None]) -> None:
        """Asks for the records of transactions that have not ended."""
        self._pending_loaders.append(call)

    def partition_of(self, group: str) -> TopicPartition:
        """Where a group's records stand, or will stand once the topic is made."""
        found = self._topics.find(OFFSETS_TOPIC)
        count = self._settings.offsets_topic_num_partitions
        if found is not None:
            count = len(found.logs)
        return TopicPartition(OFFSETS_TOPIC, partition_for(group, count))

    async def ensure_topic(self) -> None:
        """Makes the topic unless it is there."""
        if self._topics.find(OFFSETS_TOPIC) is not None:
            return
        if self._creation is None:
            self._creation = self._offload(self._create)
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    async def append(
        self,
        group: str,
        records: Sequence[tuple[Message, Message | None]],
        *,
        producer: ProducerStamp | None = None,
    ) -> int:
        """Writes keys and values, None for a tombstone, as one batch; gives the first one's offset.

        With a producer they are part of its transaction. Raises what the log refused them for.
        """
        await self.ensure_topic()
        return await asyncio.shield(self.submit(group, records, producer=producer))

    def submit(
        self,
        group: str,
        records: Sequence[tuple[Message, Message | None]],
        *,
        producer: ProducerStamp | None = None,
    ) -> "asyncio.Future[int]":
        """Like `append`, for a topic that is there: written whether or not somebody waits, and
        before anything that is submitted later.
        """
        now_ms = self._clock.now_ms()
        encoded = [encode_record(key, value, now_ms) for key, value in records]
        if producer is None:
            batch = build_batch(encoded)
        else:
            batch = build_batch(
                encoded,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transactional=True,
            )
        partition = self.partition_of(group)
        part = AppendPart(self._get_log(partition), batch, Origin.COORDINATOR)
        written = self._appends.submit([part])
        before = self._last_appends.get(partition.partition)
        done = asyncio.ensure_future(_in_order(part, written, before))
        self._last_appends[partition.partition] = done
        return done

    def _get_log(self, partition: TopicPartition) -> Log:
        log = self._topics.find_log(partition)
        if log is None:
            raise DirectoryOffline(f"{partition} is offline: mend its disk and reopen the store")
        return log

    async def load(self) -> None:
        """Reads all partitions and tells those who asked."""
        topic = self._topics.find(OFFSETS_TOPIC)
        if topic is None:
            return
        for number, log in enumerate(topic.logs):
            if log is None:
                logger.warning("groups are offline", extra={"partition": number})
                continue
            self._tell(await self._offload(replay, log))

    def _tell(self, replayed: Replayed) -> None:
        for record in replayed.records:
            for call in self._loaders.get(record.record_type, ()):
                call(record.key, record.value, record.offset)
        for record in replayed.pending:
            for tell in self._pending_loaders:
                tell(record)

    def _create(self) -> None:
        settings = self._settings
        try:
            self._store.create_topic(
                OFFSETS_TOPIC,
                partitions=settings.offsets_topic_num_partitions,
                settings={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": settings.offsets_topic_segment_bytes,
                    "flush": "ack",
                },
            )
        except TopicExists:
            return

    def _created(self, creation: "asyncio.Future[None]") -> None:
        self._creation = None
        if not creation.cancelled() and creation.exception() is None:
            self._topics.refresh()


async def _in_order(
    part: AppendPart, written: "asyncio.Future[None]", before: "asyncio.Future[int] | None"
) -> int:
    """The offset of what was written, not before the one before has its own."""
    await written
    if before is not None:
        await asyncio.wait([before])
    if part.error is not None:
        raise part.error
    assert part.result is not None
    return part.result.base_offset


def partition_for(group: str, partition_count: int) -> int:
    """As Kafka chooses: the absolute value of Java's hash, 0 for the one that has none."""
    code = 0
    data = group.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        code = (31 * code + (data[index] << 8) + data[index + 1]) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
