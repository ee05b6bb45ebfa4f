"""Members of groups and their offsets, asked for through a broker without sockets."""

import asyncio
import struct
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.support.broker_kit import BrokerKit
from varve.broker.groups.classic_group import ClassicGroup
from varve.wire import ErrorCode, encode
from varve.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    TopicPartitions,
)


def subscription(*topics: str) -> bytes:
    """What a consumer says that it reads."""
    body = encode(ConsumerProtocolSubscription(topics=list(topics)), 0)
    return struct.pack(">h", 0) + bytes(body)


@dataclass
class Member:
    """A consumer of a group, as far as it has come."""

    kit: BrokerKit
    group: str = "group"
    instance_id: str | None = None
    id: str = ""
    generation: int = -1
    protocol: str | None = None
    """The one its group has chosen."""
    topics: tuple[str, ...] = ("events",)
    protocols: tuple[str, ...] = ("range",)
    session_ms: int = 10_000
    rebalance_ms: int = 60_000

    def begin_join(self, version: int = 9) -> "asyncio.Future[Any]":
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(one, subscription(*self.topics)) for one in self.protocols
            ],
        )
        return self.kit.begin(request, version=version, client_id="client")

    def take_id(self) -> None:
        """Asks to join, and is told to come again with an id."""
        self.id = self.begin_join().result().member_id

    def enter(self) -> "asyncio.Future[Any]":
        """Joins with a new id; begins to wait for its generation."""
        self.take_id()
        return self.begin_join()

    def join(self, wait_ms: int = 0, version: int = 9) -> Any:
        if not self.id and self.instance_id is None:
            self.take_id()
        waiting = self.begin_join(version)
        self.kit.advance(wait_ms)
        return self.take(waiting)

    def take(self, waiting: "asyncio.Future[Any]") -> Any:
        response = waiting.result()
        self.id, self.generation = response.member_id, response.generation_id
        self.protocol = response.protocol_name
        return response

    def begin_sync(self, assignments: dict[str, bytes] | None = None) -> "asyncio.Future[Any]":
        given = (assignments or {}).items()
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=self.protocol or "range",
            assignments=[SyncGroupRequestAssignment(id, data) for id, data in given],
        )
        return self.kit.begin(request)

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        return self.begin_sync(assignments).result()

    def settle(self) -> "Member":
        """Becomes the only member of its group."""
        assert self.join(wait_ms=3_000).error_code == 0
        assert self.sync({self.id: b"all"}).assignment == b"all"
        return self

    def heartbeat(self) -> int:
        request = HeartbeatRequest(self.group, self.generation, self.id, self.instance_id)
        return int(self.kit.ask(request).error_code)

    def leave(self) -> int:
        leaving = [MemberIdentity(self.id, self.instance_id)]
        response = self.kit.ask(LeaveGroupRequest(self.group, members=leaving))
        return int(response.members[0].error_code)


@dataclass
class ConsumerMember:
    """A member of a group of KIP-848; does as it is told."""

    kit: BrokerKit
    id: str
    group: str = "g"
    topics: list[str] | None = field(default_factory=lambda: ["events"])
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: set[tuple[UUID, int]] = field(default_factory=set)

    def beat(self, *, tells_owned: bool = True, **changes: Any) -> Any:
        """One heartbeat; gives up at once what it is not to have."""
        owned = self.tell_owned() if tells_owned else None
        response = self.ask(topic_partitions=owned, **changes)
        if response.error_code == ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = {
                    (one.topic_id, number)
                    for one in response.assignment.topic_partitions
                    for number in one.partitions
                }
        return response

    def ask(self, *, version: int = 1, **changes: Any) -> Any:
        return self.kit.ask(self.request(**changes), version=version)

    def request(self, **changes: Any) -> ConsumerGroupHeartbeatRequest:
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": self.topics,
            "subscribed_topic_regex": self.regex,
            "server_assignor": self.assignor,
        }
        return ConsumerGroupHeartbeatRequest(**{**given, **changes})

    def tell_owned(self) -> list[TopicPartitions]:
        return [TopicPartitions(topic, [number]) for topic, number in sorted(self.owned)]

    def join(self) -> Any:
        self.epoch, self.owned = 0, set()
        return self.beat()


def settle(*members: ConsumerMember) -> None:
    """So many heartbeats that each has what it shall have."""
    for _ in range(4):
        for member in members:
            response = member.beat()
            assert response.error_code == ErrorCode.NONE, response.error_message


def classic_group(kit: BrokerKit, id: str = "group") -> ClassicGroup:
    group = kit.broker.groups.groups.find(id)
    assert isinstance(group, ClassicGroup)
    return group


def commit_request(
    group: str, topic: str, partition: int, offset: int, **fields: Any
) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition, offset, committed_metadata="note")
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[part])]
    return OffsetCommitRequest(group_id=group, topics=topics, **fields)


def commit(
    kit: BrokerKit, group: str, topic: str, partition: int, offset: int, **fields: Any
) -> int:
    """Commits one offset; the error code of its partition."""
    request = commit_request(group, topic, partition, offset, **fields)
    response = kit.ask(request, version=9)
    return int(response.topics[0].partitions[0].error_code)


def fetch(kit: BrokerKit, group: str, topic: str, partition: int, **fields: Any) -> Any:
    """One committed offset as the broker tells it."""
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
    groups = [OffsetFetchRequestGroup(group, topics=[asked])]
    response = kit.ask(OffsetFetchRequest(groups=groups, **fields), version=9)
    return response.groups[0].topics[0].partitions[0]


def offset_of(kit: BrokerKit, group: str, topic: str, partition: int) -> int:
    return int(fetch(kit, group, topic, partition).committed_offset)


def leap(kit: BrokerKit, milliseconds: int) -> None:
    """Moves the clock in few steps, where nothing happens in between that matters."""
    for _ in range(4):
        kit.clock.advance(milliseconds // 4)
        kit.timers.run_due()
        kit.settle()
