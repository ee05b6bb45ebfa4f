"""DescribeQuorum of a single broker, and client metrics, of which none are requested."""

from uuid import UUID

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.settings import BrokerSettings
from varve.wire import NO_ID, ErrorCode
from varve.wire.messages.cluster import (
    DescribeQuorumRequest,
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
    QuorumPartitionIndex,
    QuorumTopic,
)

SOME_ID = UUID(int=77)


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


def test_a_client_subscribes_to_no_metrics_and_keeps_its_id(kit: BrokerKit) -> None:
    first = kit.ask(GetTelemetrySubscriptionsRequest(NO_ID))
    assert (first.error_code, first.requested_metrics) == (ErrorCode.NONE, [])
    assert first.client_instance_id != NO_ID
    again = kit.ask(GetTelemetrySubscriptionsRequest(first.client_instance_id))
    assert again.client_instance_id == first.client_instance_id
    pushed = PushTelemetryRequest(again.client_instance_id, again.subscription_id, metrics=b"m")
    assert kit.ask(pushed).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("push", "code"),
    [
        (PushTelemetryRequest(NO_ID, 1), ErrorCode.INVALID_REQUEST),
        (PushTelemetryRequest(SOME_ID, 2), ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        (
            PushTelemetryRequest(SOME_ID, 1, compression_type=9),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ),
        (PushTelemetryRequest(SOME_ID, 1, metrics=b"too long"), ErrorCode.TELEMETRY_TOO_LARGE),
    ],
)
def test_a_push_that_nobody_asked_for_is_refused(
    push: PushTelemetryRequest, code: ErrorCode
) -> None:
    with BrokerKit(settings=BrokerSettings(telemetry_max_bytes=7)) as kit:
        assert kit.ask(push).error_code == code
