"""With rights on, a client without any gets nothing from any API but the words that say so."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.context import Principal
from varve.broker.dispatch import HANDLERS
from varve.broker.security.settings import SecuritySettings
from varve.wire import ApiKey, ErrorCode
from varve.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
)

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
        produce.ProduceRequest(
            acks=1,
            topic_data=[
                produce.TopicProduceData(
                    name=SECRET,
                    partition_data=[
                        produce.PartitionProduceData(index=0, records=memoryview(bytes(70)))
                    ],
                )
            ],
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.FETCH,
        12,
        fetch.FetchRequest(
            max_wait_ms=0,
            topics=[fetch.FetchTopic(topic=SECRET, partitions=[fetch.FetchPartition(partition=0)])],
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.LIST_OFFSETS,
        7,
        list_offsets.ListOffsetsRequest(
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=SECRET,
                    partitions=[list_offsets.ListOffsetsPartition(timestamp=-1)],
                )
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.METADATA,
        9,
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=SECRET)]),
        NO_TOPIC,
    ),
    (
        ApiKey.OFFSET_COMMIT,
        8,
        offset_commit.OffsetCommitRequest(
            group_id="g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=SECRET, partitions=[offset_commit.OffsetCommitRequestPartition()]
                )
            ],
        ),
        NO_GROUP,
    ),
    (
        ApiKey.OFFSET_FETCH,
        8,
        offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)]
        ),
        NO_GROUP,
    ),
    (
        ApiKey.FIND_COORDINATOR,
        3,
        find_coordinator.FindCoordinatorRequest(key="g", key_type=0),
        NO_GROUP,
    ),
    (
        ApiKey.FIND_COORDINATOR,
        3,
        find_coordinator.FindCoordinatorRequest(key="t", key_type=1),
        NO_TRANSACTION,
    ),
    (ApiKey.JOIN_GROUP, 5, join_group.JoinGroupRequest(group_id="g"), NO_GROUP),
    (ApiKey.HEARTBEAT, 4, heartbeat.HeartbeatRequest(group_id="g"), NO_GROUP),
    (ApiKey.LEAVE_GROUP, 4, leave_group.LeaveGroupRequest(group_id="g"), NO_GROUP),
    (ApiKey.SYNC_GROUP, 4, sync_group.SyncGroupRequest(group_id="g"), NO_GROUP),
    (ApiKey.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest(groups=["g"]), NO_GROUP),
    (ApiKey.LIST_GROUPS, 4, list_groups.ListGroupsRequest(), None),
    (
        ApiKey.CREATE_TOPICS,
        7,
        create_topics.CreateTopicsRequest(
            topics=[
                create_topics.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DELETE_TOPICS,
        5,
        delete_topics.DeleteTopicsRequest(topic_names=[SECRET]),
        NO_TOPIC,
    ),
    (
        ApiKey.DELETE_RECORDS,
        2,
        delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name=SECRET,
                    partitions=[delete_records.DeleteRecordsPartition(offset=-1)],
                )
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        4,
        init_producer_id.InitProducerIdRequest(transactional_id=None),
        NO_CLUSTER,
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        4,
        init_producer_id.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000),
        NO_TRANSACTION,
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic=SECRET, partitions=[offset_for_leader_epoch.OffsetForLeaderPartition()]
                )
            ]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(name=SECRET, partitions=[0])
            ],
        ),
        NO_TRANSACTION,
    ),
    (
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        add_offsets_to_txn.AddOffsetsToTxnRequest(transactional_id="t", group_id="g"),
        NO_TRANSACTION,
    ),
    (ApiKey.END_TXN, 3, end_txn.EndTxnRequest(transactional_id="t"), NO_TRANSACTION),
    (
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    name=SECRET,
                    partitions=[txn_offset_commit.TxnOffsetCommitRequestPartition()],
                )
            ],
        ),
        NO_TRANSACTION,
    ),
    (ApiKey.DESCRIBE_ACLS, 3, describe_acls.DescribeAclsRequest(), NO_CLUSTER),
    (
        ApiKey.CREATE_ACLS,
        3,
        create_acls.CreateAclsRequest(creations=[create_acls.AclCreation()]),
        NO_CLUSTER,
    ),
    (
        ApiKey.DELETE_ACLS,
        3,
        delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter()]),
        NO_CLUSTER,
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        describe_configs.DescribeConfigsRequest(
            resources=[describe_configs.DescribeConfigsResource(2, SECRET, None)]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        describe_configs.DescribeConfigsRequest(
            resources=[describe_configs.DescribeConfigsResource(4, "1", None)]
        ),
        NO_CLUSTER,
    ),
    (
        ApiKey.ALTER_CONFIGS,
        2,
        alter_configs.AlterConfigsRequest(
            resources=[alter_configs.AlterConfigsResource(2, SECRET, [])]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[incremental_alter_configs.AlterConfigsResource(4, "", [])]
        ),
        NO_CLUSTER,
    ),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, describe_log_dirs.DescribeLogDirsRequest(), NO_CLUSTER),
    (
        ApiKey.CREATE_PARTITIONS,
        3,
        create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name=SECRET, count=9)]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DELETE_GROUPS,
        2,
        delete_groups.DeleteGroupsRequest(groups_names=["g"]),
        NO_GROUP,
    ),
    (ApiKey.ELECT_LEADERS, 2, elect_leaders.ElectLeadersRequest(), NO_CLUSTER),
    (
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        list_partition_reassignments.ListPartitionReassignmentsRequest(),
        NO_CLUSTER,
    ),
    (
        ApiKey.OFFSET_DELETE,
        0,
        offset_delete.OffsetDeleteRequest(group_id="g"),
        NO_GROUP,
    ),
    (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        describe_client_quotas.DescribeClientQuotasRequest(),
        NO_CLUSTER,
    ),
    (
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        alter_client_quotas.AlterClientQuotasRequest(entries=[alter_client_quotas.EntryData()]),
        NO_CLUSTER,
    ),
    (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest(),
        NO_CLUSTER,
    ),
    (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[alter_user_scram_credentials.ScramCredentialDeletion("a", 1)]
        ),
        NO_CLUSTER,
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name=SECRET, partition_indexes=[0])]
        ),
        NO_TOPIC,
    ),
    (
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        describe_transactions.DescribeTransactionsRequest(transactional_ids=["t"]),
        NO_TRANSACTION,
    ),
    (ApiKey.LIST_TRANSACTIONS, 1, list_transactions.ListTransactionsRequest(), None),
    (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(group_id="g"),
        NO_GROUP,
    ),
    (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        0,
        consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=["g"]),
        NO_GROUP,
    ),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(name=SECRET)]
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
    if key not in HANDLERS:
        pytest.skip("not served")
    answer = kit.ask(request_, version=version, principal=MALLORY)
    codes = {ErrorCode(one) for one in _codes(answer)} - {ErrorCode.NONE}
    assert codes == (set() if expected is None else {expected})
    assert [topic.name for topic in kit.store.topics()] == [SECRET]
    assert kit.log(SECRET).end_offset == 0


def test_lists_of_everything_are_empty_for_a_client_without_rights(kit: BrokerKit) -> None:
    found = kit.ask(metadata.MetadataRequest(topics=None), version=9, principal=MALLORY)
    assert found.topics == []
    asked = describe_topic_partitions.DescribeTopicPartitionsRequest()
    assert kit.ask(asked, principal=MALLORY).topics == []
    by_id = metadata.MetadataRequestTopic(topic_id=kit.topic(SECRET).id, name=None)
    found = kit.ask(metadata.MetadataRequest(topics=[by_id]), version=12, principal=MALLORY)
    assert [one.name for one in found.topics] == [None]
    assert found.topics[0].error_code in (NO_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID)


def test_every_api_was_asked() -> None:
    assert set(HANDLERS) <= {one[0] for one in ASKED} | OPEN
