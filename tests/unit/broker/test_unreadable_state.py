"""What internal topics hold and cannot be read does not keep a broker from starting."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.random_messages import MessageMaker
from tests.support.transaction_bench import QUICK
from varve.broker import state_topic
from varve.broker.metrics import UNREADABLE_STATE
from varve.broker.state_topic import StateReplay
from varve.broker.transactions.transaction import Status
from varve.commit_log import AppendOrigin, Log
from varve.commit_log.check import ignore_progress
from varve.embedded.directory_check import CheckOptions, check_path
from varve.foundation.errors import DirectoryOffline
from varve.kernels.batch_layout import CONTROL_BIT
from varve.records import Record, build_batch
from varve.wire import ErrorCode, Message
from varve.wire.messages.groups import ListGroupsRequest
from varve.wire.messages.state_records import (
    GROUP_RECORDS,
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    TransactionLogKey,
    TransactionLogValue,
)
from varve.wire.messages.transactions import InitProducerIdRequest
from varve.wire.schema import FieldType, Kind
from varve.wire.state_records import encode_numbered

STATUS_77 = b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\x4d" + bytes(20)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"", b"", id="empty"),
        pytest.param(b"\0", b"", id="half a type"),
        pytest.param(b"\0\0", b"\0\0", id="a type alone"),
        pytest.param(b"\0\0\0\x01\xff", b"\0\0", id="text that is not UTF-8"),
        pytest.param(b"\0\0\x7f\xff", b"\0\0", id="a length beyond the key"),
        pytest.param(b"\0\0\0\x01t", STATUS_77[:9], id="a value cut short"),
        pytest.param(b"\0\0\0\x01t", STATUS_77, id="an unknown status, or a value too long"),
    ],
)
def test_a_record_that_cannot_be_read_is_ignored_and_counted(
    kit: BrokerKit, topic: str, key: bytes, value: bytes
) -> None:
    kit.make_topic(topic, settings={"cleanup.policy": "compact"})
    batch = build_batch([Record(key, value, timestamp=1)])
    kit.log(topic, 0).append(batch, origin=AppendOrigin.COORDINATOR)
    _check_ignored(kit, topic)


def _check_ignored(kit: BrokerKit, topic: str) -> None:
    """The broker starts and serves, counts one record, and `varve check` finds it."""
    kit.restart()
    assert kit.ask(ListGroupsRequest()).error_code == ErrorCode.NONE
    init = InitProducerIdRequest("other", transaction_timeout_ms=1_000)
    assert kit.ask(init).error_code == ErrorCode.NONE
    list(kit.broker.metrics.collect())
    assert kit.broker.metrics.value(UNREADABLE_STATE, topic) == 1
    kit.store.flush()
    result = check_path(kit.fs, "data", CheckOptions(lock=False), kit.clock, ignore_progress)
    found = [finding for finding in result.before if finding.rule == "state-record"]
    assert [finding.path.split("/")[1] for finding in found] == [f"{topic}-0"]
    assert not result.is_clean


def _member(id: str, instance: str | None = None) -> MemberMetadata:
    return MemberMetadata(id, instance, "client", "/host", 1_000, 1_000, b"", b"")


def _group(*members: MemberMetadata, **changes: Any) -> GroupMetadataValue:
    group = GroupMetadataValue("consumer", 1, "range", "a", 1, list(members))
    return replace(group, **changes)


def _transaction(**changes: Any) -> TransactionLogValue:
    value = TransactionLogValue(
        producer_id=7,
        producer_epoch=1,
        transaction_timeout_ms=1_000,
        transaction_status=1,
        transaction_partitions=[],
        transaction_start_timestamp_ms=1,
    )
    return replace(value, **changes)


@pytest.mark.parametrize(
    ("key", "value", "version"),
    [
        pytest.param(
            GroupMetadataKey("g"), _group(_member("a", "i"), _member("b", "i")), 3, id="instance"
        ),
        pytest.param(GroupMetadataKey("g"), _group(_member("a"), _member("a")), 3, id="member"),
        pytest.param(GroupMetadataKey("g"), _group(_member("b")), 3, id="leader"),
        pytest.param(GroupMetadataKey("g"), _group(_member("a"), generation=-2), 3, id="past"),
        pytest.param(
            ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue((1 << 31) - 1), 0, id="epoch"
        ),
        pytest.param(TransactionLogKey("t"), _transaction(transaction_status=6), 0, id="dead"),
        pytest.param(TransactionLogKey("t"), _transaction(producer_id=-1), 0, id="no producer"),
        pytest.param(TransactionLogKey("t"), _transaction(producer_epoch=-1), 0, id="no epoch"),
    ],
)
def test_a_record_that_cannot_be_continued_from_is_ignored_and_counted(
    kit: BrokerKit, key: Message, value: Message, version: int
) -> None:
    is_transaction = isinstance(key, TransactionLogKey)
    topic = TRANSACTIONS_TOPIC if is_transaction else OFFSETS_TOPIC
    number = 0 if is_transaction else 3 if isinstance(key, ConsumerGroupMetadataKey) else 2
    kit.make_topic(topic, settings={"cleanup.policy": "compact"})
    record = Record(
        encode_numbered(number, key, 0), encode_numbered(version, value, version), timestamp=1
    )
    kit.log(topic, 0).append(build_batch([record]), origin=AppendOrigin.COORDINATOR)
    _check_ignored(kit, topic)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_decodes_neither_keeps_a_broker_from_starting_nor_stops_it_later(
    kit: BrokerKit, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    maker, chance = EdgeMaker(seed), random.Random(seed)
    for topic in sorted(INTERNAL_TOPICS):
        kit.make_topic(topic, settings={"cleanup.policy": "compact"})
    for number, (key, value) in [*GROUP_RECORDS.items()] * 4:
        version = chance.randint(value.VERSIONS.first, value.VERSIONS.last)
        _append(kit, OFFSETS_TOPIC, maker, number, key, value, version)
        _append(kit, TRANSACTIONS_TOPIC, maker, 0, TransactionLogKey, TransactionLogValue, 0)
    kit.restart()
    kit.advance(20_000)
    assert kit.ask(ListGroupsRequest()).error_code == ErrorCode.NONE
    init = InitProducerIdRequest("other", transaction_timeout_ms=1_000)
    assert kit.ask(init).error_code == ErrorCode.NONE
    assert {record.message for record in caplog.records if record.exc_info} == set()


class EdgeMaker(MessageMaker):
    """Random messages with numbers at the ends of their ranges."""

    def _value(self, type: FieldType, name: str, version: int) -> Any:
        bits = {Kind.INT8: 7, Kind.INT16: 15, Kind.INT32: 31, Kind.INT64: 63}.get(type.kind)
        if bits is None or self._random.random() < 0.4:
            return super()._value(type, name, version)
        return self._random.choice((0, 1, 2, 3, 4, 5, -1, (1 << bits) - 1, -(1 << bits)))


def _append(
    kit: BrokerKit,
    topic: str,
    maker: MessageMaker,
    number: int,
    key: type[Message],
    value: type[Message],
    version: int,
) -> None:
    record = Record(
        encode_numbered(number, maker.make(key, 0), 0),
        encode_numbered(version, maker.make(value, version), version),
        timestamp=1,
    )
    kit.log(topic, 0).append(build_batch([record]), origin=AppendOrigin.COORDINATOR)


def test_an_overdue_transaction_of_the_last_epoch_is_aborted() -> None:
    with BrokerKit(transactions=QUICK) as kit:
        kit.make_topic(TRANSACTIONS_TOPIC, settings={"cleanup.policy": "compact"})
        value = _transaction(producer_epoch=(1 << 15) - 1)
        record = Record(
            encode_numbered(0, TransactionLogKey("t"), 0), encode_numbered(0, value, 0), timestamp=1
        )
        log = kit.log(TRANSACTIONS_TOPIC, 0)
        log.append(build_batch([record]), origin=AppendOrigin.COORDINATOR)
        kit.restart()
        kit.advance(2_000)
        ended = kit.broker.transactions.find("t")
        assert ended is not None
        assert ended.status is Status.COMPLETE_ABORT


def test_state_in_a_directory_that_fails_is_left_out(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.make_topic(OFFSETS_TOPIC, settings={"cleanup.policy": "compact"})

    def fail(log: Log) -> StateReplay:
        raise DirectoryOffline("data: Input/output error")

    monkeypatch.setattr(state_topic, "replay_log", fail)
    kit.restart()
    assert kit.ask(ListGroupsRequest()).error_code == ErrorCode.NONE


def test_a_malformed_control_record_is_left_out(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [(0, 7, CONTROL_BIT, b"", b""), (1, -1, 0, b"key", b"value")]
    monkeypatch.setattr(state_topic, "scan_records", lambda log, errors: iter(records))
    replayed = state_topic.replay_log(kit.log("events"))
    assert [record.key for record in replayed.live] == [b"key"]
    assert len(replayed.errors) == 1


def test_a_damaged_batch_is_ignored_and_counted(kit: BrokerKit) -> None:
    kit.make_topic(OFFSETS_TOPIC, settings={"cleanup.policy": "compact"})
    log = kit.log(OFFSETS_TOPIC, 0)
    log.append(build_batch([Record(b"k", b"v", timestamp=1)]), origin=AppendOrigin.COORDINATOR)
    with kit.fs.open_writable(f"{log.directory}/{0:020}.log") as file:
        file.write_at(log.size - 1, b"?")
    kit.restart()
    assert kit.ask(ListGroupsRequest()).error_code == ErrorCode.NONE
    list(kit.broker.metrics.collect())
    assert kit.broker.metrics.value(UNREADABLE_STATE, OFFSETS_TOPIC) == 1
