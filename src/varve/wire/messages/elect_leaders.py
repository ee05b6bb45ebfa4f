"""ElectLeaders, API key 43."""

from varve.wire.schema import (
    INT8,
    INT16,
    INT32,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class TopicPartitions:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_message("0-2", flexible="2+", api_key=43)
class ElectLeadersRequest(Message):
    election_type: int = scalar(INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = scalar(INT32, "0+", 60000)


@wire_struct
class PartitionResult:
    partition_id: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class ReplicaElectionResult:
    topic: str = scalar(STRING, "0+", "")
    partition_result: list[PartitionResult] = array(PartitionResult)


@wire_message("0-2", flexible="2+", api_key=43)
class ElectLeadersResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
