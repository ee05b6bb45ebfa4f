"""Fetch: limits, errors, isolation and long polls."""

from typing import Any
from uuid import UUID

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, fetch, fetch_request, fetched, produce
from tests.support.log_bench import make_batch
from varve.broker.settings import BrokerSettings
from varve.foundation.errors import Unavailable
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from varve.wire.messages.topics import DeleteTopicsRequest

VERSIONS = range(4, 18)
SIZE = len(make_batch())


def sizes(answer: Any) -> dict[int, int]:
    """Bytes by partition."""
    return {number: len(one.records or b"") for (_, number), one in fetched(answer).items()}


def parked(kit: BrokerKit) -> tuple[int, int]:
    """Fetches that wait, and the partitions they wait for."""
    return len(kit.broker.parked_fetches), kit.broker.parked_fetches.partition_count


# At once


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_produced_is_fetched_in_every_version(kit: BrokerKit, version: int) -> None:
    batch = make_batch(3)
    append(kit, batch, batch)
    found = fetch(kit, version=version)
    assert found.records is not None
    assert bytes(found.records)[16 : len(batch)] == batch[16:]
    assert len(found.records) == 2 * len(batch)
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 6, 6)
    assert found.log_start_offset == (0 if version >= 5 else -1)
    assert found.aborted_transactions is None


@pytest.mark.parametrize("version", [12, 13])
def test_what_is_not_there_has_an_error_of_its_own(kit: BrokerKit, version: int) -> None:
    append(kit, make_batch())
    request = fetch_request(kit, {("events", 0): 0, ("events", 9): 0, ("missing", 0): 0})
    request.topics[-1].topic_id = UUID(int=9)
    answer = kit.ask(request, version=version)
    errors = [one.error_code for topic in answer.responses for one in topic.partitions]
    missing = ErrorCode.UNKNOWN_TOPIC_ID if version == 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sorted(errors) == sorted([0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing])
    assert sum(len(one.records) for topic in answer.responses for one in topic.partitions) == SIZE


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_outside_the_log_is_an_error_at_once(kit: BrokerKit, offset: int) -> None:
    append(kit, make_batch(3))
    found = fetch(kit, offset, max_wait_ms=500)
    assert (found.error_code, bool(found.records)) == (ErrorCode.OFFSET_OUT_OF_RANGE, False)
    assert fetch(kit, 3).error_code == 0


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_leader_epoch_is_checked(kit: BrokerKit, epoch: int, error: ErrorCode) -> None:
    kit.log("events").append(make_batch(), leader_epoch=5)
    found = fetch(kit, current_leader_epoch=epoch)
    assert found.error_code == error
    if error:
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (1, 5)


def test_a_reader_of_an_epoch_that_ended_earlier_is_told_where(kit: BrokerKit) -> None:
    log = kit.log("events")
    log.append(make_batch(3), leader_epoch=1)
    log.append(make_batch(3), leader_epoch=4)
    assert fetch(kit, 3, last_fetched_epoch=1).diverging_epoch.end_offset == -1
    beyond = fetch(kit, 5, last_fetched_epoch=2, max_wait_ms=500)
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (1, 3)
    assert (beyond.error_code, bool(beyond.records)) == (0, False)


# Limits


def test_the_first_batch_comes_whatever_the_limits(kit: BrokerKit) -> None:
    append(kit, make_batch(), make_batch())
    cases: list[dict[str, Any]] = [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}]
    for limits in cases:
        assert len(fetch(kit, **limits).records or b"") == SIZE
    assert len(fetch(kit, partition_max_bytes=2 * SIZE).records or b"") == 2 * SIZE


def test_only_the_first_partition_may_exceed_the_limit(kit: BrokerKit) -> None:
    for partition in range(3):
        append(kit, make_batch(), make_batch(), partition=partition)
    offsets = {("events", number): 0 for number in range(3)}
    answer = kit.ask(fetch_request(kit, offsets, max_bytes=SIZE + 1), version=12)
    assert sorted(sizes(answer).values()) == [0, 0, SIZE]
    answer = kit.ask(fetch_request(kit, offsets, max_bytes=3 * SIZE), version=12)
    assert sorted(sizes(answer).values()) == [0, SIZE, 2 * SIZE]


def test_partitions_take_turns(kit: BrokerKit) -> None:
    for partition in range(3):
        append(kit, make_batch(), partition=partition)
    offsets = {("events", number): 0 for number in range(3)}
    served = set()
    for _ in range(3):
        answer = kit.ask(fetch_request(kit, offsets, max_bytes=SIZE), version=12)
        served |= {number for number, size in sizes(answer).items() if size}
    assert served == {0, 1, 2}


def test_the_broker_has_a_limit_of_its_own() -> None:
    with BrokerKit(settings=BrokerSettings(fetch_max_bytes=1024)) as kit:
        kit.make_topic("events")
        append(kit, *[make_batch(value=b"v" * 400)] * 5)
        assert 400 < len(fetch(kit).records or b"") <= 1024


def test_nothing_asked_for_is_answered_at_once(kit: BrokerKit) -> None:
    answer = kit.ask(FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=1 << 20))
    assert answer.responses == []


# Transactions


def test_readers_of_committed_records_stop_at_open_transactions(kit: BrokerKit) -> None:
    log = kit.log("events")
    append(kit, make_batch(2))
    log.append(make_batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    append(kit, make_batch())
    found = fetch(kit, is_committed=True)
    assert len(found.records or b"") == len(make_batch(2))
    assert (found.high_watermark, found.last_stable_offset) == (4, 2)
    assert found.aborted_transactions == []
    assert len(fetch(kit).records or b"") == len(make_batch(2)) + 2 * SIZE
    log.end_transaction(producer_id=7, producer_epoch=0, committed=False)
    found = fetch(kit, is_committed=True)
    assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()] == [
        (7, 2)
    ]
    assert found.last_stable_offset == 5


def test_an_open_transaction_does_not_wake_readers_of_committed_records(kit: BrokerKit) -> None:
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}, is_committed=True))
    plain = kit.begin(fetch_request(kit, {("events", 0): 0}))
    append(kit, make_batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    assert plain.done()
    assert not waiting.done()
    kit.log("events").end_transaction(producer_id=7, producer_epoch=0, committed=True)
    append(kit, make_batch())
    assert sizes(waiting.result())[0] > 2 * SIZE


# Long polls


def test_a_fetch_waits_for_an_append(kit: BrokerKit) -> None:
    offsets = {("events", number): 0 for number in range(3)}
    waiting = kit.begin(fetch_request(kit, offsets), version=12)
    assert not waiting.done()
    assert parked(kit) == (1, 3)
    produce(kit, partition=2)
    assert sizes(waiting.result()) == {0: 0, 1: 0, 2: SIZE}
    assert parked(kit) == (0, 0)


@pytest.mark.parametrize("count", [0, 1])
def test_too_little_comes_when_the_time_is_over(kit: BrokerKit, count: int) -> None:
    request = fetch_request(kit, {("events", 0): 0}, min_bytes=3 * SIZE, max_wait_ms=500)
    waiting = kit.begin(request, version=12)
    append(kit, *[make_batch()] * count)
    kit.advance(499)
    assert not waiting.done()
    kit.advance(1)
    assert sizes(waiting.result()) == {0: count * SIZE}
    assert parked(kit) == (0, 0)


def test_a_fetch_waits_until_there_is_enough(kit: BrokerKit) -> None:
    waiting = kit.begin(
        fetch_request(kit, {("events", 0): 0, ("events", 1): 0}, min_bytes=3 * SIZE)
    )
    append(kit, make_batch())
    append(kit, make_batch(), partition=1)
    assert not waiting.done()
    append(kit, make_batch())
    assert sum(sizes(waiting.result()).values()) == 3 * SIZE


def test_more_than_the_limit_is_not_waited_for(kit: BrokerKit) -> None:
    append(kit, make_batch(), make_batch())
    request = fetch_request(kit, {("events", 0): 0}, min_bytes=1 << 30, max_bytes=SIZE)
    assert kit.begin(request).done()


def test_a_roll_wakes_readers_behind_it(kit: BrokerKit) -> None:
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}, min_bytes=100 * SIZE))
    kit.log("events").roll()
    append(kit, make_batch())
    kit.log("events").roll()
    append(kit, make_batch())
    assert waiting.done()


def test_deleted_records_wake_their_readers(kit: BrokerKit) -> None:
    append(kit, make_batch(3))
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}, min_bytes=1 << 19), version=12)
    delete = DeleteRecordsRequest(
        [DeleteRecordsTopic("events", [DeleteRecordsPartition(0, 2)])], 1_000
    )
    assert kit.ask(delete).topics[0].partitions[0].low_watermark == 2
    (found,) = fetched(waiting.result()).values()
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_deleted_topic_wakes_its_readers(kit: BrokerKit) -> None:
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}), version=12)
    kit.ask(DeleteTopicsRequest(topic_names=["events"], timeout_ms=1_000), version=5)
    (found,) = fetched(waiting.result()).values()
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_lost_connection_leaves_nothing_behind(kit: BrokerKit) -> None:
    connection = kit.connect()
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}), connection=connection)
    kit.disconnect(connection)
    assert waiting.cancelled()
    assert parked(kit) == (0, 0)
    append(kit, make_batch())


# Reads off the loop


@pytest.fixture
def rolled(kit: BrokerKit) -> BrokerKit:
    """Partition 0 with a closed segment of two batches and one in the active segment."""
    append(kit, make_batch(), make_batch())
    kit.log("events").roll()
    append(kit, make_batch())
    return kit


def test_closed_segments_are_read_off_the_loop(rolled: BrokerKit) -> None:
    kit = rolled
    kit.hold_work(work=True)
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}))
    assert (waiting.done(), kit.work.count) == (False, 1)
    kit.release_work()
    assert sizes(waiting.result()) == {0: 2 * SIZE}
    assert kit.broker.background_reads.bytes == 0


def test_what_is_read_at_once_is_not_held_up_by_what_is_not(rolled: BrokerKit) -> None:
    kit = rolled
    append(kit, make_batch(), partition=1)
    kit.hold_work(work=True)
    offsets = {("events", 0): 0, ("events", 1): 0}
    assert sizes(kit.ask(fetch_request(kit, offsets))) == {0: 0, 1: SIZE}


def test_a_slow_read_is_remembered_for_the_next_fetch(rolled: BrokerKit) -> None:
    kit = rolled
    kit.hold_work(work=True)
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}, max_wait_ms=700))
    kit.advance(700)
    assert sizes(waiting.result()) == {0: 0}
    kit.release_work()
    assert kit.broker.background_reads.bytes == 2 * SIZE
    kit.hold_work(work=True)
    assert sizes(kit.ask(fetch_request(kit, {("events", 0): 0}))) == {0: 2 * SIZE}
    assert kit.broker.background_reads.bytes == 0


def test_a_read_that_fails_is_told(rolled: BrokerKit) -> None:
    kit = rolled
    kit.hold_work(work=True)
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}), version=12)
    kit.log("events").delete_records(1)
    kit.release_work()
    (found,) = fetched(waiting.result()).values()
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_another_readers_outcome_wakes_nobody_else(rolled: BrokerKit) -> None:
    kit = rolled
    kit.hold_work(work=True)
    first = kit.begin(fetch_request(kit, {("events", 0): 0}))
    second = kit.begin(fetch_request(kit, {("events", 0): 1}))
    kit.work.is_held = False
    kit.work.run_once()
    kit.work.is_held = True
    kit.settle()
    assert (first.done(), second.done()) == (True, False)
    kit.release_work()
    assert sizes(second.result()) == {0: SIZE}


def test_slow_reads_are_bounded(rolled: BrokerKit) -> None:
    kit = rolled
    for partition in (1, 2):
        append(kit, make_batch(), partition=partition)
        kit.log("events", partition).roll()
        append(kit, make_batch(), partition=partition)
    kit.hold_work(work=True)
    limit = 64 << 20
    request = fetch_request(kit, {("events", number): 0 for number in range(3)}, max_bytes=limit)
    for topic in request.topics:
        for one in topic.partitions:
            one.partition_max_bytes = limit
    waiting = kit.begin(request)
    assert kit.broker.background_reads.bytes <= limit
    assert kit.work.count == 1
    kit.release_work()
    assert sum(sizes(waiting.result()).values()) > 0


def test_duplicate_partitions_are_answered_twice(kit: BrokerKit) -> None:
    append(kit, make_batch())
    topic = FetchTopic(
        "events", partitions=[FetchPartition(0, partition_max_bytes=1 << 20) for _ in range(2)]
    )
    request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[topic])
    answer = kit.ask(request, version=12)
    assert [len(one.records or b"") for one in answer.responses[0].partitions] == [SIZE, SIZE]


def test_a_read_that_the_store_fails_is_noted_for_the_operator(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(kit, make_batch())
    assert fetch(kit, 99).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert kit.broker.failed_reads.find_recent() is None

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the bucket is missing")

    monkeypatch.setattr(type(kit.log("events")), "read", fail)
    assert fetch(kit).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert kit.broker.failed_reads.find_recent() == "the bucket is missing"


class _NoMemory:
    is_exceeded = True


def test_a_parked_fetch_is_answered_without_records_while_there_is_no_memory_for_responses(
    kit: BrokerKit,
) -> None:
    waiting = kit.begin(fetch_request(kit, {("events", 0): 0}, max_wait_ms=1_000))
    kit.broker.parked_fetches.response_memory = _NoMemory()
    produce(kit)
    assert sizes(waiting.result()) == {0: 0}
    assert sizes(kit.ask(fetch_request(kit, {("events", 0): 0}))) == {0: SIZE}


def test_fetches_that_are_complete_at_once_are_answered_in_turns(kit: BrokerKit) -> None:
    large = make_batch(1, value=bytes(900_000))
    waiting = [
        kit.begin(fetch_request(kit, {("events", 0): 0}, max_wait_ms=1_000)) for _ in range(30)
    ]
    produce(kit, batch=large)
    assert [sizes(one.result()) for one in waiting] == [{0: len(large)}] * 30
    assert parked(kit) == (0, 0)
