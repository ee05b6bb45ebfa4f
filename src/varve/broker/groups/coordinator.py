"""The coordinator of all groups: there is one broker, and it coordinates them all.

Holds what the handlers of groups and offsets work on: `groups`, `offsets`, `log` where both are
kept, and `classic` and `consumer`, the doors to groups of either kind.

Crash      `load` reads everything back.
Threads    the loop's alone. What changes memory after it has waited for the log runs in tasks of
           the coordinator's own: a client that goes away does not cut it.
"""

import asyncio
import logging
import random as random_module
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from varve.broker.background import BlockingPool, Timer, Timers
from varve.broker.groups.classic_coordinator import ClassicCoordinator
from varve.broker.groups.consumer_coordinator import ConsumerCoordinator
from varve.broker.groups.failure import commit_code_of, group_code_of
from varve.broker.groups.group import Group, Groups
from varve.broker.groups.offset_expiry import OffsetExpiry
from varve.broker.groups.offsets import Commits, Offsets
from varve.broker.groups.offsets_log import OffsetsLog
from varve.broker.groups.subscription import CONSUMER_PROTOCOL
from varve.broker.settings import GroupSettings
from varve.broker.topics import ServedTopic, Topics
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WITH_MISSING: Final = 9
"""Of OffsetCommit: before it, a group that does not exist is answered as one of the past."""


class GroupCoordinator:
    """Groups and their offsets."""

    def __init__(
        self,
        log: OffsetsLog,
        topics: Topics,
        *,
        clock: Clock,
        timers: Timers,
        settings: GroupSettings,
        random: random_module.Random,
        loop: asyncio.AbstractEventLoop,
        blocking: BlockingPool,
    ) -> None:
        self.log = log
        self.settings = settings
        self.groups = Groups()
        self.offsets = Offsets(log)
        self.classic = ClassicCoordinator(
            self.groups,
            log,
            clock=clock,
            timers=timers,
            settings=settings,
            random=random,
            begin=self._begin,
        )
        self.consumer = ConsumerCoordinator(
            self.groups,
            log,
            topics,
            timers=timers,
            settings=settings,
            random=random,
            blocking=blocking,
            begin=self._begin,
        )
        self.expiry = OffsetExpiry(
            self.groups,
            self.offsets,
            topics,
            clock=clock,
            settings=settings,
            delete_group=self._take_out,
        )
        self._timers = timers
        self._loop = loop
        self._expiry_timer: Timer | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Reads groups and offsets back, and begins to look for what expires."""
        await self.log.load()
        self.consumer.start()
        for group in self.offsets.groups():
            self.classic.get_or_make(group)
        self.classic.start()
        self._expire_later()

    async def stop(self) -> None:
        """Lets go of all groups; who waits is told to look for its coordinator again."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        for group in self.groups:
            group.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ensure_topic(self) -> None:
        """Creates the topic of group state unless it exists; raises KafkaError."""
        try:
            await self.log.ensure_topic()
        except StoreError as error:
            raise KafkaError(group_code_of(error), str(error)) from error

    def _begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry_out(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._begin(work))

    def _expire_later(self) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self._expiry_timer = self._timers.call_later(interval_ms, self._expire_now)

    def _expire_now(self) -> None:
        self._begin(self._expire_round())

    async def _expire_round(self) -> None:
        try:
            await self.expiry.run_once()
        except Exception:
            logger.exception("a round of expiring offsets failed")
        if self._expiry_timer is not None:
            self._expire_later()

    # Offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        is_transactional: bool = False,
    ) -> ErrorCode:
        """Whether somebody may commit offsets for a group; notes that he is alive if so."""
        group = self.groups.find(group_id)
        if group is None:
            if epoch < 0:
                return ErrorCode.NONE
            is_told = version >= _FIRST_WITH_MISSING and not is_transactional
            return ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.ILLEGAL_GENERATION
        error = group.check_commit(
            member_id, instance_id, epoch, version=version, is_transactional=is_transactional
        )
        if error is ErrorCode.NONE:
            self.classic.note_alive(group, member_id)
        return error

    async def commit(self, group_id: str, offsets: Commits) -> ErrorCode:
        """Commits for one who may; a group is made where there is none."""
        self.classic.get_or_make(group_id)
        return await self._carry_out(self._commit(group_id, offsets))

    async def _commit(self, group_id: str, offsets: Commits) -> ErrorCode:
        try:
            await self.offsets.commit(group_id, offsets)
        except StoreError as error:
            return commit_code_of(error)
        return ErrorCode.NONE

    async def commit_in_transaction(
        self, group_id: str, producer_id: int, epoch: int, offsets: Commits
    ) -> ErrorCode:
        """Like `commit`, once the producer's transaction is committed.

        Written in the turn of the loop it is called in, if the topic is there.
        """
        self.classic.get_or_make(group_id)
        try:
            await self.offsets.commit_in_transaction(group_id, producer_id, epoch, offsets)
        except StoreError as error:
            return commit_code_of(error)
        return ErrorCode.NONE

    def get_for_offset_delete(self, group_id: str) -> Group:
        """A group whose offsets, of topics it does not read, may be deleted; raises KafkaError."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return group

    async def delete_offsets(self, group_id: str, partitions: list[TopicPartition]) -> ErrorCode:
        return await self._carry_out(self._delete_offsets(group_id, partitions))

    async def _delete_offsets(self, group_id: str, partitions: list[TopicPartition]) -> ErrorCode:
        known = self.offsets.known_partitions(group_id)
        try:
            await self.offsets.delete(group_id, [one for one in partitions if one in known])
        except StoreError as error:
            return group_code_of(error)
        return ErrorCode.NONE

    def topic_deleted(self, topic: ServedTopic) -> None:
        """Offsets go with their topic."""
        self._begin(self.expiry.drop_topic(topic))

    # Groups

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Takes a group without members and all its offsets out of the log."""
        group = self.groups.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return ErrorCode.NON_EMPTY_GROUP
        return await self._carry_out(self._delete_group(group))

    async def _delete_group(self, group: Group) -> ErrorCode:
        try:
            await self._take_out(group)
        except StoreError as error:
            return group_code_of(error)
        is_kept = self.groups.find(group.id) is group
        return ErrorCode.NON_EMPTY_GROUP if is_kept else ErrorCode.NONE

    async def _take_out(self, group: Group) -> None:
        """Who comes meanwhile begins another group of the name, which the log has behind this.

        The group stays if somebody came before.
        """
        async with self.groups.line(group.id):
            if self.groups.find(group.id) is not group or not group.is_empty:
                return
            self.groups.take(group)
            try:
                await self.offsets.delete(group.id, self.offsets.known_partitions(group.id))
                await self.log.append(group.id, group.tombstones())
            except StoreError:
                if self.groups.find(group.id) is None:
                    self.groups.put(group)
                raise
        group.close()
