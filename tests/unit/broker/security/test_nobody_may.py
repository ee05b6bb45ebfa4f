"""With rights on, a client without any gets nothing from any API but the words that say so."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.handlers import HANDLERS
from varve.broker.request import Principal
from varve.broker.settings import SecuritySettings
from varve.wire import ApiKey, ErrorCode
from varve.wire.messages import cluster as cluster_messages
from varve.wire.messages import data as data_messages
from varve.wire.messages import groups as groups_messages
from varve.wire.messages import security as security_messages
from varve.wire.messages import topics as topics_messages
from varve.wire.messages import transactions as transactions_messages

MALLORY = Principal("User", "mallory")
SECRET = "secret"
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

ASKED: list[tuple[ApiKey, int, Any, ErrorCode | None]] = [
    (
        ApiKey.PRODUCE,
        9,
        data_messages.ProduceRequest(
            acks=1,
            topic_data=[
                data_messages.TopicProduceData(
                    name=SECRET,
                    partition_data=[
                        data_messages.PartitionProduceData(index=0, records=memoryview(bytes(70)))
                    ],
                )
            ],
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.FETCH,
        12,
        data_messages.FetchRequest(
            max_wait_ms=0,
            topics=[
                data_messages.FetchTopic(
                    topic=SECRET, partitions=[data_messages.FetchPartition(partition=0)]
                )
            ],
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.LIST_OFFSETS,
        7,
        data_messages.ListOffsetsRequest(
            topics=[
                data_messages.ListOffsetsTopic(
                    name=SECRET,
                    partitions=[data_messages.ListOffsetsPartition(timestamp=-1)],
                )
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.METADATA,
        9,
        cluster_messages.MetadataRequest(
            topics=[cluster_messages.MetadataRequestTopic(name=SECRET)]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.OFFSET_COMMIT,
        8,
        groups_messages.OffsetCommitRequest(
            group_id="g",
            topics=[
                groups_messages.OffsetCommitRequestTopic(
                    name=SECRET, partitions=[groups_messages.OffsetCommitRequestPartition()]
                )
            ],
        ),
        NO_GROUP,
    ),
    (
        ApiKey.OFFSET_FETCH,
        8,
        groups_messages.OffsetFetchRequest(
            groups=[groups_messages.OffsetFetchRequestGroup(group_id="g", topics=None)]
        ),
        NO_GROUP,
    ),
    (
        ApiKey.FIND_COORDINATOR,
        3,
        cluster_messages.FindCoordinatorRequest(key="g", key_type=0),
        NO_GROUP,
    ),
    (
        ApiKey.FIND_COORDINATOR,
        3,
        cluster_messages.FindCoordinatorRequest(key="t", key_type=1),
        NO_TRANSACTION,
    ),
    (ApiKey.JOIN_GROUP, 5, groups_messages.JoinGroupRequest(group_id="g"), NO_GROUP),
    (ApiKey.HEARTBEAT, 4, groups_messages.HeartbeatRequest(group_id="g"), NO_GROUP),
    (ApiKey.LEAVE_GROUP, 4, groups_messages.LeaveGroupRequest(group_id="g"), NO_GROUP),
    (ApiKey.SYNC_GROUP, 4, groups_messages.SyncGroupRequest(group_id="g"), NO_GROUP),
    (ApiKey.DESCRIBE_GROUPS, 5, groups_messages.DescribeGroupsRequest(groups=["g"]), NO_GROUP),
    (ApiKey.LIST_GROUPS, 4, groups_messages.ListGroupsRequest(), None),
    (
        ApiKey.CREATE_TOPICS,
        7,
        topics_messages.CreateTopicsRequest(
            topics=[
                topics_messages.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DELETE_TOPICS,
        5,
        topics_messages.DeleteTopicsRequest(topic_names=[SECRET]),
        NO_TOPIC,
    ),
    (
        ApiKey.DELETE_RECORDS,
        2,
        data_messages.DeleteRecordsRequest(
            topics=[
                data_messages.DeleteRecordsTopic(
                    name=SECRET,
                    partitions=[data_messages.DeleteRecordsPartition(offset=-1)],
                )
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactions_messages.InitProducerIdRequest(transactional_id=None),
        NO_CLUSTER,
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactions_messages.InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=1000
        ),
        NO_TRANSACTION,
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        data_messages.OffsetForLeaderEpochRequest(
            topics=[
                data_messages.OffsetForLeaderTopic(
                    topic=SECRET, partitions=[data_messages.OffsetForLeaderPartition()]
                )
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        transactions_messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_topics=[
                transactions_messages.AddPartitionsToTxnTopic(name=SECRET, partitions=[0])
            ],
        ),
        NO_TRANSACTION,
    ),
    (
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        transactions_messages.AddOffsetsToTxnRequest(transactional_id="t", group_id="g"),
        NO_TRANSACTION,
    ),
    (ApiKey.END_TXN, 3, transactions_messages.EndTxnRequest(transactional_id="t"), NO_TRANSACTION),
    (
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        transactions_messages.TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            topics=[
                transactions_messages.TxnOffsetCommitRequestTopic(
                    name=SECRET,
                    partitions=[transactions_messages.TxnOffsetCommitRequestPartition()],
                )
            ],
        ),
        NO_TRANSACTION,
    ),
    (ApiKey.DESCRIBE_ACLS, 3, security_messages.DescribeAclsRequest(), NO_CLUSTER),
    (
        ApiKey.CREATE_ACLS,
        3,
        security_messages.CreateAclsRequest(creations=[security_messages.AclCreation()]),
        NO_CLUSTER,
    ),
    (
        ApiKey.DELETE_ACLS,
        3,
        security_messages.DeleteAclsRequest(filters=[security_messages.AclBindingFilter()]),
        NO_CLUSTER,
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        topics_messages.DescribeConfigsRequest(
            resources=[topics_messages.DescribeConfigsResource(2, SECRET, None)]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        topics_messages.DescribeConfigsRequest(
            resources=[topics_messages.DescribeConfigsResource(4, "1", None)]
        ),
        NO_CLUSTER,
    ),
    (
        ApiKey.ALTER_CONFIGS,
        2,
        topics_messages.AlterConfigsRequest(
            resources=[topics_messages.AlterConfigsResource(2, SECRET, [])]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        topics_messages.IncrementalAlterConfigsRequest(
            resources=[topics_messages.IncrementalAlterConfigsResource(4, "", [])]
        ),
        NO_CLUSTER,
    ),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, cluster_messages.DescribeLogDirsRequest(), NO_CLUSTER),
    (
        ApiKey.CREATE_PARTITIONS,
        3,
        topics_messages.CreatePartitionsRequest(
            topics=[topics_messages.CreatePartitionsTopic(name=SECRET, count=9)]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DELETE_GROUPS,
        2,
        groups_messages.DeleteGroupsRequest(groups_names=["g"]),
        NO_GROUP,
    ),
    (ApiKey.ELECT_LEADERS, 2, cluster_messages.ElectLeadersRequest(), NO_CLUSTER),
    (
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        cluster_messages.ListPartitionReassignmentsRequest(),
        NO_CLUSTER,
    ),
    (
        ApiKey.OFFSET_DELETE,
        0,
        groups_messages.OffsetDeleteRequest(group_id="g"),
        NO_GROUP,
    ),
    (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        security_messages.DescribeClientQuotasRequest(),
        NO_CLUSTER,
    ),
    (
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        security_messages.AlterClientQuotasRequest(entries=[security_messages.AlteredQuotaEntry()]),
        NO_CLUSTER,
    ),
    (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        security_messages.DescribeUserScramCredentialsRequest(),
        NO_CLUSTER,
    ),
    (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        security_messages.AlterUserScramCredentialsRequest(
            deletions=[security_messages.ScramCredentialDeletion("a", 1)]
        ),
        NO_CLUSTER,
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        data_messages.DescribeProducersRequest(
            topics=[data_messages.DescribeProducersTopic(name=SECRET, partition_indexes=[0])]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        transactions_messages.DescribeTransactionsRequest(transactional_ids=["t"]),
        NO_TRANSACTION,
    ),
    (ApiKey.LIST_TRANSACTIONS, 1, transactions_messages.ListTransactionsRequest(), None),
    (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        groups_messages.ConsumerGroupHeartbeatRequest(group_id="g"),
        NO_GROUP,
    ),
    (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        0,
        groups_messages.ConsumerGroupDescribeRequest(group_ids=["g"]),
        NO_GROUP,
    ),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        cluster_messages.DescribeTopicPartitionsRequest(
            topics=[cluster_messages.DescribeTopicPartitionsTopic(name=SECRET)]
        ),
        NO_TOPIC,
    ),
]
# Kafka lets everybody see versions and the addresses of the brokers.
OPEN = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER}


def _codes(value: Any) -> Iterator[int]:
    if is_dataclass(value):
        for one in fields(value):
            found = getattr(value, one.name)
            if one.name.endswith("error_code"):
                yield found
            yield from _codes(found)
    elif isinstance(value, list):
        for item in value:
            yield from _codes(item)


@pytest.fixture(scope="module")
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(security=SecuritySettings(authorizer_enable=True)) as kit:
        kit.make_topic(SECRET)
        yield kit


@pytest.mark.parametrize(
    ("key", "version", "request_", "expected"), ASKED, ids=[one[0].name for one in ASKED]
)
def test_a_client_without_rights_is_refused(
    kit: BrokerKit, key: ApiKey, version: int, request_: Any, expected: ErrorCode | None
) -> None:
    answer = kit.ask(request_, version=version, principal=MALLORY)
    codes = {ErrorCode(one) for one in _codes(answer)} - {ErrorCode.NONE}
    assert codes == (set() if expected is None else {expected})
    assert [topic.name for topic in kit.store.topics()] == [SECRET]
    assert kit.log(SECRET).end_offset == 0


def test_lists_of_everything_are_empty_for_a_client_without_rights(kit: BrokerKit) -> None:
    found = kit.ask(cluster_messages.MetadataRequest(topics=None), version=9, principal=MALLORY)
    assert found.topics == []
    asked = cluster_messages.DescribeTopicPartitionsRequest()
    assert kit.ask(asked, principal=MALLORY).topics == []
    by_id = cluster_messages.MetadataRequestTopic(topic_id=kit.topic(SECRET).id, name=None)
    found = kit.ask(cluster_messages.MetadataRequest(topics=[by_id]), version=12, principal=MALLORY)
    assert [one.name for one in found.topics] == [None]
    assert found.topics[0].error_code in (NO_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID)


def test_every_api_was_asked() -> None:
    assert set(HANDLERS) == {one[0] for one in ASKED} | OPEN
