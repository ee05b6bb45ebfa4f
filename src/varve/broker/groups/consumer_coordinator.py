"""Consumer groups (KIP-848): heartbeats of members, and their removal when a session is over.

A heartbeat moves its group to the next state: the member as it describes itself, the
topics as they are, targets where something changed, and one step of the member towards its target.

Invariant  heartbeats of one group are handled one after the other; each is answered when the log
           has its changes. A classic group becomes a consumer group only when it has no members:
           members of both kinds do not mix, as in Kafka with
           `group.consumer.migration.policy=disabled`.
           The `state` of a group is what the log has; it is replaced once the log has the next
           one. Every member has a session, and one that must revoke partitions a timeout to do so.
Crash      a group comes back as it was written, with new sessions for its members.
Threads    the loop's; regular expressions and targets of large groups are computed off the loop.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from varve.broker.background import BlockingPool, Timer, cancel_timer, finished
from varve.broker.groups.assignors import ASSIGNORS, Subscriptions
from varve.broker.groups.consumer_state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Client,
    ConsumerMember,
    ConsumerState,
    apply_heartbeat,
    apply_leave,
    check_request,
    heartbeat_response,
    is_subscription_changed,
    owned_partitions,
    reconcile,
)
from varve.broker.groups.group import (
    Committer,
    Group,
    GroupKind,
    Groups,
    GroupServices,
    kafka_errors,
)
from varve.broker.groups.records import CONSUMER_PROTOCOL, Records, changes, tombstones
from varve.broker.request import find_matching
from varve.broker.topics import ServedTopic, Topics
from varve.foundation.errors import StoreError
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

logger = logging.getLogger(__name__)

MayDescribe = Callable[[str], bool]
"""Whether the client may describe a topic."""

_SIZE_IN_LOOP_MAX: Final = 200
"""Members and partitions whose targets are computed in about a millisecond."""


_FIRST_COMMIT_VERSION: Final = 9
"""Before this version OffsetCommit had no field for a member epoch."""


class ConsumerGroup(Group):
    """A group whose assignments are made by the coordinator."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER_PROTOCOL

    def __init__(
        self,
        id: str,
        coordinator: "ConsumerCoordinator",
        state: ConsumerState | None = None,
    ) -> None:
        super().__init__(id)
        self.state = state or ConsumerState()
        self._coordinator = coordinator
        self._services = coordinator.services
        self._sessions: dict[str, Timer] = {}
        self._revocations: dict[str, Timer] = {}
        self._is_closed = False

    def start(self) -> None:
        """Starts the timers of members that were read from the log."""
        for member in self.state.members.values():
            self.renew_session(member.id)
            self._start_revocation(member)

    def become(self, state: ConsumerState) -> None:
        """To be called when the log has the state."""
        before, self.state = self.state, state
        for id in before.members.keys() - state.members.keys():
            cancel_timer(self._sessions.pop(id, None))
            cancel_timer(self._revocations.pop(id, None))
        for id, member in state.members.items():
            previous = before.members.get(id)
            if previous is not member and (previous is None or not member.is_revoking_as(previous)):
                self._start_revocation(member)

    def is_expired(self, member_id: str) -> bool:
        """Whether a member is still to be removed: it may be back."""
        member = self.state.members.get(member_id)
        if member is None:
            return False
        is_late = member.is_revoking and member_id not in self._revocations
        return is_late or member_id not in self._sessions

    def postpone_expiry(self, member_id: str) -> None:
        """A member could not be removed; it expires once more later."""
        self.renew_session(member_id)
        self._start_revocation(self.state.members[member_id])

    def renew_session(self, member_id: str) -> None:
        timeout_ms = self._services.consumer_configs(self.id).consumer_session_timeout_ms
        self._start_timer(self._sessions, member_id, timeout_ms)

    def _start_revocation(self, member: ConsumerMember) -> None:
        timeout_ms = member.rebalance_timeout_ms if member.is_revoking else None
        self._start_timer(self._revocations, member.id, timeout_ms)

    def _start_timer(
        self, timers: dict[str, Timer], member_id: str, timeout_ms: int | None
    ) -> None:
        """Replaces a member's timer, by none without a timeout."""

        def expire() -> None:
            del timers[member_id]
            self._coordinator.expire_member(self, member_id)

        cancel_timer(timers.pop(member_id, None))
        if timeout_ms is not None and not self._is_closed:
            timers[member_id] = self._services.timers.call_later(timeout_ms, expire)

    # As every group

    @property
    def state_name(self) -> str:
        return self.state.name.value

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def member_count(self) -> int:
        return len(self.state.members)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.state.topics_of(member) for member in self.state.members.values())

    def check_commit(self, client: Committer) -> None:
        """A client that is not a member may commit while there are none, or in a transaction."""
        if client.epoch < 0 and self.is_empty:
            return
        if client.is_transactional and client.epoch == -1 and not client.has_id:
            return
        member = self._get_member(client.member_id)
        if not client.is_transactional and client.version < _FIRST_COMMIT_VERSION:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if client.epoch != member.epoch:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION
                if client.is_transactional
                else ErrorCode.STALE_MEMBER_EPOCH
            )

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        if epoch != self._get_member(member_id or "").epoch:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    def _get_member(self, member_id: str) -> ConsumerMember:
        member = self.state.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def expiry_base_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def tombstones(self) -> Records:
        return tombstones(self.id, self.state)

    def close(self) -> None:
        self._is_closed = True
        for timers in (self._sessions, self._revocations):
            for timer in timers.values():
                timer.cancel()
            timers.clear()


class ConsumerCoordinator:
    """Serves members of consumer groups."""

    def __init__(
        self, groups: Groups, services: GroupServices, topics: Topics, blocking: BlockingPool
    ) -> None:
        self._groups = groups
        self.services = services
        self.tasks = services.tasks
        self._settings = services.settings
        self._topics = topics
        self._blocking = blocking

    def load(self, states: Mapping[str, ConsumerState]) -> None:
        """Adds the groups that were read from the log."""
        for id, state in states.items():
            group = ConsumerGroup(id, self, state)
            self._groups.put(group)
            group.start()

    # Heartbeats

    @finished
    async def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        *,
        version: int,
        client: Client,
        may_describe: MayDescribe,
    ) -> ConsumerGroupHeartbeatResponse:
        """Answered when the log has the changes, also if the client disconnects.

        Raises KafkaError.
        """
        check_request(request, version=version, assignors=self._settings.consumer_assignors)
        async with self._groups.lock(request.group_id):
            with kafka_errors():
                if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                    return await self._leave(request)
                return await self._heartbeat(request, client, may_describe)

    async def _heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, may_describe: MayDescribe
    ) -> ConsumerGroupHeartbeatResponse:
        joins = request.member_epoch == JOIN_EPOCH
        group, replaced = self._get_or_create(request.group_id, may_create=joins)
        # Before version 1 a client has no id of its own to begin with.
        member_id = request.member_id or str(
            UUID(int=self.services.random.getrandbits(128), version=4)
        )
        before = group.state
        size_max = self._settings.group_consumer_max_size
        state = apply_heartbeat(before, request, member_id, client, size_max=size_max)
        is_changed = is_subscription_changed(before, state, member_id)
        state = await self._follow_topics(state, is_changed, may_describe)
        state = await self._assign(state)
        member = reconcile(
            state.members[member_id],
            target=state.target_of(member_id),
            target_epoch=state.assignment_epoch,
            owned=owned_partitions(request),
            held_by_others=lambda partitions: state.held_by_others(member_id, partitions),
        )
        if member != state.members[member_id]:
            state = state.put(member)
        await self._store(group, state, replaced)
        group.renew_session(member_id)
        interval_ms = self.services.consumer_configs(group.id).consumer_heartbeat_interval_ms
        return heartbeat_response(request, before.members.get(member_id), member, interval_ms)

    def _get_or_create(self, id: str, *, may_create: bool) -> tuple[ConsumerGroup, Records]:
        """A group, and records that remove the group which it replaces from the log."""
        group = self._groups.find(id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if may_create and (group is None or group.is_empty):
            return ConsumerGroup(id, self), [] if group is None else group.tombstones()
        if group is None:
            reason = f"Group {id} not found."
        elif may_create:
            reason = (
                f"Cannot upgrade classic group {id} to consumer group because online upgrade is "
                "disabled."
            )
        else:
            reason = f"Group {id} is not a consumer group."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)

    async def _follow_topics(
        self, state: ConsumerState, is_changed: bool, may_describe: MayDescribe
    ) -> ConsumerState:
        """Starts another epoch where members, subscriptions or their topics changed."""
        generation = self._topics.generation
        if not is_changed and state.seen_topics == generation:
            return state
        cached = state.resolved if state.seen_topics == generation else {}
        resolved = {regex: cached[regex] for regex in state.regexes() if regex in cached}
        missing = [regex for regex in state.regexes() if regex not in cached]
        if missing:
            # Internal topics are included, as in Kafka: clients exclude them by their expressions.
            names = [topic.name for topic in self._topics if may_describe(topic.name)]
            for regex in missing:
                resolved[regex] = await self._blocking.run(find_matching, regex, names)
        state = replace(state, resolved=resolved, seen_topics=generation)
        changed = self._start_epoch(state)
        return changed if is_changed or changed.metadata_hash != state.metadata_hash else state

    async def _assign(self, state: ConsumerState) -> ConsumerState:
        if state.assignment_epoch == state.epoch:
            return state
        assignor = ASSIGNORS[state.preferred_assignor(self._settings.consumer_assignors)]
        subscriptions, counts = _subscriptions_of(state, self._topics)
        if len(subscriptions) + sum(counts.values()) > _SIZE_IN_LOOP_MAX:
            targets = await self._blocking.run(assignor, subscriptions, counts, state.targets)
        else:
            targets = assignor(subscriptions, counts, state.targets)
        return replace(state, targets=targets, assignment_epoch=state.epoch)

    async def _leave(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        group, _ = self._get_or_create(request.group_id, may_create=False)
        state = apply_leave(group.state, request)
        if len(state.members) < len(group.state.members):
            state = self._start_epoch(state)
        await self._store(group, state, [])
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    def _start_epoch(self, state: ConsumerState) -> ConsumerState:
        """Members, subscriptions or topics changed; targets are computed with a heartbeat."""
        topics_hash = _hash_topics(state.subscribed_topics(), self._topics)
        return replace(state, epoch=state.epoch + 1, metadata_hash=topics_hash)

    # Expiration of members

    def expire_member(self, group: ConsumerGroup, member_id: str) -> None:
        """The session of a member, or its time to revoke partitions, is over."""
        self.services.tasks.start(self._remove(group, member_id))

    async def _remove(self, group: ConsumerGroup, member_id: str) -> None:
        async with self._groups.lock(group.id):
            if self._groups.find(group.id) is not group or not group.is_expired(member_id):
                return
            try:
                await self._store(group, self._start_epoch(group.state.remove(member_id)), [])
            except StoreError as error:
                extra = {"group": group.id, "member": member_id, "error": str(error)}
                logger.warning("expired member was not removed", extra=extra)
                group.postpone_expiry(member_id)
                return
        logger.info("member expired", extra={"group": group.id, "member": member_id})

    # The log

    async def _store(self, group: ConsumerGroup, state: ConsumerState, replaced: Records) -> None:
        if state is group.state:
            return
        records = [*replaced, *changes(group.id, group.state, state)]
        if records:
            await self.services.log.append(group.id, records)
        self.services.rebalance_counts[GroupKind.CONSUMER] += state.epoch > group.state.epoch
        group.become(state)
        self._groups.put(group)


def _hash_topics(names: Iterable[str], topics: Topics) -> int:
    """Differs when a topic was created, deleted or extended; 0 where none of them exists."""
    digest = hashlib.blake2b(digest_size=8)
    count = 0
    for topic in _find_topics(sorted(names), topics):
        count += 1
        digest.update(f"{topic.name}:{topic.id}:{len(topic.logs)};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if count else 0


def _find_topics(names: Iterable[str], topics: Topics) -> list[ServedTopic]:
    """Only topics with an id can be assigned."""
    served = (topics.find(name) for name in names)
    return [topic for topic in served if topic is not None and topic.id != NO_ID]


def _subscriptions_of(
    state: ConsumerState, topics: Topics
) -> tuple[Subscriptions, Mapping[UUID, int]]:
    """The input of assignors: topics by member, and partition counts by topic."""
    served = {topic.name: topic for topic in _find_topics(state.subscribed_topics(), topics)}
    by_member = {
        id: frozenset(served[name].id for name in state.topics_of(member) if name in served)
        for id, member in state.members.items()
    }
    return by_member, {topic.id: len(topic.logs) for topic in served.values()}
