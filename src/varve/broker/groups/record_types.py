"""Records of `__consumer_offsets` as Kafka writes them.

Layout     key: type (int16), then the key's message at version 0. Value: version (int16), then the
           value's message at that version; null is a tombstone.
Invariant  records of types or versions that are not known here are left where they are.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.records import Record
from varve.wire import Message, decode, encode
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

_NUMBER: Final = struct.Struct(">h")
_VERSION_THAT_EXPIRES: Final = 1
"""The only version of an offset commit that has room for a time of its own to expire."""


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

_BY_NUMBER: Final = {int(one.record_type): one for one in FORMATS}
# The legacy type shares its messages with its successor, which is the one that is written.
_BY_KEY: Final = {one.key: one for one in FORMATS}


def encode_record(key: Message, value: Message | None, timestamp: int) -> Record:
    """One record as it is stored; its type follows from the class of the key."""
    found = _BY_KEY.get(type(key))
    if found is None or not (value is None or isinstance(value, found.value)):
        raise InvalidRequest(
            f"{type(key).__name__} with {type(value).__name__} is no record of __consumer_offsets"
        )
    key_bytes = bytes(encode(key, 0, bytearray(_NUMBER.pack(found.record_type))))
    value_bytes = None
    if value is not None:
        version = _version_of(value, found)
        value_bytes = bytes(encode(value, version, bytearray(_NUMBER.pack(version))))
    return Record(key_bytes, value_bytes, timestamp=timestamp)


def _version_of(value: Message, found: RecordFormat) -> int:
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        return _VERSION_THAT_EXPIRES
    return found.written_version


def find_format(key: bytes) -> RecordFormat | None:
    """What the records of a key hold; None for a type that is not known here."""
    return _BY_NUMBER.get(_number(key))


def decode_key(found: RecordFormat, key: bytes) -> Message:
    return decode(found.key, 0, key, _NUMBER.size)


def decode_value(found: RecordFormat, value: bytes) -> Message | None:
    """The value; None where its version is not known here."""
    version = _number(value)
    if version not in found.value.VERSIONS:
        return None
    return decode(found.value, version, value, _NUMBER.size)


def _number(data: bytes) -> int:
    if len(data) < _NUMBER.size:
        raise Corrupt(
            f"a record of __consumer_offsets has {len(data)} bytes where a number of "
            f"{_NUMBER.size} begins it"
        )
    return int(_NUMBER.unpack_from(data)[0])
