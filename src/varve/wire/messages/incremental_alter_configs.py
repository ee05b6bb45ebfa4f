"""IncrementalAlterConfigs, API key 44."""

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


@wire_struct
class AlterableConfig:
    name: str = scalar(STRING, "0+", "")
    config_operation: int = scalar(INT8)
    value: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class AlterConfigsResource:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    configs: list[AlterableConfig] = array(AlterableConfig)


@wire_message("0-1", flexible="1+", api_key=44)
class IncrementalAlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class AlterConfigsResourceResponse:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")


@wire_message("0-1", flexible="1+", api_key=44)
class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
