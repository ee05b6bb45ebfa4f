"""Produce."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, fetch, list_offsets, produce, produce_request
from tests.support.log_bench import NOW_MS, make_batch
from tests.support.rights import all_but
from varve.broker.append_scheduler import AppendEntry
from varve.broker.request import CloseConnection, Operation, ResourceType
from varve.commit_log import TopicPartition
from varve.foundation.settings import GivenValue
from varve.records import Codec, Record, build_batch, crc32c_of
from varve.wire import ErrorCode
from varve.wire.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData
from varve.wire.messages.state_records import OFFSETS_TOPIC

VERSIONS = range(3, 14)


class Guard:
    """Knows one partition that is part of a transaction."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self.asked: list[tuple[str, int, int]] = []

    def check_produce(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> ErrorCode:
        self.asked.append((transactional_id, producer_id, producer_epoch))
        known = partition == self._partition
        return ErrorCode.NONE if known else ErrorCode.INVALID_TXN_STATE


def told(answer: Any) -> list[tuple[int, int, int]]:
    return [
        (one.index, one.error_code, one.base_offset)
        for topic in answer.responses
        for one in topic.partition_responses
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_is_appended_in_every_version(kit: BrokerKit, version: int, acks: int) -> None:
    append(kit, make_batch(2))
    found = produce(kit, batch=make_batch(3), version=version, acks=acks)
    assert (found.error_code, found.base_offset) == (0, 2)
    assert found.log_start_offset == (0 if version >= 5 else -1)
    assert found.log_append_time_ms == -1
    assert kit.log("events").end_offset == 5


def test_the_time_of_the_append_is_told_where_it_counts(kit: BrokerKit) -> None:
    kit.make_topic("stamped", settings={"message.timestamp.type": "LogAppendTime"})
    assert produce(kit, "stamped").log_append_time_ms == kit.clock.now_ms()


def test_partitions_fail_by_themselves(kit: BrokerKit) -> None:
    good, broken = make_batch(), bytearray(make_batch())
    broken[-1] ^= 1
    request = produce_request(
        kit,
        {
            ("events", 0): good,
            ("events", 1): bytes(broken),
            ("events", 2): None,
            ("events", 3): good,
            ("missing", 0): good,
        },
    )
    assert told(kit.ask(request, version=9)) == [
        (0, ErrorCode.NONE, 0),
        (1, ErrorCode.CORRUPT_MESSAGE, -1),
        (2, ErrorCode.INVALID_RECORD, -1),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


@pytest.mark.parametrize("version", [9, 13])
def test_a_partition_that_is_named_twice_gets_its_first_batch(kit: BrokerKit, version: int) -> None:
    request = produce_request(kit, {("events", 0): make_batch(2)})
    request.topic_data[0].partition_data *= 2
    request.topic_data *= 2
    answer = kit.ask(request, version=version)
    again = (0, ErrorCode.INVALID_REQUEST, -1)
    assert told(answer) == [(0, ErrorCode.NONE, 0), again, again, again]
    assert kit.log("events").end_offset == 2


def test_an_error_of_an_append_holds_no_frames(kit: BrokerKit) -> None:
    """Its frames would hold the batch and what was unpacked from it."""
    batch = bytearray(make_batch(codec=Codec.GZIP))
    batch[-12] ^= 0xFF
    batch[17:21] = crc32c_of(batch[21:]).to_bytes(4, "big")
    entry = AppendEntry(kit.log("events"), memoryview(batch))
    kit.run(kit.broker.appends.submit([entry]))
    error: BaseException | None = entry.error
    assert error is not None
    while error is not None:
        assert error.__traceback__ is None
        error = error.__cause__ or error.__context__


def test_an_unknown_id_is_told_apart_from_an_unknown_name(kit: BrokerKit) -> None:
    request = produce_request(kit, {("missing", 0): make_batch()})
    assert told(kit.ask(request, version=13)) == [(0, ErrorCode.UNKNOWN_TOPIC_ID, -1)]


@pytest.mark.parametrize(
    "batch",
    [b"", make_batch() + make_batch(), make_batch()[:-1], make_batch()[:60], b"\0" * 100],
    ids=["none", "two", "cut", "no header", "old magic"],
)
def test_a_partition_takes_exactly_one_batch(kit: BrokerKit, batch: bytes) -> None:
    found = produce(kit, batch=batch)
    assert found.error_code == ErrorCode.INVALID_RECORD
    assert found.error_message
    assert kit.log("events").end_offset == 0


@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_codec_is_an_invalid_record(
    kit: BrokerKit, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    batch = bytearray(make_batch())
    batch[22] |= number
    batch[17:21] = crc32c_of(batch[21:]).to_bytes(4, "big")
    found = produce(kit, batch=bytes(batch))
    assert found.error_code == ErrorCode.INVALID_RECORD
    assert f"codec number {number}" in (found.error_message or "")
    assert not [one for one in caplog.records if one.exc_info]


def test_zstd_is_for_those_who_know_it(kit: BrokerKit) -> None:
    batch = make_batch(5, codec=Codec.ZSTD)
    assert produce(kit, batch=batch, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(kit, batch=batch, version=7).error_code == 0


def test_acks_have_three_values(kit: BrokerKit) -> None:
    assert produce(kit, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert kit.log("events").end_offset == 0


def test_acks_0_has_no_answer(kit: BrokerKit) -> None:
    request = produce_request(kit, {("events", 0): make_batch()}, acks=0)
    assert kit.ask(request) is None
    assert kit.log("events").end_offset == 1


@pytest.mark.parametrize("name", ["missing", "events"])
def test_an_error_with_acks_0_ends_the_connection(kit: BrokerKit, name: str) -> None:
    batch = bytearray(make_batch())
    batch[-1] ^= 1
    with pytest.raises(CloseConnection):
        kit.ask(produce_request(kit, {(name, 0): bytes(batch)}, acks=0), version=9)


@pytest.mark.parametrize("client_id", ["", "__admin_client"])
def test_only_the_broker_writes_to_internal_topics(kit: BrokerKit, client_id: str) -> None:
    kit.make_topic(OFFSETS_TOPIC)
    request = produce_request(kit, {(OFFSETS_TOPIC, 0): make_batch()})
    [(_, code, _)] = told(kit.ask(request, client_id=client_id))
    assert code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_refused_record_is_told_with_its_reason(kit: BrokerKit) -> None:
    kit.make_topic("compacted", settings={"cleanup.policy": "compact"})
    batch = build_batch([Record(key, b"v", timestamp=NOW_MS) for key in (b"k", b"", None, None)])
    found = produce(kit, "compacted", batch)
    assert found.error_code == ErrorCode.INVALID_RECORD
    assert "no key" in (found.error_message or "")
    assert [fault.batch_index for fault in found.record_errors] == [2, 3]
    assert all("no key" in (fault.batch_index_error_message or "") for fault in found.record_errors)
    assert produce(kit, "compacted", batch, version=7).record_errors == []
    too_large = make_batch(value=b"v" * 2_000_000)
    assert produce(kit, batch=too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_every_refused_record_is_named_so_that_the_others_can_be_sent_again(
    kit: BrokerKit, codec: Codec
) -> None:
    settings: dict[str, GivenValue] = {
        "cleanup.policy": "compact",
        "message.timestamp.before.max.ms": 1_000,
        "message.timestamp.after.max.ms": 1_000,
    }
    kit.make_topic("strict", settings=settings)
    records = [
        Record(b"k", b"v", timestamp=NOW_MS),
        Record(b"k", b"v", timestamp=NOW_MS - 1_001),
        Record(None, b"v", timestamp=NOW_MS),
        Record(b"k", b"v", timestamp=NOW_MS + 1_001),
        Record(b"k", b"v", timestamp=NOW_MS),
    ]
    found = produce(kit, "strict", build_batch(records, codec=codec))
    assert found.error_code == ErrorCode.INVALID_TIMESTAMP
    reasons = {
        fault.batch_index: fault.batch_index_error_message or "" for fault in found.record_errors
    }
    assert list(reasons) == [1, 2, 3]
    for index, reason in ((1, "before.max"), (2, "no key"), (3, "after.max")):
        assert reason in reasons[index]
    assert "2 more of its records" in (found.error_message or "")
    valid = [record for index, record in enumerate(records) if index not in reasons]
    assert produce(kit, "strict", build_batch(valid, codec=codec)).error_code == ErrorCode.NONE


def test_a_batch_sent_again_has_its_first_offset(kit: BrokerKit) -> None:
    batches = [make_batch(2, producer_id=7, base_sequence=one * 2) for one in range(6)]
    first = [produce(kit, batch=one).base_offset for one in batches]
    assert first == [0, 2, 4, 6, 8, 10]
    again = [produce(kit, batch=one) for one in batches[1:]]
    assert [(one.error_code, one.base_offset) for one in again] == [
        (0, offset) for offset in first[1:]
    ]
    assert kit.log("events").end_offset == 12


def test_sequences_and_epochs_are_kept_in_order(kit: BrokerKit) -> None:
    produce(kit, batch=make_batch(2, producer_id=7, producer_epoch=1, base_sequence=0))
    gap = make_batch(2, producer_id=7, producer_epoch=1, base_sequence=4)
    assert produce(kit, batch=gap).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = make_batch(2, producer_id=7, producer_epoch=0, base_sequence=2)
    assert produce(kit, batch=old).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_survive_a_restart(kit: BrokerKit) -> None:
    batch = make_batch(2, producer_id=7, base_sequence=0)
    produce(kit, batch=batch)
    kit.restart()
    found = produce(kit, batch=batch)
    assert (found.error_code, found.base_offset) == (0, 0)
    assert kit.log("events").end_offset == 2


def test_a_batch_of_a_transaction_must_belong_to_one(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(producer_id=7, producer_epoch=2, base_sequence=0, transactional=True)
    guard = Guard(TopicPartition("events", 1))
    monkeypatch.setattr(kit.broker.transactions, "check_produce", guard.check_produce)
    inside = produce(kit, batch=batch, partition=1, transactional_id="t", version=11)
    outside = produce(kit, batch=batch, partition=0, transactional_id="t", version=11)
    assert (inside.error_code, outside.error_code) == (0, ErrorCode.INVALID_TXN_STATE)
    assert guard.asked == [("t", 7, 2)] * 2


def test_a_transaction_needs_an_id_and_the_right_to_it(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard(TopicPartition("events", 0))
    monkeypatch.setattr(kit.broker.transactions, "check_produce", guard.check_produce)
    kit.broker.authorizer = all_but((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "theirs"))
    batch = make_batch(producer_id=7, producer_epoch=2, base_sequence=0, transactional=True)
    for id in (None, "theirs"):
        found = produce(kit, batch=batch, transactional_id=id)
        assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# Topics that promise the disk


@pytest.fixture
def synced(kit: BrokerKit) -> BrokerKit:
    """With a topic `safe` that is synced for each append."""
    kit.make_topic("safe", settings={"flush": "ack"})
    assert kit.log("safe").settings.syncs_every_append
    return kit


def test_nothing_is_told_or_shown_before_the_sync(synced: BrokerKit) -> None:
    kit = synced
    kit.hold_work(syncs=True)
    answer = kit.begin(produce_request(kit, {("safe", 0): make_batch(3)}))
    assert not answer.done()
    assert kit.log("safe").end_offset == 3
    assert not fetch(kit, topic="safe").records
    assert list_offsets(kit, -1, topic="safe").offset == 0
    kit.release_work()
    assert told(answer.result()) == [(0, 0, 0)]
    assert len(fetch(kit, topic="safe").records or b"") > 0


def test_a_duplicate_waits_for_its_original(synced: BrokerKit) -> None:
    kit = synced
    kit.hold_work(syncs=True)
    request = produce_request(kit, {("safe", 0): make_batch(3, producer_id=7, base_sequence=0)})
    first, again = kit.begin(request), kit.begin(request)
    assert not first.done()
    assert not again.done()
    kit.release_work()
    assert told(first.result()) == told(again.result()) == [(0, 0, 0)]


def test_the_time_of_a_request_passes_while_it_waits_for_the_disk(synced: BrokerKit) -> None:
    kit = synced
    kit.hold_work(syncs=True)
    batches: dict[tuple[str, int], bytes | None] = {
        ("safe", 0): make_batch(3),
        ("events", 0): make_batch(),
    }
    answer = kit.begin(produce_request(kit, batches, timeout_ms=300))
    kit.advance(200)
    assert not answer.done()
    kit.advance(100)
    assert told(answer.result()) == [(0, ErrorCode.REQUEST_TIMED_OUT, -1), (0, 0, 0)]
    kit.release_work()
    assert kit.log("safe").high_watermark == 3  # it happened all the same


def test_bytes_are_the_requests_until_they_are_written(synced: BrokerKit) -> None:
    kit = synced
    kit.hold_work(appends=True, syncs=True)
    answer = kit.begin(produce_request(kit, {("safe", 0): make_batch(3)}, timeout_ms=300))
    kit.advance(5_000)
    assert not answer.done()
    kit.release_work()
    assert told(answer.result()) == [(0, 0, 0)]


def test_a_stopping_broker_takes_nothing_more(kit: BrokerKit) -> None:
    kit.broker.appends.stop()
    assert produce(kit).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_empty_request_has_an_empty_answer(kit: BrokerKit) -> None:
    assert kit.ask(ProduceRequest(acks=1)).responses == []
    topic = TopicProduceData("events", partition_data=[PartitionProduceData(-1, None)])
    assert told(kit.ask(ProduceRequest(acks=1, topic_data=[topic]), version=9)) == [
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    ]
