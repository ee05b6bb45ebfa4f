"""AlterClientQuotas, API key 49."""

from varve.wire.schema import (
    BOOLEAN,
    FLOAT64,
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
class EntityData:
    entity_type: str = scalar(STRING, "0+", "")
    entity_name: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class OpData:
    key: str = scalar(STRING, "0+", "")
    value: float = scalar(FLOAT64, "0+", 0.0)
    remove: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class EntryData:
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@wire_message("0-1", flexible="1+", api_key=49)
class AlterClientQuotasRequest(Message):
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class EntryDataResponse:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    entity: list[EntityData] = array(EntityData)


@wire_message("0-1", flexible="1+", api_key=49)
class AlterClientQuotasResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    entries: list[EntryDataResponse] = array(EntryDataResponse)
