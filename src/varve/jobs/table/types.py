"""The columns of a table and their types: record columns, and columns decoded from values.

A schema is a JSON file: `{"name": "type"}`, or Iceberg's own `{"type": "struct", "fields"}`.
docs/reference/formats/table.md

Invariant  value columns may be null in the table, since a tombstone has no value; whether a field
           is required is checked when a value is decoded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyiceberg.types as iceberg
from pydantic import ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from varve.foundation.errors import InvalidRequest

PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
KEY: Final = "_key"
DELETED: Final = "_deleted"
REST: Final = "_rest"
VALUE: Final = "value"
HEADERS: Final = "headers"
REASON: Final = "reason"

RESERVED: Final = frozenset({PARTITION, OFFSET, TIMESTAMP, KEY, DELETED, REST})
"""Column names that a field of a value cannot use; such a field is kept in `_rest`."""

_NESTED: Final = re.compile(r"(list|map|struct)\s*<(.*)>", re.DOTALL)
_MEMBER: Final = re.compile(r"([^<>,:\s]+)\s*:\s*(.*)", re.DOTALL)
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_REQUIRED: Final = " required"
_EXAMPLE: Final = '{"id": "long required", "tags": "list<string>"}'
_DEPTH_MAX: Final = 20
PRIMITIVES: Final[Mapping[str, iceberg.PrimitiveType]] = {
    str(primitive): primitive
    for primitive in (
        iceberg.BooleanType(),
        iceberg.IntegerType(),
        iceberg.LongType(),
        iceberg.FloatType(),
        iceberg.DoubleType(),
        iceberg.StringType(),
        iceberg.BinaryType(),
        iceberg.DateType(),
        iceberg.TimeType(),
        iceberg.TimestampType(),
        iceberg.TimestamptzType(),
    )
}


@dataclass(frozen=True, slots=True)
class ValueField:
    """A column decoded from values; the field ids inside its type are unused."""

    name: str
    type: iceberg.IcebergType
    is_required: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        return to_arrow(self.type)

    def describe(self) -> str:
        return f"{self.name} {show_type(self.type)}{_REQUIRED if self.is_required else ''}"


Fields = tuple[ValueField, ...]


def to_arrow(type: iceberg.IcebergType) -> pa.DataType:
    """Converts a type to Arrow without field ids; equal results mean equal types."""
    schema = Schema(iceberg.NestedField(0, "x", type, required=False))
    return schema_to_pyarrow(schema, include_field_ids=False)[0].type


def list_of(item: iceberg.IcebergType) -> iceberg.ListType:
    return iceberg.ListType(element_id=0, element_type=item, element_required=False)


def map_of(value: iceberg.IcebergType) -> iceberg.MapType:
    """Keys are strings, as the names of a JSON object and of an Avro map are."""
    return iceberg.MapType(
        key_id=0, key_type=iceberg.StringType(), value_id=0, value_type=value, value_required=False
    )


def struct_of(members: Mapping[str, iceberg.IcebergType]) -> iceberg.StructType:
    return iceberg.StructType(
        *(iceberg.NestedField(0, name, type, required=False) for name, type in members.items())
    )


def show_type(type: iceberg.IcebergType) -> str:
    """Formats a type in the notation of a schema file."""
    match type:
        case iceberg.ListType():
            return f"list<{show_type(type.element_type)}>"
        case iceberg.MapType():
            return f"map<{show_type(type.key_type)}, {show_type(type.value_type)}>"
        case iceberg.StructType():
            inner = ", ".join(
                f"{member.name}: {show_type(member.field_type)}" for member in type.fields
            )
            return f"struct<{inner}>"
    return str(type)


def dump_fields(fields: Sequence[ValueField]) -> str:
    """Encodes fields as a schema file that `parse_schema` reads."""
    return json.dumps(
        {
            field.name: show_type(field.type) + (_REQUIRED if field.is_required else "")
            for field in fields
        },
        ensure_ascii=False,
    )


def parse_schema(text: str, where: str) -> Fields:
    """Parses a schema file; raises InvalidRequest."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict) or not document:
        raise InvalidRequest(f"{where}: a schema is an object such as {_EXAMPLE}")
    if document.get("type") == "struct" and isinstance(document.get("fields"), list):
        fields = _read_iceberg(document, where)
    else:
        fields = tuple(_read_field(name, type, where) for name, type in document.items())
    check_fields(fields, where)
    return fields


def check_fields(fields: Sequence[ValueField], where: str) -> None:
    """Raises InvalidRequest for duplicate, reserved and invalid column names."""
    names: dict[str, str] = {name.lower(): name for name in RESERVED}
    for field in fields:
        before = names.get(field.name.lower())
        if before is not None:
            raise InvalidRequest(
                f"{where}: field {field.name!r:.80} has the name of column {before}; readers such "
                "as Spark ignore the case of names. Leave it out: fields without a "
                f"column are kept in {REST}"
            )
        names[field.name.lower()] = field.name
        if not is_column_name(field.name):
            raise InvalidRequest(
                f"{where}: {field.name!r:.80} cannot be a column name: use letters, digits and _"
            )


def is_column_name(name: str) -> bool:
    return name.isidentifier()


def number_fields(fields: Sequence[tuple[str, iceberg.IcebergType, bool]]) -> Schema:
    """Builds a schema with fresh field ids, which a catalog may replace."""
    return assign_fresh_schema_ids(
        Schema(
            *(
                iceberg.NestedField(0, name, type, required=is_required)
                for name, type, is_required in fields
            )
        )
    )


def record_columns(*, has_deleted: bool) -> list[tuple[str, iceberg.IcebergType, bool]]:
    """Returns the record columns that every row has."""
    columns: list[tuple[str, iceberg.IcebergType, bool]] = [
        (PARTITION, iceberg.IntegerType(), True),
        (OFFSET, iceberg.LongType(), True),
        (TIMESTAMP, iceberg.TimestamptzType(), False),
        (KEY, iceberg.BinaryType(), False),
    ]
    if has_deleted:
        columns.append((DELETED, iceberg.BooleanType(), True))
    return columns


def raw_fields() -> Fields:
    """Returns the columns of raw values."""
    header = struct_of({"key": iceberg.StringType(), "value": iceberg.BinaryType()})
    return ValueField(VALUE, iceberg.BinaryType()), ValueField(HEADERS, list_of(header))


def bad_schema() -> Schema:
    """Returns the schema of the side table: rejected records with the reason."""
    columns = record_columns(has_deleted=False)
    return number_fields(
        [*columns, (VALUE, iceberg.BinaryType(), False), (REASON, iceberg.StringType(), True)]
    )


def _read_iceberg(document: Mapping[str, Any], where: str) -> Fields:
    try:
        schema = Schema.model_validate(document)
    except (ValidationError, ValueError, KeyError) as error:
        line = str(error).splitlines()[0]
        raise InvalidRequest(f"{where}: not an Iceberg schema: {line:.300}") from error
    return tuple(
        ValueField(
            field.name,
            # As it is stored with the table: without ids, and nothing inside it is required.
            parse_type(show_type(field.field_type), f"{where}: {field.name}"),
            field.required,
        )
        for field in schema.fields
    )


def _read_field(name: str, type: object, where: str) -> ValueField:
    if not isinstance(type, str):
        raise InvalidRequest(
            f"{where}: the type of {name!r:.80} is {type!r:.80}, not a string; write {_EXAMPLE}"
        )
    text = type.strip()
    plain = text.removesuffix(_REQUIRED)
    return ValueField(name, parse_type(plain, f"{where}: {name}"), plain != text)


def parse_type(text: str, where: str) -> iceberg.IcebergType:
    """Parses a type, such as `list<struct<a: long, b: string>>`; raises InvalidRequest."""
    text = text.strip()
    if not text:
        raise InvalidRequest(f"{where}: the type is empty")
    where = f"{where}: type {text!r:.200}"
    if text.count("<") != text.count(">"):
        raise InvalidRequest(f"{where}: it has {text.count('<')} < and {text.count('>')} >")
    return _parse_type(text, where, 0)


def _parse_type(text: str, where: str, depth: int) -> iceberg.IcebergType:
    if depth > _DEPTH_MAX:
        raise InvalidRequest(f"{where}: types are nested more than {_DEPTH_MAX} deep")
    nested = _NESTED.fullmatch(text)
    if nested is None:
        return _parse_primitive(text, where)
    match nested[1], _split_parts(nested[2]):
        case "list", [item]:
            return list_of(_parse_type(item, where, depth + 1))
        case "map", ["string", value]:
            return map_of(_parse_type(value, where, depth + 1))
        case "struct", parts:
            members = {}
            for part in parts:
                member = _MEMBER.fullmatch(part)
                if member is None:
                    raise InvalidRequest(f"{where}: {part!r:.40} is not NAME: TYPE")
                members[member[1]] = _parse_type(member[2], where, depth + 1)
            return struct_of(members)
        case "map", _:
            raise InvalidRequest(f"{where}: the keys of a map are of type string")
    raise InvalidRequest(f"{where}: a list has one type of items")


def _split_parts(text: str) -> list[str]:
    """Splits at the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _parse_primitive(text: str, where: str) -> iceberg.PrimitiveType:
    primitive = PRIMITIVES.get(text)
    if primitive is not None:
        return primitive
    match = _DECIMAL.fullmatch(text)
    if match and 0 < int(match[1]) <= 38 and int(match[2]) <= int(match[1]):
        return iceberg.DecimalType(int(match[1]), int(match[2]))
    names = ", ".join(PRIMITIVES)
    raise InvalidRequest(
        f"{where}: there is no type {text!r:.40} (types: {names}, decimal(P,S) with P up to 38, "
        "list<T>, map<string, T>, struct<name: T>)"
    )
