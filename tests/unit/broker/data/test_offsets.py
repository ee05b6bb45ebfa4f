"""ListOffsets and OffsetForLeaderEpoch."""

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, list_offsets
from tests.support.log_bench import NOW_MS, make_batch
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING = -1, -2, -3, -4, -5, -6


@pytest.fixture
def filled(kit: BrokerKit) -> BrokerKit:
    """Partition 0 with offsets 0 to 8, three at each of three times, and 2 deleted."""
    append(kit, make_batch(3, time=0), make_batch(3, time=20), make_batch(3, time=10))
    kit.log("events").delete_records(2)
    return kit


@pytest.mark.parametrize("version", range(1, 12))
def test_both_ends_are_told_in_every_version(filled: BrokerKit, version: int) -> None:
    latest = list_offsets(filled, LATEST, version=version)
    earliest = list_offsets(filled, EARLIEST, version=version)
    assert (latest.offset, earliest.offset) == (9, 2)
    assert latest.timestamp == earliest.timestamp == -1
    assert latest.leader_epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (0, 2, NOW_MS),
        (NOW_MS + 1, 3, NOW_MS + 20),
        (NOW_MS + 20, 3, NOW_MS + 20),
        (NOW_MS + 21, -1, -1),
        (MAX_TIMESTAMP, 3, NOW_MS + 20),
        (EARLIEST_LOCAL, 2, -1),
        (LATEST_TIERED, -1, -1),
        (PENDING, -1, -1),
    ],
)
def test_offsets_by_time_and_by_special_times(
    filled: BrokerKit, timestamp: int, offset: int, found: int
) -> None:
    answer = list_offsets(filled, timestamp)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found)
    assert answer.leader_epoch == (0 if offset >= 0 else -1)


@pytest.mark.parametrize(
    ("timestamp", "first"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING, 11), (-7, 12)],
)
def test_special_times_have_their_versions(filled: BrokerKit, timestamp: int, first: int) -> None:
    before = list_offsets(filled, timestamp, version=first - 1)
    assert before.error_code == ErrorCode.UNSUPPORTED_VERSION
    if first < 12:
        assert list_offsets(filled, timestamp, version=first).error_code == 0


def test_an_empty_partition(kit: BrokerKit) -> None:
    assert list_offsets(kit, LATEST).offset == list_offsets(kit, EARLIEST).offset == 0
    assert list_offsets(kit, MAX_TIMESTAMP).offset == -1


def test_readers_of_committed_records_see_the_last_stable_offset(filled: BrokerKit) -> None:
    kit = filled
    kit.log("events").append(
        make_batch(time=50, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    )
    assert list_offsets(kit, LATEST).offset == 10
    assert list_offsets(kit, LATEST, is_committed=True).offset == 9
    assert list_offsets(kit, NOW_MS + 50).offset == 9
    assert list_offsets(kit, NOW_MS + 50, is_committed=True).offset == -1


def test_the_epoch_is_that_of_the_record(kit: BrokerKit) -> None:
    kit.log("events").append(make_batch(3, time=0), leader_epoch=2)
    kit.log("events").append(make_batch(3, time=10), leader_epoch=5)
    assert list_offsets(kit, EARLIEST).leader_epoch == 2
    assert list_offsets(kit, NOW_MS).leader_epoch == 2
    assert list_offsets(kit, LATEST).leader_epoch == 5
    old = list_offsets(kit, LATEST, current_leader_epoch=2)
    assert old.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_what_is_not_there(filled: BrokerKit) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offsets(filled, LATEST, topic="missing").error_code == unknown
    assert list_offsets(filled, LATEST, partition=5).error_code == unknown


def test_a_partition_named_twice_is_refused(filled: BrokerKit) -> None:
    asked = [ListOffsetsPartition(0, -1, one) for one in (LATEST, EARLIEST)]
    answer = filled.ask(ListOffsetsRequest(-1, 0, [ListOffsetsTopic("events", asked)]))
    errors = {one.error_code for one in answer.topics[0].partitions}
    assert errors == {ErrorCode.INVALID_REQUEST}


def test_a_lookup_that_takes_too_long_is_given_up(filled: BrokerKit) -> None:
    kit = filled
    kit.hold_work(work=True)
    topics = [
        ListOffsetsTopic(
            "events", [ListOffsetsPartition(0, -1, NOW_MS), ListOffsetsPartition(1, -1, LATEST)]
        )
    ]
    waiting = kit.begin(ListOffsetsRequest(-1, 0, topics, 400), version=10)
    kit.advance(400)
    slow, fast = waiting.result().topics[0].partitions
    assert (slow.error_code, fast.error_code) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    kit.release_work()


# OffsetForLeaderEpoch


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.parametrize(
    ("epoch", "found"), [(1, (1, 0)), (2, (2, 3)), (4, (2, 3)), (5, (5, 6)), (6, (-1, -1))]
)
def test_where_an_epoch_ended(
    kit: BrokerKit, version: int, epoch: int, found: tuple[int, int]
) -> None:
    kit.log("events").append(make_batch(3), leader_epoch=2)
    kit.log("events").append(make_batch(3), leader_epoch=5)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic("events", [OffsetForLeaderPartition(0, -1, epoch)])]
    )
    answer = kit.ask(request, version=version).topics[0].partitions[0]
    assert (answer.error_code, (answer.leader_epoch, answer.end_offset)) == (0, found)


def test_epochs_of_what_is_not_there(kit: BrokerKit) -> None:
    asked = [
        OffsetForLeaderTopic("missing", [OffsetForLeaderPartition(0)]),
        OffsetForLeaderTopic(
            "events", [OffsetForLeaderPartition(9), OffsetForLeaderPartition(0, 3, 0)]
        ),
    ]
    missing, events = kit.ask(OffsetForLeaderEpochRequest(topics=asked)).topics
    assert missing.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown, ahead = events.partitions
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
