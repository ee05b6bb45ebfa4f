"""WriteTxnMarkers ends transactions in single partitions, as `kafka-transactions abort` needs."""

from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.transaction_bench import GROUP, QUICK, TransactionBench
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode
from varve.wire.messages.state_records import OFFSETS_TOPIC
from varve.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def bench() -> Iterator[TransactionBench]:
    with BrokerKit(transactions=QUICK) as kit:
        kit.make_topic("a", partitions=2)
        yield TransactionBench(kit)


def _write(
    bench: TransactionBench,
    producer_id: int,
    epoch: int,
    *partitions: TopicPartition,
    committed: bool = False,
    coordinator_epoch: int = 0,
) -> list[int]:
    topics = [
        WritableTxnMarkerTopic(partition.topic, [partition.partition]) for partition in partitions
    ]
    marker = WritableTxnMarker(producer_id, epoch, committed, topics, coordinator_epoch)
    (result,) = bench.kit.ask(WriteTxnMarkersRequest([marker])).markers
    assert result.producer_id == producer_id
    return [topic.partitions[0].error_code for topic in result.topics]


def test_a_marker_ends_the_transaction_in_its_partition_alone(bench: TransactionBench) -> None:
    producer = bench.start("t")
    assert bench.add(producer, A, B) == ErrorCode.NONE
    for partition in (A, B):
        assert bench.produce(producer, partition, b"x") == ErrorCode.NONE
    assert _write(bench, producer.producer_id, producer.epoch, A) == [ErrorCode.NONE]
    log = bench.log(A)
    assert log.last_stable_offset == log.end_offset == log.recovery_point == 2
    assert bench.read(A) == []
    assert bench.log(B).last_stable_offset == 0


def test_each_partition_has_its_own_error(bench: TransactionBench) -> None:
    missing = TopicPartition("a", 9), TopicPartition("none", 0)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _write(bench, 7, 0, A, *missing) == [ErrorCode.NONE, unknown, unknown]
    assert _write(bench, 7, 5, A, coordinator_epoch=3) == [ErrorCode.NONE]
    assert _write(bench, 7, 4, A, coordinator_epoch=3) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert _write(bench, 7, 5, A) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert _write(bench, -1, 5, A) == [ErrorCode.INVALID_REQUEST]


def _is_ended(bench: TransactionBench, group: str, committed: bool) -> bool:
    """Whether no offset of the group waits, and those of a committed transaction count."""
    offsets = bench.kit.broker.groups.offsets
    is_pending = any(offsets.is_pending(group, partition) for partition in (A, B))
    expected = 5 if committed else None
    found = [bench.committed(partition, group) for partition in (A, B)]
    return not is_pending and found == [expected, expected]


@pytest.mark.parametrize("committed", [False, True])
def test_offsets_of_every_group_end_with_the_transaction(
    bench: TransactionBench, committed: bool
) -> None:
    producer = bench.start("t")
    names = [f"g{number}" for number in range(10)]
    for group in names:
        for partition in (A, B):
            assert bench.commit_offset(producer, partition, 5, group) == ErrorCode.NONE
    assert bench.end(producer, is_commit=committed) == ErrorCode.NONE
    assert [group for group in names if not _is_ended(bench, group, committed)] == []


@pytest.mark.parametrize("committed", [False, True])
def test_a_marker_ends_the_offsets_of_every_group_of_its_partition(
    bench: TransactionBench, committed: bool
) -> None:
    producer = bench.start("t")
    log = bench.kit.broker.groups.log.topic
    names = [f"g{number}" for number in range(20)]
    for group in names:
        for partition in (A, B):
            assert bench.commit_offset(producer, partition, 5, group) == ErrorCode.NONE
    mine = log.partition_of(names[0])
    ended = [group for group in names if log.partition_of(group) == mine]
    assert 1 < len(ended) < len(names)
    ids = producer.producer_id, producer.epoch
    assert _write(bench, *ids, mine, committed=committed) == [ErrorCode.NONE]
    assert [group for group in names if _is_ended(bench, group, committed)] == ended


@pytest.mark.parametrize("committed", [False, True])
def test_offsets_of_the_transaction_end_with_the_marker_of_their_partition(
    bench: TransactionBench, committed: bool
) -> None:
    producer = bench.start("t")
    assert bench.commit_offset(producer, A, 5) == ErrorCode.NONE
    groups = bench.kit.broker.groups
    mine = groups.log.topic.partition_of(GROUP)
    other = TopicPartition(OFFSETS_TOPIC, (mine.partition + 1) % 8)
    ids = producer.producer_id, producer.epoch
    assert _write(bench, *ids, other, committed=committed) == [ErrorCode.NONE]
    assert groups.offsets.is_pending(GROUP, A)
    assert _write(bench, *ids, mine, committed=committed) == [ErrorCode.NONE]
    assert not groups.offsets.is_pending(GROUP, A)
    assert bench.committed(A) == (5 if committed else None)
