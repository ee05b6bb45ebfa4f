"""Fetch, API key 1."""

from uuid import UUID

from varve.wire.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    RECORDS,
    STRING,
    UUID_TYPE,
    Message,
    array,
    nested,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class ReplicaState:
    replica_id: int = scalar(INT32, "15+", -1)
    replica_epoch: int = scalar(INT64, "15+", -1)


@wire_struct
class FetchPartition:
    partition: int = scalar(INT32)
    current_leader_epoch: int = scalar(INT32, "9+", -1)
    fetch_offset: int = scalar(INT64)
    last_fetched_epoch: int = scalar(INT32, "12+", -1)
    log_start_offset: int = scalar(INT64, "5+", -1)
    partition_max_bytes: int = scalar(INT32)
    replica_directory_id: UUID = scalar(UUID_TYPE, "17+", NO_ID, tag=0)
    high_watermark: int = scalar(INT64, "18+", 9223372036854775807, tag=1)


@wire_struct
class FetchTopic:
    topic: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partitions: list[FetchPartition] = array(FetchPartition)


@wire_struct
class ForgottenTopic:
    topic: str = scalar(STRING, "7-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partitions: list[int] = array(INT32, "7+")


@wire_message("4-18", flexible="12+", api_key=1)
class FetchRequest(Message):
    cluster_id: str | None = scalar(STRING, "12+", None, nullable="12+", tag=0)
    replica_id: int = scalar(INT32, "0-14", -1)
    replica_state: ReplicaState = nested(ReplicaState, "15+", tag=1)
    max_wait_ms: int = scalar(INT32)
    min_bytes: int = scalar(INT32)
    max_bytes: int = scalar(INT32, "3+", 2147483647)
    isolation_level: int = scalar(INT8, "4+")
    session_id: int = scalar(INT32, "7+")
    session_epoch: int = scalar(INT32, "7+", -1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = scalar(STRING, "11+", "")


@wire_struct
class EpochEndOffset:
    epoch: int = scalar(INT32, "12+", -1)
    end_offset: int = scalar(INT64, "12+", -1)


@wire_struct
class LeaderIdAndEpoch:
    leader_id: int = scalar(INT32, "12+", -1)
    leader_epoch: int = scalar(INT32, "12+", -1)


@wire_struct
class SnapshotId:
    end_offset: int = scalar(INT64, "0+", -1)
    epoch: int = scalar(INT32, "0+", -1)


@wire_struct
class AbortedTransaction:
    producer_id: int = scalar(INT64, "4+")
    first_offset: int = scalar(INT64, "4+")


@wire_struct
class PartitionData:
    partition_index: int = scalar(INT32)
    error_code: int = scalar(INT16)
    high_watermark: int = scalar(INT64)
    last_stable_offset: int = scalar(INT64, "4+", -1)
    log_start_offset: int = scalar(INT64, "5+", -1)
    diverging_epoch: EpochEndOffset = nested(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = nested(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+"
    )
    preferred_read_replica: int = scalar(INT32, "11+", -1)
    records: memoryview | None = scalar(RECORDS, "0+", None, nullable="0+")


@wire_struct
class FetchableTopicResponse:
    topic: str = scalar(STRING, "0-12", "")
    topic_id: UUID = scalar(UUID_TYPE, "13+", NO_ID)
    partitions: list[PartitionData] = array(PartitionData)


@wire_struct
class NodeEndpoint:
    node_id: int = scalar(INT32, "16+")
    host: str = scalar(STRING, "16+", "")
    port: int = scalar(INT32, "16+")
    rack: str | None = scalar(STRING, "16+", None, nullable="16+")


@wire_message("4-18", flexible="12+", api_key=1)
class FetchResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    error_code: int = scalar(INT16, "7+")
    session_id: int = scalar(INT32, "7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)
