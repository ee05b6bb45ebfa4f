"""Spark types of the columns of a topic, and the checks of schemas to read and write."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from varve.foundation.errors import InvalidRequest
from varve.jobs.sink.batch_builder import WRITTEN_COLUMNS
from varve.jobs.source.arrow_columns import (
    ALL_COLUMNS,
    arrow_schema,
    check_column,
    list_columns,
)

_BYTES: Final = (BinaryType, StringType)
_WRITTEN_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
    "partition": (IntegerType, LongType, ShortType),
    "topic": (StringType,),
}


def make_schema(extra: Sequence[str] = ()) -> StructType:
    """The standard columns and those that are requested."""
    return from_arrow_schema(arrow_schema(list_columns(extra)))


def check_schema(schema: StructType) -> None:
    """Raises InvalidRequest for an unknown column, or a column of another type."""
    for field in schema.fields:
        check_column(field.name)
        expected = from_arrow_schema(arrow_schema([field.name]))[field.name].dataType
        if field.dataType != expected:
            raise InvalidRequest(
                f"column {field.name} is of type {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def check_sink_schema(schema: StructType) -> None:
    """Raises InvalidRequest for columns that cannot be written."""
    for field in schema.fields:
        types = _WRITTEN_TYPES.get(field.name)
        if types is None and field.name in ALL_COLUMNS:
            continue  # a column of records that were read; the log assigns it again
        if types is None:
            raise InvalidRequest(
                f"a record has no column {field.name!r:.80}: put it into the value, as by "
                f"to_json(struct(*)), or drop it (columns: {', '.join(WRITTEN_COLUMNS)})"
            )
        if not isinstance(field.dataType, types):
            names = " or ".join(type_.typeName() for type_ in types)
            raise InvalidRequest(
                f"column {field.name} is of type {field.dataType.simpleString()}, not {names}: "
                "cast it"
            )
        if isinstance(field.dataType, ArrayType):
            _check_headers(field.dataType)
    if not {"key", "value"} & set(schema.fieldNames()):
        raise InvalidRequest(
            "the rows have neither a column key nor a column value: add one of them"
        )


def _check_headers(type: ArrayType) -> None:
    pair = type.elementType
    if not (
        isinstance(pair, StructType)
        and pair.fieldNames() == ["key", "value"]
        and isinstance(pair["key"].dataType, StringType)
        and isinstance(pair["value"].dataType, _BYTES)
    ):
        raise InvalidRequest(
            f"column headers is of type {type.simpleString()}, not "
            "array<struct<key:string,value:binary>>"
        )
