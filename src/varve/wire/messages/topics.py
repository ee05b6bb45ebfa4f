"""Messages that create, change and delete topics and describe or alter settings."""

from uuid import UUID

from varve.wire.schema import Int8, Int16, Int32, Message, Struct, field


class CreatableReplicaAssignment(Struct):
    partition_index: Int32 = field()
    broker_ids: list[Int32] = field()


class TopicConfig(Struct):
    name: str = field()
    value: str | None = field()


class CreatableTopic(Struct):
    name: str = field()
    num_partitions: Int32 = field()
    replication_factor: Int16 = field()
    assignments: list[CreatableReplicaAssignment] = field()
    configs: list[TopicConfig] = field()


class CreateTopicsRequest(Message, versions="2-7", flexible="5+", api_key=19):
    topics: list[CreatableTopic] = field()
    timeout_ms: Int32 = field("0+", 60000)
    validate_only: bool = field("1+")


class CreatableTopicConfigs(Struct):
    name: str = field("5+")
    value: str | None = field("5+")
    read_only: bool = field("5+")
    config_source: Int8 = field("5+", -1)
    is_sensitive: bool = field("5+")


class CreatableTopicResult(Struct):
    name: str = field()
    topic_id: UUID = field("7+")
    error_code: Int16 = field()
    error_message: str | None = field("1+")
    topic_config_error_code: Int16 = field("5+", tag=0)
    num_partitions: Int32 = field("5+", -1)
    replication_factor: Int16 = field("5+", -1)
    configs: list[CreatableTopicConfigs] | None = field("5+")


class CreateTopicsResponse(Message, versions="2-7", flexible="5+", api_key=19):
    throttle_time_ms: Int32 = field("2+")
    topics: list[CreatableTopicResult] = field()


class DeleteTopicState(Struct):
    name: str | None = field("6+", None)
    topic_id: UUID = field("6+")


class DeleteTopicsRequest(Message, versions="1-6", flexible="4+", api_key=20):
    topics: list[DeleteTopicState] = field("6+")
    topic_names: list[str] = field("0-5")
    timeout_ms: Int32 = field()


class DeletableTopicResult(Struct):
    name: str | None = field(nullable="6+")
    topic_id: UUID = field("6+")
    error_code: Int16 = field()
    error_message: str | None = field("5+", None)


class DeleteTopicsResponse(Message, versions="1-6", flexible="4+", api_key=20):
    throttle_time_ms: Int32 = field("1+")
    responses: list[DeletableTopicResult] = field()


class CreatePartitionsAssignment(Struct):
    broker_ids: list[Int32] = field()


class CreatePartitionsTopic(Struct):
    name: str = field()
    count: Int32 = field()
    assignments: list[CreatePartitionsAssignment] | None = field()


class CreatePartitionsRequest(Message, versions="0-3", flexible="2+", api_key=37):
    topics: list[CreatePartitionsTopic] = field()
    timeout_ms: Int32 = field()
    validate_only: bool = field()


class CreatePartitionsTopicResult(Struct):
    name: str = field()
    error_code: Int16 = field()
    error_message: str | None = field("0+", None)


class CreatePartitionsResponse(Message, versions="0-3", flexible="2+", api_key=37):
    throttle_time_ms: Int32 = field()
    results: list[CreatePartitionsTopicResult] = field()


class DescribeConfigsResource(Struct):
    resource_type: Int8 = field()
    resource_name: str = field()
    configuration_keys: list[str] | None = field()


class DescribeConfigsRequest(Message, versions="1-4", flexible="4+", api_key=32):
    resources: list[DescribeConfigsResource] = field()
    include_synonyms: bool = field("1+")
    include_documentation: bool = field("3+")


class DescribeConfigsSynonym(Struct):
    name: str = field("1+")
    value: str | None = field("1+")
    source: Int8 = field("1+")


class DescribeConfigsResourceResult(Struct):
    name: str = field()
    value: str | None = field()
    read_only: bool = field()
    config_source: Int8 = field("1+", -1)
    is_sensitive: bool = field()
    synonyms: list[DescribeConfigsSynonym] = field("1+")
    config_type: Int8 = field("3+")
    documentation: str | None = field("3+")


class DescribeConfigsResult(Struct):
    error_code: Int16 = field()
    error_message: str | None = field()
    resource_type: Int8 = field()
    resource_name: str = field()
    configs: list[DescribeConfigsResourceResult] = field()


class DescribeConfigsResponse(Message, versions="1-4", flexible="4+", api_key=32):
    throttle_time_ms: Int32 = field()
    results: list[DescribeConfigsResult] = field()


class AlterConfigsResource(Struct):
    resource_type: Int8 = field()
    resource_name: str = field()
    configs: list[TopicConfig] = field()


class AlterConfigsRequest(Message, versions="0-2", flexible="2+", api_key=33):
    resources: list[AlterConfigsResource] = field()
    validate_only: bool = field()


class AlterConfigsResourceResponse(Struct):
    error_code: Int16 = field()
    error_message: str | None = field()
    resource_type: Int8 = field()
    resource_name: str = field()


class AlterConfigsResponse(Message, versions="0-2", flexible="2+", api_key=33):
    throttle_time_ms: Int32 = field()
    responses: list[AlterConfigsResourceResponse] = field()


class IncrementalAlterableConfig(Struct):
    name: str = field()
    config_operation: Int8 = field()
    value: str | None = field()


class IncrementalAlterConfigsResource(Struct):
    resource_type: Int8 = field()
    resource_name: str = field()
    configs: list[IncrementalAlterableConfig] = field()


class IncrementalAlterConfigsRequest(Message, versions="0-1", flexible="1+", api_key=44):
    resources: list[IncrementalAlterConfigsResource] = field()
    validate_only: bool = field()


class IncrementalAlterConfigsResponse(Message, versions="0-1", flexible="1+", api_key=44):
    throttle_time_ms: Int32 = field()
    responses: list[AlterConfigsResourceResponse] = field()


class ListConfigResourcesRequest(Message, versions="0-1", flexible="0+", api_key=74):
    resource_types: list[Int8] = field("1+")


class ConfigResource(Struct):
    resource_name: str = field()
    resource_type: Int8 = field("1+", 16)


class ListConfigResourcesResponse(Message, versions="0-1", flexible="0+", api_key=74):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    config_resources: list[ConfigResource] = field()
