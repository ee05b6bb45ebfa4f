"""The coordinator of all groups: classic groups, consumer groups and committed offsets.

Crash      `load` reads everything back from `__consumer_offsets`.
Threads    the loop's. What changes memory after it has waited for the log runs in background tasks:
           a client that disconnects does not interrupt it.
"""

import asyncio
import logging
from typing import Final

from varve.broker.background import BlockingPool, Timer, cancel_timer, finished
from varve.broker.groups.classic_group import NO_MEMBER, ClassicGroup
from varve.broker.groups.committed_offsets import Commits, CommittedOffsets, OffsetExpiry
from varve.broker.groups.consumer_coordinator import ConsumerCoordinator
from varve.broker.groups.group import (
    Committer,
    Group,
    Groups,
    GroupServices,
    commit_error_code,
    kafka_errors,
)
from varve.broker.groups.records import CONSUMER_PROTOCOL, ConsumerStateReader, GroupRecord
from varve.broker.topics import ServedTopic, Topics
from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.state_records import (
    OFFSETS_TOPIC,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
)

logger = logging.getLogger(__name__)

_FIRST_COMMIT_WITH_MISSING: Final = 9
"""Before this version of OffsetCommit a missing group is an illegal generation."""


class GroupCoordinator:
    """Groups and their offsets."""

    def __init__(self, services: GroupServices, topics: Topics, blocking: BlockingPool) -> None:
        self.log, self.settings, self.tasks = services.log, services.settings, services.tasks
        self.rebalance_counts = services.rebalance_counts
        self._services = services
        self.groups = Groups()
        self.offsets = CommittedOffsets(self.log)
        self.consumer = ConsumerCoordinator(self.groups, services, topics, blocking)
        self._expiry = OffsetExpiry(
            self.offsets,
            topics,
            clock=services.clock,
            retention_minutes=self.settings.offsets_retention_minutes,
        )
        self._expiry_timer: Timer | None = None

    async def ensure_topic(self) -> None:
        """Creates the topic of group state unless it exists; raises KafkaError."""
        with kafka_errors():
            await self.log.topic.ensure()

    # Loading and stopping

    async def load(self) -> None:
        """Reads groups and offsets from the log, and schedules the expiration of offsets."""
        consumer_states = ConsumerStateReader()
        async for record in self.log.replay():
            with self.log.topic.setting_aside(f"{OFFSETS_TOPIC} at offset {record.offset}"):
                self._load(record, consumer_states)
        self.consumer.load(consumer_states.states())
        for group_id in self.offsets.groups():
            self.get_or_create(group_id)
        for group in self.groups:
            if isinstance(group, ClassicGroup):
                group.start_sessions()
        self._schedule_expiry()

    def _load(self, record: GroupRecord, consumer_states: ConsumerStateReader) -> None:
        match record.key, record.value:
            case OffsetCommitKey(), _:
                self.offsets.load(record)
            case _ if record.producer_id >= 0:
                return
            case GroupMetadataKey() as key, GroupMetadataValue() as value:
                self.groups.put(ClassicGroup.from_record(key.group, value, self._services))
            case _:
                consumer_states.load(record)

    async def stop(self) -> None:
        """Closes all groups; members that wait get an error and look for the coordinator again."""
        cancel_timer(self._expiry_timer)
        self._expiry_timer = None
        for group in self.groups:
            group.close()
        await self.tasks.stop(cancels=False)

    # Expiration

    def _schedule_expiry(self) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self._expiry_timer = self._services.timers.call_later(
            interval_ms, lambda: self.tasks.start(self._expire_and_schedule())
        )

    async def _expire_and_schedule(self) -> None:
        try:
            await self.expire_once()
        except Exception:
            logger.exception("offset expiration failed")
        if self._expiry_timer is not None:
            self._schedule_expiry()

    async def expire_once(self) -> None:
        """Removes expired offsets, and groups without members and offsets.

        A group whose partition rejects that is tried again in the next round.
        """
        for group in list(self.groups):
            # There may be many groups: requests are served in between.
            await asyncio.sleep(0)
            try:
                await self._expiry.expire(group)
                if group.is_empty and not self.offsets.has_any(group.id):
                    await self._remove_group(group)
            except StoreError as error:
                extra = {"group": group.id, "error": str(error)}
                logger.warning("offset expiration failed", extra=extra)

    def topic_deleted(self, topic: ServedTopic) -> None:
        """Offsets are removed with their topic."""
        self.tasks.start(self._expiry.drop_topic(topic))

    # Offsets

    def check_commit(self, group_id: str, client: Committer) -> None:
        """Raises KafkaError unless a client may commit offsets; renews the session of a member."""
        group = self.groups.find(group_id)
        if group is not None:
            group.check_commit(client)
        elif client.epoch >= 0:
            has_code = client.version >= _FIRST_COMMIT_WITH_MISSING and not client.is_transactional
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND if has_code else ErrorCode.ILLEGAL_GENERATION
            )

    @finished
    async def commit(self, group_id: str, offsets: Commits) -> None:
        """Commits for a client that may; creates the group where there is none."""
        self.get_or_create(group_id)
        with kafka_errors(commit_error_code):
            await self.offsets.commit(group_id, offsets)
        # The group may have expired before its first offset was in the log.
        self.get_or_create(group_id)

    async def commit_in_transaction(
        self, group_id: str, producer_id: int, epoch: int, offsets: Commits
    ) -> None:
        """Like `commit`, for offsets that count once the producer's transaction is committed.

        If the topic exists, they are submitted in the turn of the loop in which this is called.
        """
        self.get_or_create(group_id)
        with kafka_errors(commit_error_code):
            await self.offsets.commit_in_transaction(group_id, producer_id, epoch, offsets)
        self.get_or_create(group_id)

    def get_for_offset_delete(self, group_id: str) -> Group:
        """A group whose offsets, in topics it does not read, may be deleted; raises KafkaError."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return group

    @finished
    async def delete_offsets(self, group_id: str, partitions: list[TopicPartition]) -> None:
        committed = self.offsets.known_partitions(group_id)
        with kafka_errors():
            await self.offsets.delete(
                group_id, [partition for partition in partitions if partition in committed]
            )

    # Groups

    def get_or_create(self, id: str) -> Group:
        """The group with this id, of either kind; an empty classic one where there is none."""
        group = self.groups.find(id)
        if group is None:
            group = ClassicGroup(id, self._services)
            self.groups.put(group)
        return group

    def get_classic(self, id: str) -> ClassicGroup:
        """The classic group of a member; raises KafkaError."""
        if not id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.find(id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    async def get_joined(self, id: str, member_id: str, session_timeout_ms: int) -> ClassicGroup:
        """The group that a member joins; created, or replaced where it is an empty group of the
        other kind. Raises KafkaError.
        """
        if not id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        settings = self.settings
        low, high = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not low <= session_timeout_ms <= high:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self.groups.find(id)
        if group is not None and not isinstance(group, ClassicGroup):
            await self._replace(group)
            group = self.groups.find(id)
        if group is None and member_id != NO_MEMBER:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = self.get_or_create(id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return group

    async def _replace(self, group: Group) -> None:
        """Replaces a consumer group without members by a classic one."""
        async with self.groups.lock(group.id):
            if self.groups.find(group.id) is not group:
                return
            if not group.is_empty:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            with kafka_errors():
                await self.log.append(group.id, group.tombstones())
            self.groups.put(ClassicGroup(group.id, self._services))

    async def delete_group(self, group_id: str) -> None:
        """Removes a group without members, and all its offsets, from the log; raises KafkaError."""
        group = self.groups.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        await self.tasks.finish(self._remove_group(group))
        if self.groups.find(group_id) is group:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    async def _remove_group(self, group: Group) -> None:
        """A member that joins meanwhile creates another group, whose records follow these.

        The group stays if a member joined before.
        """
        async with self.groups.lock(group.id):
            if self.groups.find(group.id) is not group or not group.is_empty:
                return
            self.groups.take(group)
            try:
                with kafka_errors():
                    await self.offsets.delete(group.id, self.offsets.known_partitions(group.id))
                    await self.log.append(group.id, group.tombstones())
            except KafkaError:
                if self.groups.find(group.id) is None:
                    self.groups.put(group)
                raise
        group.close()
