"""DescribeClientQuotas, API key 48."""

from varve.wire.schema import (
    BOOLEAN,
    FLOAT64,
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
class ComponentData:
    entity_type: str = scalar(STRING, "0+", "")
    match_type: int = scalar(INT8)
    match: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_message("0-1", flexible="1+", api_key=48)
class DescribeClientQuotasRequest(Message):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class EntityData:
    entity_type: str = scalar(STRING, "0+", "")
    entity_name: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class ValueData:
    key: str = scalar(STRING, "0+", "")
    value: float = scalar(FLOAT64, "0+", 0.0)


@wire_struct
class EntryData:
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


@wire_message("0-1", flexible="1+", api_key=48)
class DescribeClientQuotasResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    entries: list[EntryData] | None = array(EntryData, nullable="0+")
