"""Metadata, API key 3."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
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
class MetadataRequestTopic:
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    name: str | None = scalar(STRING, "0+", "", nullable="10+")


@wire_message("0-13", flexible="9+", api_key=3)
class MetadataRequest(Message):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = scalar(BOOLEAN, "4+", True)
    include_cluster_authorized_operations: bool = scalar(BOOLEAN, "8-10", False)
    include_topic_authorized_operations: bool = scalar(BOOLEAN, "8+", False)


@wire_struct
class MetadataResponseBroker:
    node_id: int = scalar(INT32)
    host: str = scalar(STRING, "0+", "")
    port: int = scalar(INT32)
    rack: str | None = scalar(STRING, "1+", None, nullable="1+")


@wire_struct
class MetadataResponsePartition:
    error_code: int = scalar(INT16)
    partition_index: int = scalar(INT32)
    leader_id: int = scalar(INT32)
    leader_epoch: int = scalar(INT32, "7+", -1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    offline_replicas: list[int] = array(INT32, "5+")


@wire_struct
class MetadataResponseTopic:
    error_code: int = scalar(INT16)
    name: str | None = scalar(STRING, "0+", "", nullable="12+")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    is_internal: bool = scalar(BOOLEAN, "1+", False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = scalar(INT32, "8+", -2147483648)


@wire_message("0-13", flexible="9+", api_key=3)
class MetadataResponse(Message):
    throttle_time_ms: int = scalar(INT32, "3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = scalar(STRING, "2+", None, nullable="2+")
    controller_id: int = scalar(INT32, "1+", -1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = scalar(INT32, "8-10", -2147483648)
    error_code: int = scalar(INT16, "13+")
