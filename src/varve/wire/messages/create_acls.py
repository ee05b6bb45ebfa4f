"""CreateAcls, API key 30."""

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
class AclCreation:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    resource_pattern_type: int = scalar(INT8, "1+", 3)
    principal: str = scalar(STRING, "0+", "")
    host: str = scalar(STRING, "0+", "")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_message("1-3", flexible="2+", api_key=30)
class CreateAclsRequest(Message):
    creations: list[AclCreation] = array(AclCreation)


@wire_struct
class AclCreationResult:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_message("1-3", flexible="2+", api_key=30)
class CreateAclsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[AclCreationResult] = array(AclCreationResult)
