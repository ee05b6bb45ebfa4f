"""The offsets that groups have committed, and their expiration.

Invariant  memory follows the log: an offset is found once its record is durable. One committed in
           a transaction waits, by producer, for the end of the transaction; it then counts unless a
           later commit of the same partition is in the log.
Crash      everything is read back from `__consumer_offsets`, pending offsets included.
Threads    the loop's.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from varve.broker.groups.group import Group
from varve.broker.groups.records import GroupLog, GroupRecord, Records
from varve.broker.topics import ServedTopic, Topics
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError
from varve.records import Producer
from varve.wire import NO_ID
from varve.wire.messages.state_records import OffsetCommitKey, OffsetCommitValue

logger = logging.getLogger(__name__)

UNWRITTEN: Final = -1
_TOMBSTONES_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The position of a group in a partition.

    `record_offset` is that of its record in the log of groups, UNWRITTEN before it has one.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: UUID = NO_ID
    record_offset: int = UNWRITTEN


Commits = Mapping[TopicPartition, CommittedOffset]

_Pending = dict[TopicPartition, CommittedOffset]


class CommittedOffsets:
    """Committed offsets by group, and those that wait for their transactions."""

    def __init__(self, log: GroupLog) -> None:
        self._log = log
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[str, dict[int, _Pending]] = {}  # by group, then by producer
        self.commit_count = 0
        """Offsets committed since the start."""

    def find(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._by_group.get(group, {}).get(partition)

    def of_group(self, group: str) -> Commits:
        """Not to be kept: it changes with the next commit."""
        return self._by_group.get(group, {})

    def groups(self) -> Iterator[str]:
        """Those with offsets, or with some that wait for a transaction."""
        return iter(sorted(self._by_group.keys() | self._pending.keys()))

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Whether an open transaction will commit an offset in the partition."""
        return any(partition in offsets for offsets in self._pending.get(group, {}).values())

    def known_partitions(self, group: str) -> set[TopicPartition]:
        """Those with a committed offset, or one that waits for its transaction."""
        committed = set(self._by_group.get(group, ()))
        return committed.union(*self._pending.get(group, {}).values())

    def has_any(self, group: str) -> bool:
        return group in self._by_group or group in self._pending

    async def commit(self, group: str, offsets: Commits) -> None:
        """Returns when they are durable; raises what the log rejected them for."""
        base_offset = await self._log.append(group, _records(group, offsets))
        for index, (partition, committed) in enumerate(offsets.items()):
            self._show(group, partition, replace(committed, record_offset=base_offset + index))
        self.commit_count += len(offsets)

    async def commit_in_transaction(
        self, group: str, producer_id: int, epoch: int, offsets: Commits
    ) -> None:
        """Offsets that count once the producer's transaction is committed; durable on return.

        If the topic exists, they are submitted in the turn of the loop in which this is called, and
        written also where the caller is cancelled.
        """
        await self._log.topic.ensure()
        written = self._log.submit(group, _records(group, offsets), Producer(producer_id, epoch))
        mine = self._pending.setdefault(group, {}).setdefault(producer_id, {})
        before = dict(mine)
        # Pending before it is written: the transaction may end before the append completes.
        mine.update(offsets)

        def written_or_failed(done: "asyncio.Future[int]") -> None:
            if done.cancelled() or done.exception() is not None:
                self._take_back(group, producer_id, offsets, before)
            else:
                _set_record_offsets(mine, offsets, done.result())

        written.add_done_callback(written_or_failed)
        await asyncio.shield(written)

    def complete_transaction(
        self, producer_id: int, committed: bool, *, partition: TopicPartition | None = None
    ) -> None:
        """The markers of the producer's transaction are in the log, or in one of its partitions."""
        for group in [group for group, by in self._pending.items() if producer_id in by]:
            if partition is not None and self._log.topic.partition_of(group) != partition:
                continue
            pending = self._pending[group].pop(producer_id)
            self._forget_if_idle(group)
            if not committed:
                continue
            for committed_partition, offset in pending.items():
                if offset.record_offset != UNWRITTEN:
                    self._show(group, committed_partition, offset)
                    self.commit_count += 1

    async def delete(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Removes offsets, also those that wait for a transaction."""
        remaining = list(partitions)
        for start in range(0, len(remaining), _TOMBSTONES_AT_ONCE):
            chunk = remaining[start : start + _TOMBSTONES_AT_ONCE]
            await self._log.append(group, [(_key(group, partition), None) for partition in chunk])
            self._hide(group, chunk)

    def _show(self, group: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        offsets = self._by_group.setdefault(group, {})
        shown = offsets.get(partition)
        if shown is None or shown.record_offset < committed.record_offset:
            offsets[partition] = committed

    def _hide(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        offsets = self._by_group.get(group, {})
        waiting = self._pending.get(group, {})
        for partition in partitions:
            offsets.pop(partition, None)
            for committed_offsets in waiting.values():
                # One that is not written yet will follow the tombstone.
                if (
                    partition in committed_offsets
                    and committed_offsets[partition].record_offset != UNWRITTEN
                ):
                    del committed_offsets[partition]
        if not offsets:
            self._by_group.pop(group, None)
        self._forget_if_idle(group)

    def _take_back(self, group: str, producer_id: int, offsets: Commits, before: _Pending) -> None:
        mine = self._pending.get(group, {}).get(producer_id, {})
        for partition, committed in offsets.items():
            if mine.get(partition) is not committed:
                continue
            del mine[partition]
            if partition in before:
                mine[partition] = before[partition]
        self._forget_if_idle(group)

    def _forget_if_idle(self, group: str) -> None:
        by_producer = self._pending.get(group, {})
        for producer_id in [id for id, waiting in by_producer.items() if not waiting]:
            del by_producer[producer_id]
        if not by_producer:
            self._pending.pop(group, None)

    def load(self, record: GroupRecord) -> None:
        """Takes an offset from the log, or one that waits for its transaction."""
        key, value = record.key, record.value
        assert isinstance(key, OffsetCommitKey)
        partition = TopicPartition(key.topic, key.partition)
        if record.producer_id < 0:
            assert isinstance(value, OffsetCommitValue)
            self._show(key.group, partition, _from_record(value, record.offset))
            return
        mine = self._pending.setdefault(key.group, {}).setdefault(record.producer_id, {})
        if isinstance(value, OffsetCommitValue):
            mine[partition] = _from_record(value, record.offset)


def _set_record_offsets(mine: _Pending, offsets: Commits, base_offset: int) -> None:
    """Of those that still wait for the transaction."""
    for index, (partition, committed) in enumerate(offsets.items()):
        if mine.get(partition) is committed:
            mine[partition] = replace(committed, record_offset=base_offset + index)


def _records(group: str, offsets: Commits) -> Records:
    return [(_key(group, partition), _value(offset)) for partition, offset in offsets.items()]


def _key(group: str, partition: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition)


def _value(committed: CommittedOffset) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )


def _from_record(value: OffsetCommitValue, record_offset: int) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        record_offset,
    )


_MINUTE_MS: Final = 60_000


class OffsetExpiry:
    """Removes offsets past their retention.

    Offsets expire when their group has been empty, or has not read the topic, for
    `offsets.retention.minutes`; when the retention that an old client requested is over; and with
    their topic.
    """

    def __init__(
        self,
        offsets: CommittedOffsets,
        topics: Topics,
        *,
        clock: Clock,
        retention_minutes: int,
    ) -> None:
        self._offsets = offsets
        self._topics = topics
        self._clock = clock
        self._retention_ms = retention_minutes * _MINUTE_MS

    async def drop_topic(self, topic: ServedTopic) -> None:
        """Removes the offsets in a deleted topic; those that cannot be removed expire later."""
        for group in list(self._offsets.groups()):
            await asyncio.sleep(0)
            partitions = self._offsets.known_partitions(group)
            deleted = [
                partition for partition in partitions if self._is_in(topic, group, partition)
            ]
            try:
                await self._offsets.delete(group, deleted)
            except StoreError as error:
                extra = {"group": group, "error": str(error)}
                logger.warning("offset expiration failed", extra=extra)

    def _is_in(self, topic: ServedTopic, group: str, partition: TopicPartition) -> bool:
        """A topic that was recreated under the name has another id."""
        offset = self._offsets.find(group, partition)
        is_same_name = partition.topic == topic.name
        return is_same_name and (offset is None or offset.topic_id in (NO_ID, topic.id))

    async def expire(self, group: Group) -> None:
        """Removes the expired offsets of a group; raises what the log rejected that for."""
        now_ms = self._clock.now_ms()
        expired = [
            partition
            for partition, offset in self._offsets.of_group(group.id).items()
            if not self._offsets.is_pending(group.id, partition)
            and self._is_expired(group, partition, offset, now_ms)
        ]
        await self._offsets.delete(group.id, expired)
        if expired:
            logger.info("offsets expired", extra={"group": group.id, "count": len(expired)})

    def _is_expired(
        self, group: Group, partition: TopicPartition, offset: CommittedOffset, now_ms: int
    ) -> bool:
        topic = self._topics.find(partition.topic)
        if topic is None or offset.topic_id not in (NO_ID, topic.id):
            return True
        base_ms = group.expiry_base_ms(partition.topic, offset.commit_timestamp_ms)
        if base_ms is None:
            return False
        if offset.expire_timestamp_ms >= 0:
            return now_ms >= offset.expire_timestamp_ms
        return now_ms - base_ms >= self._retention_ms
