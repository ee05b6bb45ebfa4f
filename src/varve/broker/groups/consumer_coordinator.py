"""The door to consumer groups (KIP-848): answers heartbeats, and keeps groups in the log.

A heartbeat leads from the state of its group to the next: the member as it describes itself, the
topics as they are, targets where something changed, and one step of the member towards its target.

Invariant  heartbeats of one group are answered one after the other, each when the log has what it
           changed. A classic group becomes a consumer group only when it has no members: members
           of both kinds do not mix, as in Kafka with `group.consumer.migration.policy=disabled`.
Crash      a group comes back as it was written, its members with all their time before them.
Threads    the loop's alone; regular expressions and targets of large groups are off the loop.
"""

import asyncio
import logging
import random as random_module
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from varve.broker.background import BlockingPool, Timers
from varve.broker.groups.assignors import ASSIGNORS
from varve.broker.groups.consumer_group import ConsumerGroup
from varve.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from varve.broker.groups.consumer_membership import (
    Client,
    Refused,
    admit,
    check_request,
    is_subscription_changed,
    leave,
    owned_partitions,
)
from varve.broker.groups.consumer_reconciliation import reconcile
from varve.broker.groups.consumer_records import ConsumerRecords, Records, changes
from varve.broker.groups.consumer_replies import answered, refused
from varve.broker.groups.consumer_state import ConsumerState
from varve.broker.groups.consumer_subscription import (
    find_matching,
    hash_topics,
    subscriptions_of,
)
from varve.broker.groups.failure import group_code_of
from varve.broker.groups.group import Groups
from varve.broker.groups.offsets_log import OffsetsLog
from varve.broker.settings import GroupSettings
from varve.broker.topics import Topics
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire import ErrorCode
from varve.wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

logger = logging.getLogger(__name__)

T = TypeVar("T")

MayDescribe = Callable[[str], bool]
"""Whether the one who asks may know of a topic."""

_SIZE_IN_LOOP_MAX: Final = 200
"""Members and partitions whose targets are computed in about a millisecond."""


class Begin(Protocol):
    """Has work go on by itself."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]": ...


class ConsumerCoordinator:
    """Answers members of consumer groups, and makes groups of those who come first."""

    def __init__(
        self,
        groups: Groups,
        log: OffsetsLog,
        topics: Topics,
        *,
        timers: Timers,
        settings: GroupSettings,
        random: random_module.Random,
        blocking: BlockingPool,
        begin: Begin,
    ) -> None:
        self._groups = groups
        self._log = log
        self._topics = topics
        self._timers = timers
        self._settings = settings
        self._random = random
        self._blocking = blocking
        self._begin = begin
        self._records = ConsumerRecords(log)
        self.generation_count = 0
        """Epochs of groups that were begun since the start."""

    def start(self) -> None:
        """Puts the groups that were read back in their places."""
        for id, state in self._records.take().items():
            group = self._make(id, state)
            self._groups.put(group)
            group.start()

    def _make(self, id: str, state: ConsumerState | None = None) -> ConsumerGroup:
        return ConsumerGroup(
            id,
            self._timers,
            session_timeout_ms=self._settings.group_consumer_session_timeout_ms,
            give_up=self._give_up,
            state=state,
        )

    # Heartbeats

    async def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        *,
        version: int,
        client: Client,
        may_describe: MayDescribe,
    ) -> ConsumerGroupHeartbeatResponse:
        """Answered when the log has what the heartbeat changed, also if the client goes away."""
        try:
            check_request(request, version=version, assignors=self._settings.consumer_assignors)
        except Refused as refusal:
            return refused(refusal.code, str(refusal))
        work = self._answer(request, client, may_describe)
        return await asyncio.shield(self._begin(work))

    async def _answer(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, may_describe: MayDescribe
    ) -> ConsumerGroupHeartbeatResponse:
        async with self._groups.line(request.group_id):
            try:
                if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                    return await self._leave(request)
                return await self._heartbeat(request, client, may_describe)
            except Refused as refusal:
                return refused(refusal.code, str(refusal))
            except StoreError as error:
                return refused(group_code_of(error), str(error))

    async def _heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, may_describe: MayDescribe
    ) -> ConsumerGroupHeartbeatResponse:
        joins = request.member_epoch == JOIN_EPOCH
        group, replaced = self._get_or_make(request.group_id, may_make=joins)
        # Before version 1 a client has no id of its own to begin with.
        member_id = request.member_id or str(UUID(int=self._random.getrandbits(128), version=4))
        before = group.state
        size_max = self._settings.group_consumer_max_size
        state = admit(before, request, member_id, client, size_max=size_max)
        is_changed = is_subscription_changed(before, state, member_id)
        state = await self._follow_topics(state, is_changed, may_describe)
        state = await self._assign(state)
        member = reconcile(
            state.members[member_id],
            target=state.target_of(member_id),
            target_epoch=state.assignment_epoch,
            owned=owned_partitions(request),
            held_by_others=lambda some: state.held_by_others(member_id, some),
        )
        if member != state.members[member_id]:
            state = state.put(member)
        await self._store(group, state, replaced)
        group.heard_of(member_id)
        interval_ms = self._settings.group_consumer_heartbeat_interval_ms
        return answered(request, before.members.get(member_id), member, interval_ms)

    def _get_or_make(self, id: str, *, may_make: bool) -> tuple[ConsumerGroup, Records]:
        """A group, and records that take what was there in its place out of the log."""
        found = self._groups.find(id)
        if isinstance(found, ConsumerGroup):
            return found, []
        if may_make and (found is None or found.is_empty):
            return self._make(id), [] if found is None else found.tombstones()
        if found is None:
            why = f"Group {id} not found."
        elif may_make:
            why = (
                f"Cannot upgrade classic group {id} to consumer group because online upgrade is "
                "disabled."
            )
        else:
            why = f"Group {id} is not a consumer group."
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, why)

    async def _follow_topics(
        self, state: ConsumerState, is_changed: bool, may_describe: MayDescribe
    ) -> ConsumerState:
        """Another epoch begins where members, subscriptions or their topics changed."""
        generation = self._topics.generation
        if not is_changed and state.seen_topics == generation:
            return state
        known = state.resolved if state.seen_topics == generation else {}
        missing = [one for one in state.regexes() if one not in known]
        matching = await self._resolve(missing, may_describe) if missing else {}
        resolved = {
            one: matching[one] if one in matching else known[one] for one in state.regexes()
        }
        state = replace(state, resolved=resolved, seen_topics=generation)
        topics_hash = hash_topics(state.subscribed_topics(), self._topics)
        if is_changed or topics_hash != state.metadata_hash:
            state = replace(state, epoch=state.epoch + 1, metadata_hash=topics_hash)
        return state

    async def _resolve(
        self, regexes: list[str], may_describe: MayDescribe
    ) -> dict[str, frozenset[str]]:
        # Internal topics are among them, as in Kafka: only expressions of clients leave those out.
        names = [one.name for one in self._topics if may_describe(one.name)]
        try:
            return await self._blocking.run(find_matching, regexes, names)
        except InvalidRequest as error:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error

    async def _assign(self, state: ConsumerState) -> ConsumerState:
        if state.assignment_epoch == state.epoch:
            return state
        assignor = ASSIGNORS[state.preferred_assignor(self._settings.consumer_assignors)]
        subscriptions, counts = subscriptions_of(state, self._topics)
        if len(subscriptions) + sum(counts.values()) > _SIZE_IN_LOOP_MAX:
            targets = await self._blocking.run(assignor, subscriptions, counts, state.targets)
        else:
            targets = assignor(subscriptions, counts, state.targets)
        return replace(state, targets=targets, assignment_epoch=state.epoch)

    async def _leave(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        group, _ = self._get_or_make(request.group_id, may_make=False)
        state = leave(group.state, request)
        if len(state.members) < len(group.state.members):
            state = self._begin_epoch(state)
        await self._store(group, state, [])
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    def _begin_epoch(self, state: ConsumerState) -> ConsumerState:
        """A member is gone; targets are computed when the next one is heard of."""
        topics_hash = hash_topics(state.subscribed_topics(), self._topics)
        return replace(state, epoch=state.epoch + 1, metadata_hash=topics_hash)

    # Members that are missed

    def _give_up(self, group: ConsumerGroup, member_id: str) -> None:
        self._begin(self._remove(group, member_id))

    async def _remove(self, group: ConsumerGroup, member_id: str) -> None:
        async with self._groups.line(group.id):
            if self._groups.find(group.id) is not group or not group.is_missed(member_id):
                return
            try:
                await self._store(group, self._begin_epoch(group.state.remove(member_id)), [])
            except StoreError as error:
                extra = {"group": group.id, "member": member_id, "error": str(error)}
                logger.warning("a member was not removed", extra=extra)
                group.wait_again(member_id)
                return
        logger.info("a member was missed", extra={"group": group.id, "member": member_id})

    # The log

    async def _store(self, group: ConsumerGroup, state: ConsumerState, replaced: Records) -> None:
        if state is group.state:
            return
        records = [*replaced, *changes(group.id, group.state, state)]
        if records:
            await self._log.append(group.id, records)
        self.generation_count += state.epoch > group.state.epoch
        group.become(state)
        self._groups.put(group)
