"""Records of `__transaction_state` as Kafka writes them.

Layout     key: version 0 (int16), then TransactionLogKey. Value: version (int16), then
           TransactionLogValue at that version; null is a tombstone. Version 0 is written, which
           every Kafka reads; 1 is read too.
"""

import struct
from typing import Final

from varve.broker.topics import by_topic
from varve.broker.transactions.state import NO_PARTITIONS, Status, Transaction
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.records import Record
from varve.wire import decode, encode
from varve.wire.messages.state_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

_NUMBER: Final = struct.Struct(">h")
_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 0


def encode_transaction(transaction: Transaction) -> Record:
    """What is to be remembered of a transactional id; nothing, for one that is dead."""
    key = encode_key(transaction.transactional_id)
    if transaction.status is Status.DEAD:
        return Record(key, None, timestamp=transaction.update_ms)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.status),
        transaction_partitions=_partitions_of(transaction),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    data = bytes(encode(value, _VALUE_VERSION, bytearray(_NUMBER.pack(_VALUE_VERSION))))
    return Record(key, data, timestamp=transaction.update_ms)


def encode_key(transactional_id: str) -> bytes:
    prefix = bytearray(_NUMBER.pack(_KEY_VERSION))
    return bytes(encode(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION, prefix))


def _partitions_of(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.status is Status.EMPTY:
        return None
    numbers = by_topic((one.topic, one.partition) for one in transaction.partitions)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in numbers.items()]


def decode_transaction(key: bytes, value: bytes, where: str) -> Transaction | None:
    """What a record tells; None for a key of a kind that is not known here.

    Raises UnsupportedFormat for a value of a later version: what became of the transaction cannot
    be told then.
    """
    if _version_of(key, where) != _KEY_VERSION:
        return None
    transactional_id = decode(TransactionLogKey, _KEY_VERSION, key, _NUMBER.size).transactional_id
    version = _version_of(value, where)
    if version not in TransactionLogValue.VERSIONS:
        raise UnsupportedFormat(
            f"{where}: transactional id {transactional_id!r:.80} is written at version {version}, "
            f"known are {TransactionLogValue.VERSIONS}; open the store with a later varve"
        )
    found = decode(TransactionLogValue, version, value, _NUMBER.size)
    if found.transaction_status not in set(Status):
        raise Corrupt(
            f"{where}: transactional id {transactional_id!r:.80} has status "
            f"{found.transaction_status}, known are 0 to {max(Status)}"
        )
    return Transaction(
        transactional_id=transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        status=Status(found.transaction_status),
        partitions=_read_partitions(found),
        start_ms=found.transaction_start_timestamp_ms,
        update_ms=found.transaction_last_update_timestamp_ms,
    )


def _read_partitions(value: TransactionLogValue) -> frozenset[TopicPartition]:
    return NO_PARTITIONS.union(
        TopicPartition(topic.topic, number)
        for topic in value.transaction_partitions or ()
        for number in topic.partition_ids
    )


def _version_of(data: bytes, where: str) -> int:
    if len(data) < _NUMBER.size:
        raise Corrupt(f"{where}: a record has {len(data)} bytes where a version should begin it")
    return int(_NUMBER.unpack_from(data)[0])
