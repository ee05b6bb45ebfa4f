"""`__consumer_offsets`: where groups and committed offsets are kept.

All records of a group stand in one partition of a `StateTopic`.

Invariant  `append` returns in the order of the calls on one partition, when the records are as
           durable as the topic promises: what follows an `await` of it may change memory without
           looking at others.
Crash      what was answered is on disk. Records of one append are there together or not at all.
           `load` reads them back; see `replay` for what an open transaction means.
Threads    the loop's alone; reading at the start runs off the loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import BlockingPool
from varve.broker.groups.record_types import RecordType, encode_record
from varve.broker.groups.replay import Replayed, ReplayedRecord, replay
from varve.broker.settings import GroupSettings
from varve.broker.state_topic import StateTopic
from varve.broker.topics import OFFSETS_TOPIC, Topics
from varve.commit_log import TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.records import build_batch
from varve.wire import Message

Loader = Callable[[Any, Any, int], None]
"""Takes the key, the value and the offset of a live record; both are of the type it asked for."""


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
        appends: AppendScheduler,
        *,
        clock: Clock,
        blocking: BlockingPool,
        settings: GroupSettings,
    ) -> None:
        self._topic = StateTopic(
            OFFSETS_TOPIC,
            store,
            topics,
            blocking=blocking,
            partition_count=settings.offsets_topic_num_partitions,
            segment_bytes=settings.offsets_topic_segment_bytes,
        )
        self._appends = appends
        self._clock = clock
        self._loaders: dict[RecordType, list[Loader]] = {}
        self._pending_loaders: list[Callable[[ReplayedRecord], None]] = []
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
        return self._topic.partition_of(group)

    async def ensure_topic(self) -> None:
        """Makes the topic unless it is there."""
        await self._topic.ensure()

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
        log = self._topic.get_log(group)
        part = AppendEntry(log, batch, AppendOrigin.COORDINATOR)
        written = self._appends.submit([part])
        number = log.topic_partition.partition
        done = asyncio.ensure_future(_in_order(part, written, self._last_appends.get(number)))
        self._last_appends[number] = done
        return done

    async def load(self) -> None:
        """Reads all partitions and tells those who asked."""
        async for replayed in self._topic.read(replay):
            self._tell(replayed)

    def _tell(self, replayed: Replayed) -> None:
        for record in replayed.records:
            for call in self._loaders.get(record.record_type, ()):
                call(record.key, record.value, record.offset)
        for record in replayed.pending:
            for tell in self._pending_loaders:
                tell(record)


async def _in_order(
    part: AppendEntry, written: "asyncio.Future[None]", before: "asyncio.Future[int] | None"
) -> int:
    """The offset of what was written, not before the one before has its own."""
    await written
    if before is not None:
        await asyncio.wait([before])
    if part.error is not None:
        raise part.error
    assert part.result is not None
    return part.result.base_offset
