"""Messages that create, change and delete topics and describe or alter settings."""

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

# CreateTopics, API key 19


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


# DeleteTopics, API key 20


@wire_struct
class DeleteTopicState:
    name: str | None = scalar(STRING, "6+", None, nullable="6+")
    topic_id: UUID = scalar(UUID_TYPE, "6+", NO_ID)


@wire_message("1-6", flexible="4+", api_key=20)
class DeleteTopicsRequest(Message):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(STRING, "0-5")
    timeout_ms: int = scalar(INT32)


@wire_struct
class DeletableTopicResult:
    name: str | None = scalar(STRING, "0+", "", nullable="6+")
    topic_id: UUID = scalar(UUID_TYPE, "6+", NO_ID)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "5+", None, nullable="5+")


@wire_message("1-6", flexible="4+", api_key=20)
class DeleteTopicsResponse(Message):
    throttle_time_ms: int = scalar(INT32, "1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


# CreatePartitions, API key 37


@wire_struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = array(INT32)


@wire_struct
class CreatePartitionsTopic:
    name: str = scalar(STRING, "0+", "")
    count: int = scalar(INT32)
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+"
    )


@wire_message("0-3", flexible="2+", api_key=37)
class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = scalar(INT32)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class CreatePartitionsTopicResult:
    name: str = scalar(STRING, "0+", "")
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")


@wire_message("0-3", flexible="2+", api_key=37)
class CreatePartitionsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


# DescribeConfigs, API key 32


@wire_struct
class DescribeConfigsResource:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    configuration_keys: list[str] | None = array(STRING, nullable="0+")


@wire_message("1-4", flexible="4+", api_key=32)
class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = scalar(BOOLEAN, "1+", False)
    include_documentation: bool = scalar(BOOLEAN, "3+", False)


@wire_struct
class DescribeConfigsSynonym:
    name: str = scalar(STRING, "1+", "")
    value: str | None = scalar(STRING, "1+", "", nullable="0+")
    source: int = scalar(INT8, "1+")


@wire_struct
class DescribeConfigsResourceResult:
    name: str = scalar(STRING, "0+", "")
    value: str | None = scalar(STRING, "0+", "", nullable="0+")
    read_only: bool = scalar(BOOLEAN, "0+", False)
    config_source: int = scalar(INT8, "1+", -1)
    is_sensitive: bool = scalar(BOOLEAN, "0+", False)
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+")
    config_type: int = scalar(INT8, "3+")
    documentation: str | None = scalar(STRING, "3+", "", nullable="0+")


@wire_struct
class DescribeConfigsResult:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@wire_message("1-4", flexible="4+", api_key=32)
class DescribeConfigsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


# AlterConfigs, API key 33


@wire_struct
class AlterableConfig:
    name: str = scalar(STRING, "0+", "")
    value: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class AlterConfigsResource:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    configs: list[AlterableConfig] = array(AlterableConfig)


@wire_message("0-2", flexible="2+", api_key=33)
class AlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class AlterConfigsResourceResponse:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")


@wire_message("0-2", flexible="2+", api_key=33)
class AlterConfigsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


# IncrementalAlterConfigs, API key 44


@wire_struct
class IncrementalAlterableConfig:
    name: str = scalar(STRING, "0+", "")
    config_operation: int = scalar(INT8)
    value: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class IncrementalAlterConfigsResource:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


@wire_message("0-1", flexible="1+", api_key=44)
class IncrementalAlterConfigsRequest(Message):
    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class IncrementalAlterConfigsResourceResponse:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")


@wire_message("0-1", flexible="1+", api_key=44)
class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    responses: list[IncrementalAlterConfigsResourceResponse] = array(
        IncrementalAlterConfigsResourceResponse
    )
