"""DeleteAcls, API key 31."""

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
class DeleteAclsFilter:
    resource_type_filter: int = scalar(INT8)
    resource_name_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    pattern_type_filter: int = scalar(INT8, "1+", 3)
    principal_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    host_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_message("1-3", flexible="2+", api_key=31)
class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


@wire_struct
class DeleteAclsMatchingAcl:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    pattern_type: int = scalar(INT8, "1+", 3)
    principal: str = scalar(STRING, "0+", "")
    host: str = scalar(STRING, "0+", "")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_struct
class DeleteAclsFilterResult:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@wire_message("1-3", flexible="2+", api_key=31)
class DeleteAclsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
