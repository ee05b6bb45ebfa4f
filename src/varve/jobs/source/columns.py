"""The columns of a topic: those that every read has, and those on request."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from varve.foundation.errors import InvalidRequest

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
STANDARD_COLUMNS: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": _HEADERS,
}
EXTRA_COLUMNS: Final[dict[str, DataType]] = {
    "producerId": LongType(),
    "producerEpoch": IntegerType(),
    "sequence": IntegerType(),
    "leaderEpoch": IntegerType(),
    "isTransactional": BooleanType(),
    "batchOffset": LongType(),
    "size": IntegerType(),
}

_ALL: Final = {**STANDARD_COLUMNS, **EXTRA_COLUMNS}


def make_schema(extra: Sequence[str] = ()) -> StructType:
    """The standard columns and those that are asked for."""
    for name in extra:
        _get_type(name)
    names = [*STANDARD_COLUMNS, *(name for name in extra if name not in STANDARD_COLUMNS)]
    return StructType([StructField(name, _ALL[name]) for name in dict.fromkeys(names)])


def check_schema(schema: StructType) -> None:
    """Raises InvalidRequest for a schema that names other columns or types than there are."""
    for field in schema.fields:
        known = _get_type(field.name)
        if field.dataType != known:
            raise InvalidRequest(
                f"column {field.name} is of type {known.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def _get_type(name: str) -> DataType:
    if name not in _ALL:
        raise InvalidRequest(f"there is no column {name!r:.80} (columns: {', '.join(_ALL)})")
    return _ALL[name]
