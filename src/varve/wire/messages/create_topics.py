"""CreateTopics, API key 19."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    NO_ID,
    STRING,
    UUID_TYPE,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class CreatableReplicaAssignment:
    partition_index: int = scalar(INT32)
    broker_ids: list[int] = array(INT32)


@wire_struct
class CreatableTopicConfig:
    name: str = scalar(STRING, "0+", "")
    value: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class CreatableTopic:
    name: str = scalar(STRING, "0+", "")
    num_partitions: int = scalar(INT32)
    replication_factor: int = scalar(INT16)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@wire_message("2-7", flexible="5+", api_key=19)
class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = scalar(INT32, "0+", 60000)
    validate_only: bool = scalar(BOOLEAN, "1+", False)


@wire_struct
class CreatableTopicConfigs:
    name: str = scalar(STRING, "5+", "")
    value: str | None = scalar(STRING, "5+", "", nullable="5+")
    read_only: bool = scalar(BOOLEAN, "5+", False)
    config_source: int = scalar(INT8, "5+", -1)
    is_sensitive: bool = scalar(BOOLEAN, "5+", False)


@wire_struct
class CreatableTopicResult:
    name: str = scalar(STRING, "0+", "")
    topic_id: UUID = scalar(UUID_TYPE, "7+", NO_ID)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "1+", "", nullable="0+")
    topic_config_error_code: int = scalar(INT16, "5+", tag=0)
    num_partitions: int = scalar(INT32, "5+", -1)
    replication_factor: int = scalar(INT16, "5+", -1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+")


@wire_message("2-7", flexible="5+", api_key=19)
class CreateTopicsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "2+")
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
