"""Records of `__consumer_offsets` as Kafka writes them, and the log of groups that holds them.

Layout     key: type (int16), then the key's message at version 0. Value: version (int16), then the
           value's message at that version; null is a tombstone.
Invariant  records of unknown types or versions are left where they are.
Threads    the loop's; decoding is pure.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from varve.broker.state_topic import ProducerStamp, StateRecord, StateTopic
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, MalformedMessage
from varve.records import Record
from varve.wire import Message, decode, encode
from varve.wire.messages.groups import ConsumerProtocolSubscription
from varve.wire.messages.state_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

Records = list[tuple[Message, Message | None]]
"""Keys and values; None for a tombstone."""

CONSUMER_PROTOCOL: Final = "consumer"
_NUMBER: Final = struct.Struct(">h")
_VERSION_WITH_EXPIRY: Final = 1
"""The only version of an offset commit with a field for its own expiry time."""


class RecordType(IntEnum):
    """By Kafka's numbers."""

    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The messages of one type, and the version its values are written at."""

    record_type: RecordType
    key: type[Message]
    value: type[Message]
    written_version: int


FORMATS: Final = (
    RecordFormat(RecordType.LEGACY_OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue, 4),
    RecordFormat(RecordType.OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue, 4),
    RecordFormat(RecordType.GROUP_METADATA, GroupMetadataKey, GroupMetadataValue, 3),
    RecordFormat(
        RecordType.CONSUMER_GROUP_METADATA, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0
    ),
    RecordFormat(
        RecordType.CONSUMER_GROUP_MEMBER_METADATA,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue,
        0,
    ),
    RecordFormat(
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        0,
    ),
    RecordFormat(
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMemberValue,
        0,
    ),
    RecordFormat(
        RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue,
        0,
    ),
)

_BY_NUMBER: Final = {int(format.record_type): format for format in FORMATS}
# The legacy type shares its messages with its successor, which is the one that is written.
_BY_KEY: Final = {format.key: format for format in FORMATS}


def encode_record(key: Message, value: Message | None, timestamp: int) -> Record:
    """A record as it is stored; its type follows from the class of the key."""
    format = _BY_KEY.get(type(key))
    if format is None or not (value is None or isinstance(value, format.value)):
        raise InvalidRequest(
            f"{type(key).__name__} with {type(value).__name__} is not a record of "
            "__consumer_offsets"
        )
    key_bytes = bytes(encode(key, 0, bytearray(_NUMBER.pack(format.record_type))))
    value_bytes = None
    if value is not None:
        version = _version_of(value, format)
        value_bytes = bytes(encode(value, version, bytearray(_NUMBER.pack(version))))
    return Record(key_bytes, value_bytes, timestamp=timestamp)


def _version_of(value: Message, format: RecordFormat) -> int:
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        return _VERSION_WITH_EXPIRY
    return format.written_version


def find_format(key: bytes) -> RecordFormat | None:
    """The format of the records of a key; None for an unknown type."""
    return _BY_NUMBER.get(_number(key))


def decode_key(format: RecordFormat, key: bytes) -> Message:
    return decode(format.key, 0, key, _NUMBER.size)


def decode_value(format: RecordFormat, value: bytes) -> Message | None:
    """The value; None for an unknown version."""
    version = _number(value)
    if version not in format.value.VERSIONS:
        return None
    return decode(format.value, version, value, _NUMBER.size)


def _number(data: bytes) -> int:
    if len(data) < _NUMBER.size:
        raise Corrupt(
            f"a record of __consumer_offsets has {len(data)} bytes; it starts with a number of "
            f"{_NUMBER.size}"
        )
    return int(_NUMBER.unpack_from(data)[0])


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A decoded record; `producer_id` is set in a transaction that has not ended."""

    record_type: RecordType
    key: Message
    value: Message | None
    offset: int
    producer_id: int


def decode_records(records: Iterable[StateRecord]) -> Iterator[GroupRecord]:
    """Leaves out records of unknown types and versions."""
    for record in records:
        format = find_format(record.key)
        if format is None:
            continue
        value = None if record.value is None else decode_value(format, record.value)
        if value is None and record.value is not None:
            continue
        key = decode_key(format, record.key)
        yield GroupRecord(format.record_type, key, value, record.offset, record.producer_id)


class GroupLog:
    """The records of groups and committed offsets; those of a group are in one partition."""

    def __init__(self, topic: StateTopic, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock

    def partition_of(self, group: str) -> TopicPartition:
        """Where the records of a group are, or will be once the topic is created."""
        return self._topic.partition_of(group)

    async def ensure_topic(self) -> None:
        """Creates the topic unless it exists."""
        await self._topic.ensure()

    async def append(
        self, group: str, records: Records, *, producer: ProducerStamp | None = None
    ) -> int:
        """Writes records as one batch; returns the offset of the first.

        With a producer they are part of its transaction. Raises what the log rejected them for.
        """
        return await self._topic.append(group, self._encode(records), producer=producer)

    def submit(
        self, group: str, records: Records, *, producer: ProducerStamp | None = None
    ) -> "asyncio.Future[int]":
        """Like `append`, for a topic that exists; see StateTopic."""
        return self._topic.submit(group, self._encode(records), producer=producer)

    def _encode(self, records: Records) -> Sequence[Record]:
        now_ms = self._clock.now_ms()
        return [encode_record(key, value, now_ms) for key, value in records]

    async def replay(self) -> AsyncIterator[GroupRecord]:
        """Live records, and those of transactions that have not ended."""
        async for replayed in self._topic.replay():
            for record in decode_records(replayed.live):
                yield record
            for record in decode_records(replayed.pending):
                yield record


# Subscriptions of classic groups


def find_subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members with the consumer protocol; None where one is unreadable.

    The coordinator passes the metadata of members on unread, except for the topics: offsets in
    those are in use.
    """
    topics: set[str] = set()
    for data in subscriptions:
        subscribed = _find_topics(data)
        if subscribed is None:
            return None
        topics.update(subscribed)
    return frozenset(topics)


def _find_topics(data: bytes) -> list[str] | None:
    if len(data) < _NUMBER.size:
        return None
    version = int(_NUMBER.unpack_from(data)[0])
    if version < 0:
        return None
    last_known = ConsumerProtocolSubscription.VERSIONS.last
    # Later versions begin like earlier ones, so they are read as the last known one.
    try:
        return decode(
            ConsumerProtocolSubscription, min(version, last_known), data, _NUMBER.size
        ).topics
    except MalformedMessage:
        return None
