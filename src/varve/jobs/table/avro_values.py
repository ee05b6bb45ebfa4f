"""Avro values as columns: bare ones of a given schema, or framed ones that name theirs.

Layout     framed: byte 0, the schema's number (4 bytes, big-endian), the datum; as Confluent's
           serializers write it. Without a registry a value is the datum alone.
Invariant  whatever schema a value was written with, it is read by the one of the table. A number
           that the registry does not know makes a bad row; a registry that fails ends the run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import count
from struct import Struct
from typing import Any, Final
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from fastavro.schema import SchemaParseException, UnknownType
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from varve.foundation.errors import InvalidRequest
from varve.jobs.table.avro_registry import find_schema
from varve.jobs.table.json_values import ValueRejected
from varve.jobs.table.types import Decoded, Fields, ValueField

Parsed = Any
"""A schema as fastavro has it."""

_FRAME: Final = Struct(">bi")
_DEPTH_MAX: Final = 20
_UNFIT: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError)
_PRIMITIVES: Final[Mapping[str, IcebergType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[Mapping[str, IcebergType]] = {
    "date": DateType(),
    "time-millis": TimeType(),
    "time-micros": TimeType(),
    "timestamp-millis": TimestamptzType(),
    "timestamp-micros": TimestamptzType(),
    "local-timestamp-millis": TimestampType(),
    "local-timestamp-micros": TimestampType(),
    "uuid": StringType(),
}


def parse_avro(text: str, where: str) -> Parsed:
    """A schema from its JSON; raises InvalidRequest."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError) as error:
        line = f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"{where} is no Avro schema: {line:.300}") from error


@lru_cache(maxsize=256)
def _parse_known(text: str) -> Parsed:
    return parse_avro(text, "the schema of the registry")


def avro_fields(schema: Parsed, where: str) -> Fields:
    """The columns of a record; raises InvalidRequest for what no column can hold."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidRequest(f"{where}: values are to be records; this schema is of another type")
    maker = _TypeMaker(where)
    maker.learn(schema)
    return tuple(
        ValueField(one["name"], maker.make(one["type"], one["name"], 0), not _is_optional(one))
        for one in schema["fields"]
    )


def find_first_schema(values: Iterable[bytes], registry: str) -> str | None:
    """The schema of the first value whose number the registry knows."""
    for value in values:
        if len(value) >= _FRAME.size and value[0] == 0:
            found = find_schema(registry, _FRAME.unpack_from(value)[1])
            if found is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """Columns of records; `schema` is the text of the one they are read by."""

    fields: Fields
    schema: str
    registry: str | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.fields)

    def decode(self, values: pa.Array, headers: pa.Array) -> Decoded:
        reader = _parse_known(self.schema)
        rows: list[list[Any]] = []
        reasons: dict[int, str] = {}
        missing: set[int] = set()
        for number, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._read(value, reader, missing))
            except ValueRejected as error:
                reasons[number] = str(error)
        read = [number for number in range(len(values)) if number not in reasons]
        try:
            arrays = self._make_arrays(rows)
        except _UNFIT:
            for number, row in zip(read, rows, strict=True):
                reasons |= self._find_unfit(number, row)
            arrays = self._make_arrays(
                [row for number, row in zip(read, rows, strict=True) if number not in reasons]
            )
        is_bad = np.isin(np.arange(len(values)), list(reasons))
        return Decoded(arrays, is_bad, tuple(reasons[number] for number in sorted(reasons)))

    def _make_arrays(self, rows: Sequence[Sequence[Any]]) -> tuple[pa.Array, ...]:
        return tuple(
            pa.array([row[slot] for row in rows], one.arrow_type)
            for slot, one in enumerate(self.fields)
        )

    def _find_unfit(self, number: int, row: Sequence[Any]) -> dict[int, str]:
        for one, given in zip(self.fields, row, strict=True):
            try:
                pa.array([given], one.arrow_type)
            except _UNFIT as error:
                return {number: f"field {one.name}: {given!r:.60} does not fit: {error!s:.100}"}
        return {}

    def _read(self, value: bytes, reader: Parsed, missing: set[int]) -> list[Any]:
        writer, datum = reader, value
        if self.registry is not None:
            writer, datum = self._open_frame(value, self.registry, missing)
        stream = BytesIO(datum)
        try:
            row = fastavro.schemaless_reader(stream, writer, reader)
        except Exception as error:  # fastavro raises whatever the bytes lead it to
            raise ValueRejected(
                f"no Avro of that schema: {type(error).__name__}: {error}"[:200]
            ) from None
        if stream.read(1):
            raise ValueRejected("bytes follow the Avro value: it is of another schema")
        if not isinstance(row, dict):
            raise ValueRejected("the Avro value is no record")
        return [_plain(row.get(one.name), one.arrow_type) for one in self.fields]

    def _open_frame(self, value: bytes, registry: str, missing: set[int]) -> tuple[Parsed, bytes]:
        """The schema that a value names, and its datum; a `missing` one is asked for once."""
        if len(value) < _FRAME.size or value[0] != 0:
            raise ValueRejected("the value does not begin with the number of a schema")
        number = _FRAME.unpack_from(value)[1]
        text = None if number in missing else find_schema(registry, number)
        if text is None:
            missing.add(number)
            raise ValueRejected(f"the registry has no schema {number}")
        return _parse_known(text), value[_FRAME.size :]


class _TypeMaker:
    """Avro types as Iceberg's; names stand for what they were given to."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._named: dict[str, Any] = {}
        self._ids = count(1)

    def learn(self, schema: Any) -> None:
        """Remembers the named types in a schema, which may be used by name behind it."""
        if isinstance(schema, list):
            for one in schema:
                self.learn(one)
        elif isinstance(schema, dict):
            if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
                self._named[schema["name"]] = schema
            for inner in ("type", "items", "values"):
                self.learn(schema.get(inner))
            for field in schema.get("fields", ()):
                self.learn(field["type"])

    def make(self, schema: Any, path: str, depth: int) -> IcebergType:
        if depth > _DEPTH_MAX:
            raise self._fault(path, "a type that holds itself has no columns")
        if isinstance(schema, list):
            return self.make(self._pick(schema, path), path, depth + 1)
        if isinstance(schema, str):
            if schema in self._named:
                return self.make(self._named[schema], path, depth + 1)
            return self._primitive(schema, path)
        logical = self._logical(schema)
        return logical or self._complex(schema, path, depth)

    def _complex(self, schema: Mapping[str, Any], path: str, depth: int) -> IcebergType:
        match schema["type"]:
            case "record" | "error":
                members = [
                    NestedField(
                        next(self._ids),
                        one["name"],
                        self.make(one["type"], f"{path}.{one['name']}", depth + 1),
                        required=False,
                    )
                    for one in schema["fields"]
                ]
                return StructType(*members)
            case "array":
                inner = self.make(schema["items"], f"{path}[]", depth + 1)
                return ListType(
                    element_id=next(self._ids), element_type=inner, element_required=False
                )
            case "map":
                inner = self.make(schema["values"], f"{path}{{}}", depth + 1)
                return MapType(
                    key_id=next(self._ids),
                    key_type=StringType(),
                    value_id=next(self._ids),
                    value_type=inner,
                    value_required=False,
                )
            case str() as name if name in _PRIMITIVES:
                return _PRIMITIVES[name]
        return self.make(schema["type"], path, depth + 1)

    def _logical(self, schema: Mapping[str, Any]) -> IcebergType | None:
        name = schema.get("logicalType", "")
        if name == "decimal":
            precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
            return DecimalType(precision, scale) if 0 < precision <= 38 else None
        return _LOGICAL.get(name)

    def _primitive(self, name: str, path: str) -> IcebergType:
        if name not in _PRIMITIVES:
            raise self._fault(path, f"{name} has no column")
        return _PRIMITIVES[name]

    def _pick(self, union: Sequence[Any], path: str) -> Any:
        branches = [one for one in union if one != "null"]
        if len(branches) != 1:
            raise self._fault(path, f"a union of {len(branches)} types besides null has no column")
        return branches[0]

    def _fault(self, path: str, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self._where}: field {path}: {what}")


def _is_optional(field: Mapping[str, Any]) -> bool:
    type = field["type"]
    return type == "null" or (isinstance(type, list) and "null" in type)


def _plain(value: Any, type: pa.DataType) -> Any:
    """What Arrow takes for what fastavro gives."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict) and pa.types.is_map(type):
        return [(name, _plain(one, type.item_type)) for name, one in value.items()]
    if isinstance(value, dict) and pa.types.is_struct(type):
        return {one.name: _plain(value.get(one.name), one.type) for one in type}
    if isinstance(value, list):
        return [_plain(one, type.value_type) for one in value]
    return value
