"""DescribeConfigs, API key 32."""

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
