"""DescribeLogDirs, ElectLeaders and ListPartitionReassignments."""

from pathlib import Path

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.rights import only
from varve.foundation.errors import DirectoryOffline
from varve.wire import ErrorCode
from varve.wire.messages.cluster import (
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    TopicPartitionIndexes,
)


@pytest.mark.parametrize("version", range(1, 5))
def test_a_directory_tells_the_bytes_of_its_partitions(kit: BrokerKit, version: int) -> None:
    kit.topic("events").topic.append(value="x" * 100, partition=1)
    [found] = kit.ask(DescribeLogDirsRequest(topics=None), version=version).results
    assert (found.error_code, found.log_dir, found.total_bytes) == (ErrorCode.NONE, "data", -1)
    [topic] = found.topics
    sizes = {one.partition_index: one.partition_size for one in topic.partitions}
    assert sizes[0] == 0
    assert 100 < sizes[1] < 300
    assert {(one.offset_lag, one.is_future_key) for one in topic.partitions} == {(0, False)}


def test_only_what_is_asked_for_is_told(kit: BrokerKit) -> None:
    wanted = [TopicPartitionIndexes(topic="events", partitions=[1, 7])]
    [found] = kit.ask(DescribeLogDirsRequest(topics=wanted)).results
    assert [[one.partition_index for one in topic.partitions] for topic in found.topics] == [[1]]


def test_a_real_disk_tells_its_room(tmp_path: Path) -> None:
    with BrokerKit(tmp_path / "data") as kit:
        [found] = kit.ask(DescribeLogDirsRequest(topics=None)).results
        assert found.log_dir == str(tmp_path / "data")
        assert found.total_bytes >= found.usable_bytes > 0


def test_a_directory_that_is_offline_says_so(kit: BrokerKit) -> None:
    failure = DirectoryOffline("data: Input/output error; repair the disk and reopen the store")
    kit.store.directories[0].health.fail(failure)
    [found] = kit.ask(DescribeLogDirsRequest(topics=None)).results
    assert (found.error_code, found.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    kit.store.abandon()


@pytest.mark.parametrize("version", range(3))
def test_no_election_is_needed(kit: BrokerKit, version: int) -> None:
    wanted = [TopicPartitionIndexes(topic="events", partitions=[1, 3])]
    answer = kit.ask(ElectLeadersRequest(topic_partitions=wanted), version=version)
    [result] = answer.replica_election_results
    codes = [one.error_code for one in result.partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    everything = kit.ask(ElectLeadersRequest(topic_partitions=None), version=version)
    assert everything.replica_election_results == []


def test_nothing_moves(kit: BrokerKit) -> None:
    answer = kit.ask(ListPartitionReassignmentsRequest(topics=None))
    assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])


def test_the_cluster_is_seen_and_altered_by_right(kit: BrokerKit) -> None:
    kit.broker.authorizer = only()
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    directories = kit.ask(DescribeLogDirsRequest(topics=None))
    assert (directories.error_code, directories.results) == (denied, [])
    wanted = [TopicPartitionIndexes(topic="events", partitions=[1])]
    election = kit.ask(ElectLeadersRequest(topic_partitions=wanted))
    assert election.error_code == denied
    assert election.replica_election_results[0].partition_result[0].error_code == denied
    assert kit.ask(ListPartitionReassignmentsRequest(topics=None)).error_code == denied
