"""DescribeQuorum of a single broker."""

import pytest

from tests.support.broker_kit import BrokerKit
from varve.wire import ErrorCode
from varve.wire.messages.cluster import (
    DescribeQuorumRequest,
    QuorumPartitionIndex,
    QuorumTopic,
)


@pytest.mark.parametrize("version", range(3))
def test_the_broker_is_a_quorum_of_its_own(kit: BrokerKit, version: int) -> None:
    topic = QuorumTopic("__cluster_metadata", [QuorumPartitionIndex(0), QuorumPartitionIndex(1)])
    answer = kit.ask(DescribeQuorumRequest([topic]), version=version)
    quorum, other = answer.topics[0].partitions
    assert (quorum.error_code, quorum.leader_id) == (ErrorCode.NONE, 1)
    assert [voter.replica_id for voter in quorum.current_voters] == [1]
    assert quorum.observers == []
    assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version == 2:
        (node,) = answer.nodes
        assert (node.node_id, node.listeners[0].port) == (1, 9092)


def test_topics_have_no_quorum(kit: BrokerKit) -> None:
    topic = QuorumTopic("events", [QuorumPartitionIndex(0)])
    answer = kit.ask(DescribeQuorumRequest([topic]))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
