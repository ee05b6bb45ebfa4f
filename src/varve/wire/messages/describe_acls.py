"""DescribeAcls, API key 29."""

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


@wire_message("1-3", flexible="2+", api_key=29)
class DescribeAclsRequest(Message):
    resource_type_filter: int = scalar(INT8)
    resource_name_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    pattern_type_filter: int = scalar(INT8, "1+", 3)
    principal_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    host_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_struct
class AclDescription:
    principal: str = scalar(STRING, "0+", "")
    host: str = scalar(STRING, "0+", "")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_struct
class DescribeAclsResource:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    pattern_type: int = scalar(INT8, "1+", 3)
    acls: list[AclDescription] = array(AclDescription)


@wire_message("1-3", flexible="2+", api_key=29)
class DescribeAclsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)
