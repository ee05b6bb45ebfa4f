"""Infers the columns of a new or widened table, and creates the decoder of its values.

Invariant  a column is inferred only from a field with one type in all values read: integers and
           fractions become `double`; a field with any other mixture has no column and is kept in
           `_rest`. Text is always `string`, even if it looks like a number or a time.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import groupby, islice
from typing import Any, Final

import pyiceberg.types as iceberg

from varve.foundation.errors import InvalidRequest
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.options import SourceFilters, SourceOptions
from varve.jobs.source.read import TaskRead, read_task
from varve.jobs.table import avro_values, types
from varve.jobs.table.decoding import Decoder, RawDecoder, ValueRejected
from varve.jobs.table.definition import (
    DEFAULT_BUCKETS,
    TableDefinition,
    TableMode,
    TableSettings,
    ValueFormat,
)
from varve.jobs.table.json_values import JsonDecoder, parse_json
from varve.jobs.table.plan import TablePlan
from varve.jobs.table.tasks import SOURCE

_REMEDY: Final = "give a schema (--schema), or run again when there are such records"
_LONG_END: Final = 1 << 63
_COLUMNS_MAX: Final = 1000
"""Inferred columns: values with arbitrary names, such as ids, must not widen a table forever."""

Guess = str | tuple["Guess"] | dict[str, "Guess"]
"""A primitive by name, a list of one item, a structure; `_NULL` where nothing is known yet."""

_NUMBERS: Final = ("long", "double")
_NULL: Final = "null"
_MIXED: Final = "mixed"


def make_decoder(definition: TableDefinition, settings: TableSettings) -> Decoder:
    match definition.format:
        case ValueFormat.RAW:
            return RawDecoder()
        case ValueFormat.JSON:
            return JsonDecoder(definition.fields)
        case ValueFormat.AVRO:
            assert definition.avro is not None
            return avro_values.AvroDecoder(
                definition.fields, definition.avro, _open_registry(settings)
            )


def _open_registry(settings: TableSettings) -> avro_values.SchemaRegistry | None:
    return None if settings.registry is None else avro_values.SchemaRegistry(settings.registry)


def define_table(
    plan: TablePlan, options: SourceOptions, settings: TableSettings
) -> tuple[TableDefinition, types.Fields]:
    """Defines a new table; returns the definition and its inferred fields."""
    format = settings.format or ValueFormat.RAW
    inferred: types.Fields = ()
    avro = None
    match format:
        case ValueFormat.RAW:
            fields = types.raw_fields()
        case ValueFormat.JSON:
            fields = parse_schema_fields(settings, format)
            if not fields:
                fields = inferred = infer_value_fields(plan, options, settings)
        case ValueFormat.AVRO:
            avro = settings.schema
            if avro is None:
                avro = find_avro_schema(plan, options, settings)
            fields = avro_values.avro_fields(
                avro_values.parse_avro(avro, settings.schema_name), settings.schema_name
            )
            types.check_fields(fields, settings.schema_name)
    definition = TableDefinition(
        topic=plan.topic,
        topic_id=plan.topic_id,
        mode=settings.mode or TableMode.APPEND,
        format=format,
        fields=fields,
        avro=avro,
        is_framed=settings.registry is not None,
        buckets=settings.buckets or DEFAULT_BUCKETS,
    )
    return definition, inferred


def parse_schema_fields(settings: TableSettings, format: ValueFormat) -> types.Fields:
    """Parses the fields of the schema in the settings; empty if there is none."""
    if settings.schema is None:
        return ()
    if format is ValueFormat.AVRO:
        return avro_values.avro_fields(
            avro_values.parse_avro(settings.schema, settings.schema_name), settings.schema_name
        )
    return types.parse_schema(settings.schema, settings.schema_name)


def infer_value_fields(
    plan: TablePlan, options: SourceOptions, settings: TableSettings, existing: types.Fields = ()
) -> types.Fields:
    """Infers the fields of the first JSON values that are not in `existing`."""
    values = first_values(plan, options, settings.infer_records)
    fields = infer_fields(values, [field.name for field in existing])
    if not fields and not existing:
        raise InvalidRequest(
            f"topic {plan.topic}: none of its first {settings.infer_records} records is a JSON "
            f"object with fields that can be columns: {_REMEDY}"
        )
    return fields


def find_avro_schema(plan: TablePlan, options: SourceOptions, settings: TableSettings) -> str:
    """Finds the schema of the first value that names one."""
    registry = _open_registry(settings)
    if registry is None:
        raise InvalidRequest("Avro values need a schema (.avsc) or the URL of a registry")
    values = first_values(plan, options, settings.infer_records)
    schema = avro_values.find_first_schema(values, registry)
    if schema is None:
        raise InvalidRequest(
            f"topic {plan.topic}: none of its first {settings.infer_records} records names a "
            f"schema of the registry: {_REMEDY}"
        )
    return schema


def first_values(plan: TablePlan, options: SourceOptions, count: int) -> list[bytes]:
    """Reads the first values of each partition, about `count` in total."""
    per_partition = -(-count // max(1, len(plan.ends)))
    values: list[bytes] = []
    for _, pieces in groupby(plan.pieces, key=lambda piece: piece.partition):
        read = TaskRead(plan.topic, plan.topic_id, tuple(pieces))
        values += islice(_values(read, options), per_partition)
    return values


def _values(read: TaskRead, options: SourceOptions) -> Iterator[bytes]:
    for batch in read_task(read, ArrowColumns(SOURCE), options, SourceFilters()):
        yield from (value.as_py() for value in batch["value"] if value.is_valid)


# Inference


def infer_fields(values: Iterable[bytes], existing: Iterable[str] = ()) -> types.Fields:
    """Infers columns for the fields of values that are not in `existing`; skips bad values."""
    inferred: dict[str, Guess] = {}
    for value in values:
        try:
            document = parse_json(value)
        except ValueRejected:
            continue
        for name, member in document.items():
            inferred[name] = _join(inferred.get(name, _NULL), _guess(member))
    columns = _make_columns(inferred, reserved=(*types.RESERVED, *existing))
    return tuple(types.ValueField(name, type) for name, type in columns.items())[:_COLUMNS_MAX]


def _guess(value: Any) -> Guess:
    match value:
        case None:
            return _NULL
        case bool():
            return "boolean"
        case int():
            return "long" if -_LONG_END <= value < _LONG_END else _MIXED
        case float() | Decimal():
            return "double"
        case str():
            return "string"
        case list():
            inner: Guess = _NULL
            for item in value:
                inner = _join(inner, _guess(item))
            return (inner,)
        case dict():
            return {name: _guess(item) for name, item in value.items()}
    return _MIXED


def _join(first: Guess, second: Guess) -> Guess:
    if first == second or second == _NULL:
        return first
    if first == _NULL:
        return second
    if isinstance(first, tuple) and isinstance(second, tuple):
        return (_join(first[0], second[0]),)
    if isinstance(first, dict) and isinstance(second, dict):
        names = [*first, *(name for name in second if name not in first)]
        return {name: _join(first.get(name, _NULL), second.get(name, _NULL)) for name in names}
    if first in _NUMBERS and second in _NUMBERS:
        return "double"
    return _MIXED


def _make_type(guess: Guess) -> iceberg.IcebergType | None:
    """Returns None if no column type fits."""
    if isinstance(guess, str):
        return types.PRIMITIVES.get(guess)
    if isinstance(guess, tuple):
        item = _make_type(guess[0])
        return None if item is None else types.list_of(item)
    members = _make_columns(guess, reserved=())
    return types.struct_of(members) if members else None


def _make_columns(
    guesses: Mapping[str, Guess], *, reserved: Iterable[str]
) -> dict[str, iceberg.IcebergType]:
    """Returns the fields that can be columns; names must differ from `reserved` and each other."""
    used_names = {name.lower() for name in reserved}
    columns: dict[str, iceberg.IcebergType] = {}
    for name, guess in guesses.items():
        type = _make_type(guess)
        if type is not None and types.is_column_name(name) and name.lower() not in used_names:
            used_names.add(name.lower())
            columns[name] = type
    return columns
