"""DescribeCluster, API key 60."""

from varve.wire.schema import (
    BOOLEAN,
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


@wire_message("0-2", flexible="0+", api_key=60)
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = scalar(BOOLEAN, "0+", False)
    endpoint_type: int = scalar(INT8, "1+", 1)
    include_fenced_brokers: bool = scalar(BOOLEAN, "2+", False)


@wire_struct
class DescribeClusterBroker:
    broker_id: int = scalar(INT32)
    host: str = scalar(STRING, "0+", "")
    port: int = scalar(INT32)
    rack: str | None = scalar(STRING, "0+", None, nullable="0+")
    is_fenced: bool = scalar(BOOLEAN, "2+", False)


@wire_message("0-2", flexible="0+", api_key=60)
class DescribeClusterResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", None, nullable="0+")
    endpoint_type: int = scalar(INT8, "1+", 1)
    cluster_id: str = scalar(STRING, "0+", "")
    controller_id: int = scalar(INT32, "0+", -1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = scalar(INT32, "0+", -2147483648)
