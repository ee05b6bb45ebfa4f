"""Produce to a topic that takes no duplicates: what is appended, and what is answered."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, list_offsets, produce, produce_request
from tests.support.dedup_topic import (
    BY_KEY,
    LATENESS_MS,
    TOPIC,
    WINDOW_MS,
    batch_of,
    batches_in,
    keys_in,
    make_topic,
    records_in,
    send,
)
from tests.support.log_bench import NOW_MS, make_marker
from varve.commit_log import AppendOrigin, Log
from varve.records import Codec
from varve.wire import ErrorCode

NONE = ErrorCode.NONE


@pytest.fixture
def log(kit: BrokerKit) -> Log:
    return make_topic(kit)


def producer(sequence: int, epoch: int = 0) -> dict[str, Any]:
    return {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence}


def test_a_batch_without_duplicates_goes_in_untouched(kit: BrokerKit, log: Log) -> None:
    batch = batch_of(("a", 0), ("b", 1), codec=Codec.LZ4)
    assert produce(kit, TOPIC, batch).base_offset == 0
    (stored,) = batches_in(log)
    assert bytes(log.read(start_offset=0).data)[16:] == batch[16:]
    assert stored.header.codec is Codec.LZ4


def test_a_duplicate_is_answered_with_the_offset_of_its_original(kit: BrokerKit, log: Log) -> None:
    assert send(kit, ("a", 0), ("b", 0)) == (NONE, 0)
    assert send(kit, ("b", WINDOW_MS)) == (NONE, 1)
    assert log.end_offset == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_duplicates_in_a_batch_leave_holes(kit: BrokerKit, log: Log, codec: Codec) -> None:
    send(kit, ("a", 0))
    sent = [("b", 1), ("a", 2), ("c", 3), ("b", 4)]
    assert send(kit, *sent, codec=codec, headers=(("h", b"1"),)) == (NONE, 1)
    assert records_in(log) == [(0, "a", 0), (1, "b", 1), (3, "c", 3)]
    assert log.end_offset == 5
    header = batches_in(log)[1].header
    assert (header.base_offset, header.last_offset_delta, header.codec) == (1, 3, codec)
    assert batches_in(log)[1].columns().headers(0) == (("h", b"1"),)


def test_idempotent_retries_are_told_by_their_sequences(kit: BrokerKit, log: Log) -> None:
    assert send(kit, ("a", 0), **producer(0)) == (NONE, 0)
    assert send(kit, ("b", 0), ("a", 1), **producer(1)) == (NONE, 1)
    assert send(kit, ("b", 0), ("a", 1), **producer(1)) == (NONE, 1)
    assert send(kit, ("a", 0), **producer(0)) == (NONE, 0)
    assert log.end_offset == 3


def test_an_idempotent_producer_goes_on_after_duplicates_alone(kit: BrokerKit, log: Log) -> None:
    send(kit, ("a", 0), **producer(0))
    assert send(kit, ("a", 1), ("a", 2), **producer(1)) == (NONE, 0)
    (_, left) = batches_in(log)
    assert (left.header.records_count, left.header.last_offset_delta) == (0, 1)
    assert send(kit, ("b", 3), **producer(3)) == (NONE, 3)
    kit.restart(is_crash=True)
    assert send(kit, ("c", 3), **producer(4)) == (NONE, 4)
    code, _ = send(kit, ("d", 3), **producer(9))
    assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert keys_in(kit.log(TOPIC)) == ["a", "b", "c"]


def test_a_retry_of_duplicates_alone_is_answered_with_the_original_again(
    kit: BrokerKit, log: Log
) -> None:
    send(kit, ("a", 0), ("b", 0), **producer(0))
    copies, mixed = (("b", 1), ("a", 2)), (("a", 3), ("c", 3))
    assert send(kit, *copies, **producer(2)) == (NONE, 1)
    assert send(kit, *copies, **producer(2)) == (NONE, 1)
    assert send(kit, *mixed, **producer(4)) == send(kit, *mixed, **producer(4)) == (NONE, 4)
    # The stream has gone on: by now it would be late.
    send(kit, ("d", LATENESS_MS + 100), **producer(6))
    assert send(kit, *copies, **producer(2)) == (NONE, 1)
    assert send(kit, ("a", 0), ("b", 0), **producer(0)) == (NONE, 0)
    end = log.end_offset
    kit.restart(is_crash=True)
    assert send(kit, *copies, **producer(2)) == (NONE, 1)
    # Nobody remembers the original any more.
    kit.advance(100 * LATENESS_MS)
    send(kit, ("e", 100 * LATENESS_MS), **producer(7))
    assert send(kit, *copies, **producer(2)) == (NONE, 2)
    assert kit.log(TOPIC).end_offset == end + 1


def test_a_retry_of_what_was_taken_late_is_told_where_it_stands(kit: BrokerKit, log: Log) -> None:
    late = ("a", -LATENESS_MS - 1)
    send(kit, late, ("b", 0))
    assert send(kit, late, **producer(0)) == (NONE, 2)
    assert send(kit, late, **producer(0)) == (NONE, 2)
    assert log.end_offset == 3


def test_what_the_log_refuses_is_not_remembered(kit: BrokerKit, log: Log) -> None:
    send(kit, ("a", 0), **producer(0))
    assert send(kit, ("b", 0), **producer(5))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(kit, ("b", 0), **producer(1)) == (NONE, 1)
    assert keys_in(log) == ["a", "b"]


def test_times_of_empty_batches_do_not_disturb_look_ups(kit: BrokerKit, log: Log) -> None:
    send(kit, ("a", 0), **producer(0))
    send(kit, ("a", 5), **producer(1))
    assert list_offsets(kit, NOW_MS + 1, topic=TOPIC).offset == -1
    assert list_offsets(kit, NOW_MS, topic=TOPIC).offset == 0


def test_what_cannot_be_compared_is_appended_and_counted(kit: BrokerKit, log: Log) -> None:
    late, future = -LATENESS_MS - 1, LATENESS_MS + 1
    for sent in (("a", 0), ("a", late), ("a", late), ("b", future), ("b", future), ("c", -1)):
        assert send(kit, sent)[0] == NONE
    assert send(kit, ("c", -1), ("", 0), ("", 0)) == (NONE, 6)
    assert log.end_offset == 9
    counts = kit.broker.dedup_topics.counts()
    assert {name: count for (topic, name), count in counts.items() if topic == TOPIC} == {
        "kept": 1,
        "late": 2,
        "future": 2,
        "missing": 2,
        "no_id": 2,
    }


def test_transactions_are_refused(
    kit: BrokerKit, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = _AnyTransaction().check_produce
    monkeypatch.setattr(kit.broker.transactions, "check_produce", check)
    batch = batch_of(("a", 0), transactional=True, **producer(0))
    found = produce(kit, TOPIC, batch, transactional_id="t")
    assert found.error_code == ErrorCode.INVALID_RECORD
    assert "no transactions" in (found.error_message or "")
    assert log.end_offset == 0


class _AnyTransaction:
    def check_produce(self, transactional_id: str, **named: object) -> ErrorCode:
        return ErrorCode.NONE


def test_with_acks_0_it_is_the_same_in_silence(kit: BrokerKit, log: Log) -> None:
    for _ in range(2):
        batches = {(TOPIC, 0): batch_of(("a", 0))}
        assert kit.ask(produce_request(kit, batches, acks=0), version=9) is None
    assert keys_in(log) == ["a"]


def test_gated_and_other_partitions_are_answered_together(kit: BrokerKit, log: Log) -> None:
    kit.make_topic("plain")
    one = batch_of(("a", 0))
    batches = {(TOPIC, 0): one, ("plain", 0): one, (TOPIC, 5): one}
    for _ in range(2):
        answer = kit.ask(produce_request(kit, batches), version=9)
    told = {
        (topic.name, part.index): (part.error_code, part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    }
    assert told == {
        (TOPIC, 0): (NONE, 0),
        ("plain", 0): (NONE, 1),
        (TOPIC, 5): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }


def test_partitions_know_nothing_of_each_other(kit: BrokerKit) -> None:
    make_topic(kit, partitions=2)
    assert send(kit, ("a", 0)) == (NONE, 0)
    assert produce(kit, TOPIC, batch_of(("a", 0)), partition=1).base_offset == 0
    assert kit.log(TOPIC, 1).end_offset == 1


@pytest.mark.parametrize(
    ("by", "same", "other"),
    [
        ("header:id", {"headers": (("id", b"1"),)}, {"headers": (("id", b"2"),)}),
        ("field:order.id", {"value": b'{"order":{"id":1}}'}, {"value": b'{"order":{"id":2}}'}),
    ],
)
def test_ids_in_headers_and_fields(
    kit: BrokerKit, by: str, same: dict[str, Any], other: dict[str, Any]
) -> None:
    log = make_topic(kit, {**BY_KEY, "varve.dedup.by": by})
    assert send(kit, ("a", 0), **same) == (NONE, 0)
    assert send(kit, ("b", 0), **same) == (NONE, 0)
    assert send(kit, ("a", 0), **other) == (NONE, 1)
    assert keys_in(log) == ["a", "a"]


def test_under_log_append_time_arrivals_are_compared(kit: BrokerKit) -> None:
    log = make_topic(kit, {**BY_KEY, "message.timestamp.type": "LogAppendTime"})
    assert send(kit, ("a", 0)) == (NONE, 0)
    found = produce(kit, TOPIC, batch_of(("a", -99_999)))
    assert (found.base_offset, found.log_append_time_ms) == (0, kit.clock.now_ms())
    kit.clock.advance(WINDOW_MS + 1)
    assert send(kit, ("a", 0), ("a", 0), ("b", 0)) == (NONE, 1)
    assert [time for *_, time in records_in(log)] == [0, WINDOW_MS + 1, WINDOW_MS + 1]


def test_a_duplicate_waits_for_the_disk_where_its_original_does(kit: BrokerKit) -> None:
    make_topic(kit, {**BY_KEY, "flush": "ack"})
    kit.hold_work(syncs=True)
    batches = {(TOPIC, 0): batch_of(("a", 0))}
    first = kit.begin(produce_request(kit, batches), version=9)
    second = kit.begin(produce_request(kit, batches), version=9)
    assert not first.done()
    assert not second.done()
    kit.release_work()
    for future in (first, second):
        found = future.result().responses[0].partition_responses[0]
        assert (found.error_code, found.base_offset) == (NONE, 0)


def test_what_others_append_is_learnt(kit: BrokerKit, log: Log) -> None:
    send(kit, ("a", 0))
    append(kit, batch_of(("x", 1), ("y", 2)), topic=TOPIC)
    assert send(kit, ("x", 3)) == (NONE, 1)
    assert send(kit, ("b", 3), ("y", 3)) == (NONE, 3)
    assert keys_in(log) == ["a", "x", "y", "b"]


def test_an_append_in_between_moves_what_is_remembered(
    kit: BrokerKit, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = log.append_checked

    def behind_another(*given: Any, **named: Any) -> Any:
        log.append(batch_of(("between", 0)))
        return real(*given, **named)

    send(kit, ("first", 0))
    monkeypatch.setattr(log, "append_checked", behind_another)
    assert send(kit, ("a", 0), ("b", 0)) == (NONE, 2)
    monkeypatch.undo()
    assert send(kit, ("b", 1)) == (NONE, 3)
    assert send(kit, ("between", 1)) == (NONE, 1)


def test_records_of_transactions_count_once_they_are_committed(kit: BrokerKit, log: Log) -> None:
    fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    log.append(batch_of(("kept", 0), base_sequence=0, **fields))
    assert send(kit, ("kept", 1), ("other", 1)) == (NONE, 1)
    log.append(make_marker(True), origin=AppendOrigin.COORDINATOR)
    assert send(kit, ("kept", 2)) in ((NONE, 0), (NONE, 1))
    log.append(batch_of(("void", 3), base_sequence=1, **fields))
    log.append(make_marker(False), origin=AppendOrigin.COORDINATOR)
    assert send(kit, ("void", 4)) == (NONE, log.end_offset - 1)
    assert send(kit, ("other", 4)) == (NONE, 2)
