"""OffsetFetch, API key 9."""

from uuid import UUID

from varve.wire.schema import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
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
class OffsetFetchRequestTopic:
    name: str = scalar(STRING, "0-7", "")
    partition_indexes: list[int] = array(INT32, "0-7")


@wire_struct
class OffsetFetchRequestTopics:
    name: str = scalar(STRING, "8-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partition_indexes: list[int] = array(INT32, "8+")


@wire_struct
class OffsetFetchRequestGroup:
    group_id: str = scalar(STRING, "8+", "")
    member_id: str | None = scalar(STRING, "9+", None, nullable="9+")
    member_epoch: int = scalar(INT32, "9+", -1)
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "8+", nullable="8+"
    )


@wire_message("1-10", flexible="6+", api_key=9)
class OffsetFetchRequest(Message):
    group_id: str = scalar(STRING, "0-7", "")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = scalar(BOOLEAN, "7+", False)


@wire_struct
class OffsetFetchResponsePartition:
    partition_index: int = scalar(INT32, "0-7")
    committed_offset: int = scalar(INT64, "0-7")
    committed_leader_epoch: int = scalar(INT32, "5-7", -1)
    metadata: str | None = scalar(STRING, "0-7", "", nullable="0-7")
    error_code: int = scalar(INT16, "0-7")


@wire_struct
class OffsetFetchResponseTopic:
    name: str = scalar(STRING, "0-7", "")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@wire_struct
class OffsetFetchResponsePartitions:
    partition_index: int = scalar(INT32, "8+")
    committed_offset: int = scalar(INT64, "8+")
    committed_leader_epoch: int = scalar(INT32, "8+", -1)
    metadata: str | None = scalar(STRING, "8+", "", nullable="8+")
    error_code: int = scalar(INT16, "8+")


@wire_struct
class OffsetFetchResponseTopics:
    name: str = scalar(STRING, "8-9", "")
    topic_id: UUID = scalar(UUID_TYPE, "10+", NO_ID)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


@wire_struct
class OffsetFetchResponseGroup:
    group_id: str = scalar(STRING, "8+", "")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = scalar(INT16, "8+")


@wire_message("1-10", flexible="6+", api_key=9)
class OffsetFetchResponse(Message):
    throttle_time_ms: int = scalar(INT32, "3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = scalar(INT16, "2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")
