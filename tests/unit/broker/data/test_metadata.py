"""ApiVersions, Metadata, DescribeTopicPartitions and DescribeCluster."""

from typing import Any
from uuid import UUID

import pytest

from tests.support.broker_kit import LISTENER, BrokerKit
from tests.support.rights import all_but
from varve.broker.broker import Endpoint
from varve.broker.handlers import HANDLERS
from varve.broker.request import CLUSTER_NAME, ConnectionContext, Operation, ResourceType
from varve.broker.settings import BrokerSettings
from varve.foundation.errors import InvalidRequest
from varve.wire import NO_ID, ApiKey, ErrorCode
from varve.wire.messages.cluster import (
    ApiVersionsRequest,
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from varve.wire.messages.state_records import OFFSETS_TOPIC

TOPIC = ResourceType.TOPIC


def named(*names: str, creates: bool = True, **more: Any) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics, creates, **more)


@pytest.mark.parametrize("version", range(14))
def test_a_topic_is_told_in_every_version(kit: BrokerKit, version: int) -> None:
    answer = kit.ask(named("events"), version=version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "localhost", 9092)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "events")
    assert [one.partition_index for one in topic.partitions] == [0, 1, 2]
    assert {one.leader_id for one in topic.partitions} == {1}
    assert topic.partitions[0].isr_nodes == topic.partitions[0].replica_nodes == [1]
    assert topic.topic_id == (kit.topic("events").id if version >= 10 else NO_ID)
    assert topic.partitions[0].leader_epoch == (0 if version >= 7 else -1)


def test_the_client_is_sent_to_the_listener_it_came_through(kit: BrokerKit) -> None:
    kit.broker.endpoints["INSIDE"] = Endpoint("INSIDE", "10.0.0.7", 9093)
    inside = ConnectionContext(77, "INSIDE", "10.0.0.8")
    assert kit.ask(named(), connection=inside).brokers[0].port == 9093
    assert kit.connection.listener == LISTENER
    assert kit.ask(named()).brokers[0].port == 9092


@pytest.mark.parametrize(
    ("version", "topics", "count"), [(0, [], 2), (1, None, 2), (1, [], 0), (12, None, 2)]
)
def test_all_topics_or_none(
    kit: BrokerKit, version: int, topics: list[MetadataRequestTopic] | None, count: int
) -> None:
    kit.make_topic("more")
    assert len(kit.ask(MetadataRequest(topics), version=version).topics) == count


def test_a_topic_is_found_by_its_id(kit: BrokerKit) -> None:
    known, unknown = kit.topic("events").id, UUID(int=5)
    asked = [MetadataRequestTopic(known, None), MetadataRequestTopic(unknown, None)]
    found, missing = kit.ask(MetadataRequest(asked), version=12).topics
    assert (found.error_code, found.name) == (0, "events")
    assert (missing.error_code, missing.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert missing.topic_id == unknown
    (refused, _) = kit.ask(MetadataRequest(asked), version=11).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_a_missing_topic_is_made_if_broker_and_client_want_it(kit: BrokerKit) -> None:
    assert kit.ask(named("new")).topics[0].error_code == 0
    assert kit.topic("new").topic.partition_count == 1
    unwanted = kit.ask(named("other", creates=False), version=4).topics[0]
    assert unwanted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert kit.broker.topics.find("other") is None
    old = kit.ask(named("old", creates=False), version=3).topics[0]
    assert old.error_code == 0  # versions below 4 cannot say that they do not want it


def test_the_broker_may_refuse_to_make_topics() -> None:
    settings = BrokerSettings(auto_create_topics_enable=False, num_partitions=4)
    with BrokerKit(settings=settings) as kit:
        answer = kit.ask(named("new"))
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (OFFSETS_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_some_names_are_never_made(kit: BrokerKit, name: str, error: ErrorCode) -> None:
    assert kit.ask(named(name)).topics[0].error_code == error


def test_a_name_like_that_of_another_topic_is_not_made(kit: BrokerKit) -> None:
    kit.make_topic("a.b")
    refused = kit.ask(named("a_b")).topics[0]
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert kit.broker.topics.find("a_b") is None


def test_rights_decide_what_is_told_and_made(kit: BrokerKit) -> None:
    kit.make_topic("secret")
    kit.broker.authorizer = all_but(
        (Operation.DESCRIBE, TOPIC, "secret"),
        (Operation.CREATE, TOPIC, "new"),
        (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),
    )
    assert [one.name for one in kit.ask(MetadataRequest(None)).topics] == ["events"]
    secret, new = kit.ask(named("secret", "new")).topics
    assert secret.error_code == new.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (secret.topic_id, secret.partitions) == (NO_ID, [])
    by_id = MetadataRequest([MetadataRequestTopic(kit.topic("secret").id, None)])
    assert kit.ask(by_id).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_operations_are_told_to_those_who_ask(kit: BrokerKit) -> None:
    kit.broker.authorizer = all_but((Operation.WRITE, TOPIC, "events"))
    answer = kit.ask(named("events", include_topic_authorized_operations=True))
    operations = answer.topics[0].topic_authorized_operations
    assert operations & 1 << Operation.READ
    assert not operations & 1 << Operation.WRITE
    answer = kit.ask(named("events"))
    assert answer.topics[0].topic_authorized_operations == -(1 << 31)
    whole = named(include_cluster_authorized_operations=True)
    assert kit.ask(whole, version=8).cluster_authorized_operations & 1 << Operation.ALTER


def test_topics_are_described_page_by_page(kit: BrokerKit) -> None:
    kit.make_topic("more", partitions=2)
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        request = DescribeTopicPartitionsRequest([], 2, cursor)
        answer = kit.ask(request)
        for topic in answer.topics:
            found += [(topic.name, one.partition_index) for one in topic.partitions]
        cursor, pages = answer.next_cursor, pages + 1
    assert found == [("events", 0), ("events", 1), ("events", 2), ("more", 0), ("more", 1)]
    assert pages == 3


def test_described_topics_have_lists_and_errors(kit: BrokerKit) -> None:
    kit.broker.authorizer = all_but((Operation.DESCRIBE, TOPIC, "secret"))
    names = [
        DescribeTopicPartitionsTopic("missing"),
        DescribeTopicPartitionsTopic("events"),
        DescribeTopicPartitionsTopic("secret"),
    ]
    events, missing, secret = kit.ask(DescribeTopicPartitionsRequest(names)).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert secret.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert events.partitions[0].eligible_leader_replicas == []
    assert events.partitions[0].last_known_elr == []
    with pytest.raises(InvalidRequest, match="cursor"):
        kit.ask(DescribeTopicPartitionsRequest([], 10, Cursor("events", -1)))


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_one_broker(kit: BrokerKit, version: int) -> None:
    answer = kit.ask(
        DescribeClusterRequest(include_cluster_authorized_operations=True), version=version
    )
    assert answer.cluster_id == kit.store.cluster_id != ""
    assert (answer.controller_id, answer.brokers[0].port) == (1, 9092)
    assert answer.cluster_authorized_operations & 1 << Operation.CREATE


@pytest.mark.parametrize(
    ("kind", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_controllers_are_not_here(kit: BrokerKit, kind: int, error: ErrorCode) -> None:
    assert kit.ask(DescribeClusterRequest(endpoint_type=kind)).error_code == error


def test_a_topic_named_often_is_described_once(kit: BrokerKit) -> None:
    answer = kit.ask(named("events", "gone", "events", "gone", creates=False), version=12)
    assert [topic.name for topic in answer.topics] == ["events", "gone"]
    by_id = MetadataRequestTopic(topic_id=kit.topic("events").id, name=None)
    answer = kit.ask(MetadataRequest([by_id] * 3), version=12)
    assert [topic.name for topic in answer.topics] == ["events"]


@pytest.mark.parametrize("version", range(5))
def test_what_is_served_is_told(kit: BrokerKit, version: int) -> None:
    answer = kit.ask(ApiVersionsRequest("client", "1.0"), version=version)
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert set(told) == {*HANDLERS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert told[ApiKey.PRODUCE] == (0, 13)  # older librdkafka would not compress otherwise
    assert told[ApiKey.FETCH] == (4, 18)
    assert answer.error_code == 0
    assert answer.finalized_features == []


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n"])
def test_a_name_that_breaks_the_rule_is_refused(kit: BrokerKit, name: str) -> None:
    answer = kit.ask(ApiVersionsRequest(name, "1"), version=3)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
