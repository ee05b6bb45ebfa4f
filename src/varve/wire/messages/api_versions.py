"""ApiVersions, API key 18."""

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


@wire_message("0-4", flexible="3+", api_key=18)
class ApiVersionsRequest(Message):
    client_software_name: str = scalar(STRING, "3+", "")
    client_software_version: str = scalar(STRING, "3+", "")


@wire_struct
class ApiVersion:
    api_key: int = scalar(INT16)
    min_version: int = scalar(INT16)
    max_version: int = scalar(INT16)


@wire_struct
class SupportedFeatureKey:
    name: str = scalar(STRING, "3+", "")
    min_version: int = scalar(INT16, "3+")
    max_version: int = scalar(INT16, "3+")


@wire_struct
class FinalizedFeatureKey:
    name: str = scalar(STRING, "3+", "")
    max_version_level: int = scalar(INT16, "3+")
    min_version_level: int = scalar(INT16, "3+")


@wire_message("0-4", flexible="3+", api_key=18)
class ApiVersionsResponse(Message):
    error_code: int = scalar(INT16)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = scalar(INT32, "1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = scalar(INT64, "3+", -1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = scalar(BOOLEAN, "3+", False, tag=3)
