"""DescribeLogDirs, API key 35."""

from varve.wire.schema import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class DescribableLogDirTopic:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_message("1-4", flexible="2+", api_key=35)
class DescribeLogDirsRequest(Message):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")


@wire_struct
class DescribeLogDirsPartition:
    partition_index: int = scalar(INT32)
    partition_size: int = scalar(INT64)
    offset_lag: int = scalar(INT64)
    is_future_key: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class DescribeLogDirsTopic:
    name: str = scalar(STRING, "0+", "")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@wire_struct
class DescribeLogDirsResult:
    error_code: int = scalar(INT16)
    log_dir: str = scalar(STRING, "0+", "")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = scalar(INT64, "4+", -1)
    usable_bytes: int = scalar(INT64, "4+", -1)


@wire_message("1-4", flexible="2+", api_key=35)
class DescribeLogDirsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16, "3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
