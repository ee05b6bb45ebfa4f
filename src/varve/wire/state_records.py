"""Keys and values of the records of internal topics, as Kafka's coordinators write them.

Layout     a key is its type (int16) and a message at version 0, a value its version (int16) and a
           message at that version.
Invariant  `decode_state_record` returns only what a coordinator can continue from: numbers that
           have no successor, or members that contradict each other, are Corrupt.
"""

from collections import Counter
from collections.abc import Iterable
from struct import Struct
from typing import Any, Final, TypeVar

from varve.foundation.errors import Corrupt, MalformedMessage, UnsupportedFormat
from varve.wire.codec import decode, encode
from varve.wire.messages.state_records import (
    GROUP_RECORDS,
    TRANSACTIONS_TOPIC,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataValue,
    TransactionLogKey,
    TransactionLogValue,
)
from varve.wire.schema import Message

M = TypeVar("M", bound=Message)

TRANSACTION_RECORD: Final = 0
TRANSACTION_STATUS_MAX: Final = 5
"""The others are in memory alone: a transactional id that is gone has a tombstone."""
_NUMBER: Final = Struct(">h")
_INT32_MAX: Final = (1 << 31) - 1


def encode_numbered(number: int, message: Message, version: int) -> bytes:
    """A key behind its type, or a value behind its version."""
    return bytes(encode(message, version, bytearray(_NUMBER.pack(number))))


def read_number(data: bytes, where: str) -> int:
    """The type of a key, or the version of a value; raises Corrupt."""
    if len(data) < _NUMBER.size:
        raise Corrupt(
            f"{where}: a record has {len(data)} bytes; it starts with a number of {_NUMBER.size}"
        )
    return int(_NUMBER.unpack_from(data)[0])


def decode_numbered(kind: type[M], data: bytes, version: int) -> M:
    """The message behind the number; raises Corrupt."""
    return decode(kind, version, data, _NUMBER.size)


def decode_state_record(
    topic: str, key: bytes, value: bytes | None, where: str
) -> tuple[Message, Message | None] | None:
    """Key and value of a record, which is null for a tombstone; `where` names it in errors.

    None for a key of an unknown type, and for a group record of a later version, which a newer
    broker can still use. Raises Corrupt, and UnsupportedFormat for a later version of a
    transaction: its state is unknown then.
    """
    try:
        if topic == TRANSACTIONS_TOPIC:
            return _decode_transaction(key, value, where)
        return _decode_group_record(key, value, where)
    except MalformedMessage as error:
        raise MalformedMessage(f"{where}: {error}") from error


def _decode_group_record(
    key: bytes, value: bytes | None, where: str
) -> tuple[Message, Message | None] | None:
    kinds = GROUP_RECORDS.get(read_number(key, where))
    if kinds is None:
        return None
    key_kind, value_kind = kinds
    decoded = None
    if value is not None:
        version = read_number(value, where)
        if version not in value_kind.VERSIONS:
            return None
        decoded = decode_numbered(value_kind, value, version)
        _check_group_value(decoded, where)
    return decode_numbered(key_kind, key, 0), decoded


def _check_group_value(value: Any, where: str) -> None:
    match value:
        case GroupMetadataValue():
            _check_number(min(value.generation, 0), "generation", where)
            members = value.members
            _check_unique((member.member_id for member in members), "member", where)
            instances = (member.group_instance_id for member in members)
            _check_unique((id for id in instances if id is not None), "instance", where)
            if members and value.leader not in {member.member_id for member in members}:
                raise Corrupt(f"{where}: the leader {value.leader!r:.80} is no member of the group")
        case ConsumerGroupMetadataValue():
            _check_number(value.epoch, "group epoch", where)
        case ConsumerGroupTargetAssignmentMetadataValue():
            _check_number(value.assignment_epoch, "assignment epoch", where)
        case ConsumerGroupCurrentMemberAssignmentValue():
            # Members that leave for a while have a negative epoch.
            _check_number(max(value.member_epoch, 0), "member epoch", where)


def _check_number(number: int, name: str, where: str) -> None:
    if not 0 <= number < _INT32_MAX:
        raise Corrupt(f"{where}: {name} {number}, it is 0 to {_INT32_MAX - 1}")


def _check_unique(ids: Iterable[str], name: str, where: str) -> None:
    for id, count in Counter(ids).items():
        if count > 1:
            raise Corrupt(f"{where}: {name} id {id!r:.80} stands for {count} members")


def _decode_transaction(
    key: bytes, value: bytes | None, where: str
) -> tuple[TransactionLogKey, TransactionLogValue | None] | None:
    if read_number(key, where) != TRANSACTION_RECORD:
        return None
    decoded_key = decode_numbered(TransactionLogKey, key, 0)
    if value is None:
        return decoded_key, None
    id = f"{where}: transactional id {decoded_key.transactional_id!r:.80}"
    version = read_number(value, where)
    if version not in TransactionLogValue.VERSIONS:
        raise UnsupportedFormat(
            f"{id} is written at version {version}, known are {TransactionLogValue.VERSIONS}; open "
            "the store with a later varve"
        )
    decoded = decode_numbered(TransactionLogValue, value, version)
    status = decoded.transaction_status
    if not 0 <= status <= TRANSACTION_STATUS_MAX:
        raise Corrupt(f"{id} has status {status}, known are 0 to {TRANSACTION_STATUS_MAX}")
    if decoded.producer_id < 0 or decoded.producer_epoch < 0:
        raise Corrupt(
            f"{id} has producer id {decoded.producer_id} and epoch {decoded.producer_epoch}; "
            "neither is negative"
        )
    return decoded_key, decoded
