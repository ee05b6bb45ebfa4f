"""Records of `__consumer_offsets` as Kafka writes them, and the log of groups that holds them.

Layout     see `state_topic` and `wire.messages.state_records`.
Invariant  records of unknown types or versions are left where they are.
Threads    the loop's; decoding is pure.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from varve.broker.state_topic import (
    ProducerStamp,
    StateRecord,
    StateTopic,
    decode_numbered,
    encode_numbered,
    read_number,
)
from varve.broker.topics import OFFSETS_TOPIC
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, MalformedMessage
from varve.records import Record
from varve.wire import Message
from varve.wire.messages.groups import ConsumerProtocolSubscription
from varve.wire.messages.state_records import GROUP_RECORDS, GroupMetadataValue, OffsetCommitValue

Records = list[tuple[Message, Message | None]]
"""Keys and values; None for a tombstone."""

CONSUMER_PROTOCOL: Final = "consumer"
_VERSION_WITH_EXPIRY: Final = 1
"""The only version of an offset commit with a field for its own expiry time."""
_WRITTEN_VERSIONS: Final[dict[type, int]] = {OffsetCommitValue: 4, GroupMetadataValue: 3}
"""Of values that are not written at version 0."""
# The last type of a key is the one that is written.
_TYPES: Final = {key: (number, value) for number, (key, value) in GROUP_RECORDS.items()}


def encode_record(key: Message, value: Message | None, timestamp: int) -> Record:
    """A record as it is stored; its type follows from the class of the key."""
    number, value_kind = _TYPES.get(type(key), (-1, Message))
    if number < 0 or not (value is None or isinstance(value, value_kind)):
        raise InvalidRequest(
            f"{type(key).__name__} with {type(value).__name__} is not a record of {OFFSETS_TOPIC}"
        )
    data = None
    if value is not None:
        version = _WRITTEN_VERSIONS.get(type(value), 0)
        if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
            version = _VERSION_WITH_EXPIRY
        data = encode_numbered(version, value, version)
    return Record(encode_numbered(number, key, 0), data, timestamp=timestamp)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A decoded record; `producer_id` is set in a transaction that has not ended."""

    key: Message
    value: Message | None
    offset: int
    producer_id: int


def decode_records(records: Iterable[StateRecord]) -> Iterator[GroupRecord]:
    """Leaves out records of unknown types and versions."""
    for record in records:
        kinds = GROUP_RECORDS.get(read_number(record.key, OFFSETS_TOPIC))
        if kinds is None:
            continue
        key_kind, value_kind = kinds
        value = None
        if record.value is not None:
            version = read_number(record.value, OFFSETS_TOPIC)
            if version not in value_kind.VERSIONS:
                continue
            value = decode_numbered(value_kind, record.value, version)
        key = decode_numbered(key_kind, record.key, 0)
        yield GroupRecord(key, value, record.offset, record.producer_id)


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
    try:
        version = read_number(data, "a subscription")
        if version < 0:
            return None
        # Later versions begin like earlier ones, so they are read as the last known one.
        known = min(version, ConsumerProtocolSubscription.VERSIONS.last)
        return decode_numbered(ConsumerProtocolSubscription, data, known).topics
    except (Corrupt, MalformedMessage):
        return None
