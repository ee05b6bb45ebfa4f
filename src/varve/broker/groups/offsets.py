"""The offsets that groups have committed.

Invariant  memory follows the log: an offset is found once its record is durable. One committed in
           a transaction waits, by producer, for the end of the transaction; it then counts unless a
           later commit of the same partition stands in the log.
Crash      all of it is read back from `__consumer_offsets`, what waits included.
Threads    the loop's alone.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from varve.broker.groups.offsets_log import OffsetsLog, ProducerStamp
from varve.broker.groups.record_types import RecordType
from varve.broker.groups.replay import ReplayedRecord
from varve.commit_log import TopicPartition
from varve.wire import NO_ID, Message
from varve.wire.messages.state_records import OffsetCommitKey, OffsetCommitValue

UNWRITTEN: Final = -1
_TOMBSTONES_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has come in a partition, and what it noted beside.

    `record_offset` is where the log of offsets says so, UNWRITTEN before it does.
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


class Offsets:
    """Committed offsets by group, and those that wait for their transactions."""

    def __init__(self, log: OffsetsLog) -> None:
        self._log = log
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[str, dict[int, _Pending]] = {}  # by group, then by producer
        self.commit_count = 0
        """Offsets committed since the start."""
        log.on_loaded(RecordType.LEGACY_OFFSET_COMMIT, self._load)
        log.on_loaded(RecordType.OFFSET_COMMIT, self._load)
        log.on_pending(self._load_pending)

    def find(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._by_group.get(group, {}).get(partition)

    def of_group(self, group: str) -> Commits:
        """Not to be kept: it changes with the next commit."""
        return self._by_group.get(group, {})

    def groups(self) -> Iterator[str]:
        """Those that have offsets, or will have some when a transaction is committed."""
        return iter(sorted(self._by_group.keys() | self._pending.keys()))

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Whether a transaction that has not ended will commit an offset of the partition."""
        return any(partition in one for one in self._pending.get(group, {}).values())

    def known_partitions(self, group: str) -> set[TopicPartition]:
        """Those with a committed offset, or one that waits for its transaction."""
        found = set(self._by_group.get(group, ()))
        return found.union(*self._pending.get(group, {}).values())

    def has_any(self, group: str) -> bool:
        return group in self._by_group or group in self._pending

    async def commit(self, group: str, offsets: Commits) -> None:
        """Returns when they are durable; raises what the log refused them for."""
        base_offset = await self._log.append(group, _records(group, offsets))
        for index, (partition, committed) in enumerate(offsets.items()):
            self._show(group, partition, replace(committed, record_offset=base_offset + index))
        self.commit_count += len(offsets)

    async def commit_in_transaction(
        self, group: str, producer_id: int, epoch: int, offsets: Commits
    ) -> None:
        """Commits when the producer's transaction is committed; returns when that is durable.

        Written in the turn of the loop it is called in, if the topic is there, and whether or not
        somebody waits.
        """
        await self._log.ensure_topic()
        stamp = ProducerStamp(producer_id, epoch)
        written = self._log.submit(group, _records(group, offsets), producer=stamp)
        mine = self._pending.setdefault(group, {}).setdefault(producer_id, {})
        before = dict(mine)
        # Told before it is written: the end of the transaction may overtake the answer.
        mine.update(offsets)

        def settle(done: "asyncio.Future[int]") -> None:
            if done.cancelled() or done.exception() is not None:
                self._take_back(group, producer_id, offsets, before)
            else:
                _note_written(mine, offsets, done.result())

        written.add_done_callback(settle)
        await asyncio.shield(written)

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        """The markers of the producer's transaction are in the log."""
        for group in [one for one, by in self._pending.items() if producer_id in by]:
            pending = self._pending[group].pop(producer_id)
            self._forget_if_idle(group)
            if not committed:
                continue
            for partition, one in pending.items():
                if one.record_offset != UNWRITTEN:
                    self._show(group, partition, one)
                    self.commit_count += 1

    async def delete(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Takes offsets out, also those that wait for a transaction."""
        listed = list(partitions)
        for start in range(0, len(listed), _TOMBSTONES_AT_ONCE):
            some = listed[start : start + _TOMBSTONES_AT_ONCE]
            await self._log.append(group, [(_key(group, one), None) for one in some])
            self._hide(group, some)

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
            for one in waiting.values():
                # One that is not written yet will stand behind the tombstone.
                if partition in one and one[partition].record_offset != UNWRITTEN:
                    del one[partition]
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
        for producer_id in [one for one, waiting in by_producer.items() if not waiting]:
            del by_producer[producer_id]
        if not by_producer:
            self._pending.pop(group, None)

    def _load(self, key: OffsetCommitKey, value: OffsetCommitValue, offset: int) -> None:
        self._show(key.group, TopicPartition(key.topic, key.partition), _committed(value, offset))

    def _load_pending(self, record: ReplayedRecord) -> None:
        if not isinstance(record.key, OffsetCommitKey):
            return
        key, value = record.key, record.value
        mine = self._pending.setdefault(key.group, {}).setdefault(record.producer_id, {})
        partition = TopicPartition(key.topic, key.partition)
        if isinstance(value, OffsetCommitValue):
            mine[partition] = _committed(value, record.offset)


def _note_written(mine: _Pending, offsets: Commits, base_offset: int) -> None:
    """Gives offsets that still wait their place in the log."""
    for index, (partition, committed) in enumerate(offsets.items()):
        if mine.get(partition) is committed:
            mine[partition] = replace(committed, record_offset=base_offset + index)


def _records(group: str, offsets: Commits) -> list[tuple[Message, Message | None]]:
    return [(_key(group, partition), _value(one)) for partition, one in offsets.items()]


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


def _committed(value: OffsetCommitValue, record_offset: int) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        record_offset,
    )
