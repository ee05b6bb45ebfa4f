"""The APIs that varve knows: their keys, their messages, and the versions it serves.

Invariant  Produce is told to clients from version 0 on, though served from 3: older librdkafka
           would silently send uncompressed data otherwise, and Kafka does the same.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from varve.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from varve.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from varve.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from varve.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from varve.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from varve.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from varve.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from varve.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from varve.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from varve.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from varve.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from varve.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from varve.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from varve.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from varve.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from varve.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from varve.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from varve.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from varve.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from varve.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from varve.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from varve.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from varve.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from varve.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from varve.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from varve.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from varve.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from varve.wire.messages.fetch import FetchRequest, FetchResponse
from varve.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from varve.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from varve.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from varve.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from varve.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from varve.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from varve.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from varve.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from varve.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from varve.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from varve.wire.messages.metadata import MetadataRequest, MetadataResponse
from varve.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from varve.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from varve.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from varve.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from varve.wire.messages.produce import ProduceRequest, ProduceResponse
from varve.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from varve.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from varve.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from varve.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from varve.wire.schema import Message, Versions


class ApiKey(IntEnum):
    """Keys of requests, by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request and its response, in the versions that are served."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    versions: Versions

    @property
    def first_told(self) -> int:
        """The first version that clients are told of."""
        return 0 if self.key is ApiKey.PRODUCE else self.versions.first

    def is_flexible(self, version: int) -> bool:
        return version >= self.request.FLEXIBLE


_ALL: Final = (
    Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse, Versions(3, 13)),
    Api(ApiKey.FETCH, FetchRequest, FetchResponse, Versions(4, 17)),
    Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse, Versions(1, 11)),
    Api(ApiKey.METADATA, MetadataRequest, MetadataResponse, Versions(0, 13)),
    Api(ApiKey.OFFSET_COMMIT, OffsetCommitRequest, OffsetCommitResponse, Versions(2, 10)),
    Api(ApiKey.OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse, Versions(1, 10)),
    Api(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse, Versions(0, 6)),
    Api(ApiKey.JOIN_GROUP, JoinGroupRequest, JoinGroupResponse, Versions(0, 9)),
    Api(ApiKey.HEARTBEAT, HeartbeatRequest, HeartbeatResponse, Versions(0, 4)),
    Api(ApiKey.LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse, Versions(0, 5)),
    Api(ApiKey.SYNC_GROUP, SyncGroupRequest, SyncGroupResponse, Versions(0, 5)),
    Api(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest, DescribeGroupsResponse, Versions(0, 6)),
    Api(ApiKey.LIST_GROUPS, ListGroupsRequest, ListGroupsResponse, Versions(0, 5)),
    Api(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse, Versions(0, 1)),
    Api(ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse, Versions(0, 4)),
    Api(ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse, Versions(2, 7)),
    Api(ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse, Versions(1, 6)),
    Api(ApiKey.DELETE_RECORDS, DeleteRecordsRequest, DeleteRecordsResponse, Versions(0, 2)),
    Api(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse, Versions(0, 5)),
    Api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        Versions(2, 4),
    ),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        Versions(0, 3),
    ),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, Versions(0, 4)),
    Api(ApiKey.END_TXN, EndTxnRequest, EndTxnResponse, Versions(0, 4)),
    Api(ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest, TxnOffsetCommitResponse, Versions(0, 4)),
    Api(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse, Versions(1, 3)),
    Api(ApiKey.CREATE_ACLS, CreateAclsRequest, CreateAclsResponse, Versions(1, 3)),
    Api(ApiKey.DELETE_ACLS, DeleteAclsRequest, DeleteAclsResponse, Versions(1, 3)),
    Api(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse, Versions(1, 4)),
    Api(ApiKey.ALTER_CONFIGS, AlterConfigsRequest, AlterConfigsResponse, Versions(0, 2)),
    Api(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, DescribeLogDirsResponse, Versions(1, 4)),
    Api(
        ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest, SaslAuthenticateResponse, Versions(0, 2)
    ),
    Api(
        ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest, CreatePartitionsResponse, Versions(0, 3)
    ),
    Api(ApiKey.DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse, Versions(0, 2)),
    Api(ApiKey.ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse, Versions(0, 2)),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        Versions(0, 1),
    ),
    Api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
        Versions(0, 0),
    ),
    Api(ApiKey.OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse, Versions(0, 0)),
    Api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
        Versions(0, 1),
    ),
    Api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        Versions(0, 1),
    ),
    Api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
        Versions(0, 0),
    ),
    Api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
        Versions(0, 0),
    ),
    Api(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest, DescribeClusterResponse, Versions(0, 2)),
    Api(
        ApiKey.DESCRIBE_PRODUCERS,
        DescribeProducersRequest,
        DescribeProducersResponse,
        Versions(0, 0),
    ),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        Versions(0, 0),
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest, ListTransactionsResponse, Versions(0, 2)
    ),
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
        Versions(0, 1),
    ),
    Api(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
        Versions(0, 1),
    ),
    Api(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        Versions(0, 0),
    ),
)

APIS: Final[dict[int, Api]] = {int(one.key): one for one in _ALL}
