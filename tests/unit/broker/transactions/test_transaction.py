"""A transactional id takes Kafka's steps under Kafka's numbers, and its records are Kafka's own."""

import struct
from collections.abc import Callable

import pytest

from varve.broker.transactions.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    Status,
    Transaction,
    decode_transaction,
    encode_key,
    encode_transaction,
    is_exhausted,
)
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt, MalformedMessage, UnsupportedFormat
from varve.wire import encode
from varve.wire.messages.state_records import PartitionsSchema, TransactionLogValue

ONGOING = Transaction(
    transactional_id="pay",
    producer_id=9,
    producer_epoch=2,
    timeout_ms=60_000,
    status=Status.ONGOING,
    partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 3), TopicPartition("a", 0)}),
    start_ms=100,
    update_ms=120,
)


def test_a_record_has_the_bytes_kafka_writes() -> None:
    record = encode_transaction(ONGOING)
    assert record.key == b"\x00\x00\x00\x03pay"
    assert record.value == (
        struct.pack(">hqhib", 0, 9, 2, 60_000, 1)
        + struct.pack(">i", 2)
        + struct.pack(">h1siii", 1, b"a", 2, 0, 3)
        + struct.pack(">h1sii", 1, b"b", 1, 1)
        + struct.pack(">qq", 120, 100)
    )


def test_an_id_without_a_transaction_has_no_list_of_partitions() -> None:
    empty = Transaction(transactional_id="pay", producer_id=9, timeout_ms=5, update_ms=1)
    value = encode_transaction(empty).value
    assert value is not None
    assert value[17:21] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("status", [one for one in Status if one <= Status.COMPLETE_ABORT])
def test_what_is_written_is_read_back(status: Status) -> None:
    partitions = frozenset() if status is Status.EMPTY else ONGOING.partitions
    transaction = Transaction(
        transactional_id="ids may be äöü",
        producer_id=1 << 40,
        producer_epoch=32_000,
        timeout_ms=7,
        status=status,
        partitions=partitions,
        start_ms=-1,
        update_ms=3,
    )
    record = encode_transaction(transaction)
    assert record.key is not None
    assert record.value is not None
    assert decode_transaction(record.key, record.value, "here") == transaction


def test_a_dead_id_is_a_tombstone() -> None:
    empty = Transaction(transactional_id="pay", producer_id=9, timeout_ms=5, update_ms=1)
    record = encode_transaction(empty.dead())
    assert record.value is None
    assert record.key == encode_key("pay")


def test_version_1_of_later_kafkas_is_read() -> None:
    value = TransactionLogValue(
        producer_id=9,
        previous_producer_id=8,
        producer_epoch=2,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=[PartitionsSchema(topic="a", partition_ids=[3])],
        transaction_last_update_timestamp_ms=120,
        transaction_start_timestamp_ms=100,
        client_transaction_version=2,
    )
    data = bytes(encode(value, 1, bytearray(b"\x00\x01")))
    found = decode_transaction(encode_key("pay"), data, "here")
    assert found is not None
    assert (found.producer_id, found.status) == (9, Status.ONGOING)
    assert found.partitions == {TopicPartition("a", 3)}


def test_what_cannot_be_understood_is_not_guessed() -> None:
    record = encode_transaction(ONGOING)
    assert record.key is not None
    assert record.value is not None
    assert decode_transaction(b"\x00\x05" + record.key[2:], record.value, "here") is None
    with pytest.raises(UnsupportedFormat, match="version 9"):
        decode_transaction(record.key, b"\x00\x09" + record.value[2:], "here")
    with pytest.raises(Corrupt, match="status 77"):
        decode_transaction(record.key, record.value[:16] + b"\x4d" + record.value[17:], "here")
    with pytest.raises(MalformedMessage, match="TransactionLogValue"):
        decode_transaction(record.key, record.value[:-4], "here")
    with pytest.raises(Corrupt, match="1 bytes"):
        decode_transaction(record.key, b"\x00", "here")


A = TopicPartition("a", 0)


def _new(**changes: object) -> Transaction:
    fields: dict[str, object] = {
        "transactional_id": "id",
        "producer_id": 7,
        "producer_epoch": 3,
        "timeout_ms": 1_000,
        "update_ms": 50,
    }
    return Transaction(**(fields | changes))  # type: ignore[arg-type]  # by name


def test_statuses_have_kafkas_numbers_and_names() -> None:
    assert [(one.value, one.display_name) for one in Status] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]


def test_steps_out_of_order_are_our_own_mistake() -> None:
    mistakes: list[Callable[[], Transaction]] = [
        lambda: _new().prepared(is_commit=True, now_ms=1),
        lambda: _new(status=Status.ONGOING).completed(now_ms=1),
        lambda: _new(status=Status.PREPARE_COMMIT).with_partitions(frozenset({A}), now_ms=1),
        lambda: _new(status=Status.ONGOING).dead(),
        lambda: _new().fenced(),
    ]
    for mistake in mistakes:
        with pytest.raises(AssertionError):
            mistake()


def test_the_last_epochs_are_not_given_away() -> None:
    assert is_exhausted(EPOCH_MAX - 1)
    assert not is_exhausted(EPOCH_MAX - 2)
    spent = _new(producer_epoch=EPOCH_MAX - 1)
    assert spent.needs_producer_id(None)
    assert spent.needs_producer_id(EPOCH_MAX - 1)
    assert not spent.needs_producer_id(EPOCH_MAX - 2)
    assert not _new().needs_producer_id(None)
    assert _new(producer_epoch=NO_EPOCH).needs_producer_id(None)
