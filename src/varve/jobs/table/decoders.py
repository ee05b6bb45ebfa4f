"""Chooses how the values of a table are opened, and finds the columns of one that is to be made."""

from collections.abc import Iterator
from itertools import groupby, islice
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.read import TaskRead, read_task
from varve.jobs.table.avro_values import AvroDecoder, avro_fields, find_first_schema, parse_avro
from varve.jobs.table.decode import Decoder, RawDecoder
from varve.jobs.table.definition import TableDefinition
from varve.jobs.table.infer import infer_fields
from varve.jobs.table.json_values import JsonDecoder
from varve.jobs.table.plan import TablePlan
from varve.jobs.table.rows import SOURCE
from varve.jobs.table.schema import Fields, check_fields, parse_schema, raw_fields
from varve.jobs.table.settings import BUCKETS, TableMode, TableSettings, ValueFormat

_REMEDY: Final = "give a schema, or run again when there are some"


def make_decoder(definition: TableDefinition, settings: TableSettings) -> Decoder:
    match definition.format:
        case ValueFormat.RAW:
            return RawDecoder()
        case ValueFormat.JSON:
            return JsonDecoder(definition.fields)
        case ValueFormat.AVRO:
            assert definition.avro is not None
            return AvroDecoder(definition.fields, definition.avro, settings.registry)


def define(
    plan: TablePlan, options: SourceOptions, settings: TableSettings
) -> tuple[TableDefinition, Fields]:
    """A table that is to be made, and the fields of it that were guessed."""
    format = settings.format or ValueFormat.RAW
    guessed: Fields = ()
    avro = None
    match format:
        case ValueFormat.RAW:
            fields = raw_fields()
        case ValueFormat.JSON:
            fields = given_fields(settings, format)
            if not fields:
                fields = guessed = guess_fields(plan, options, settings)
        case ValueFormat.AVRO:
            avro = settings.schema
            if avro is None:
                avro = guess_avro(plan, options, settings)
            fields = avro_fields(parse_avro(avro, settings.schema_name), settings.schema_name)
            check_fields(fields, settings.schema_name)
    definition = TableDefinition(
        topic=plan.topic,
        topic_id=plan.topic_id,
        mode=settings.mode or TableMode.APPEND,
        format=format,
        fields=fields,
        avro=avro,
        is_framed=settings.registry is not None,
        buckets=settings.buckets or BUCKETS,
    )
    return definition, guessed


def given_fields(settings: TableSettings, format: ValueFormat) -> Fields:
    """The fields of the schema that was given; none where none was."""
    if settings.schema is None:
        return ()
    if format is ValueFormat.AVRO:
        return avro_fields(parse_avro(settings.schema, settings.schema_name), settings.schema_name)
    return parse_schema(settings.schema, settings.schema_name)


def guess_fields(
    plan: TablePlan, options: SourceOptions, settings: TableSettings, known: Fields = ()
) -> Fields:
    """The fields of the first JSON values that are not known."""
    values = first_values(plan, options, settings.infer_records)
    found = infer_fields(values, [one.name for one in known])
    if not found and not known:
        raise InvalidRequest(
            f"topic {plan.topic}: none of its first {settings.infer_records} records is an object "
            f"of JSON with fields that can be columns: {_REMEDY}"
        )
    return found


def guess_avro(plan: TablePlan, options: SourceOptions, settings: TableSettings) -> str:
    """The schema of the first value that names one."""
    if settings.registry is None:
        raise InvalidRequest("Avro values need a schema (.avsc) or the URL of a registry")
    values = first_values(plan, options, settings.infer_records)
    found = find_first_schema(values, settings.registry)
    if found is None:
        raise InvalidRequest(
            f"topic {plan.topic}: none of its first {settings.infer_records} records names a "
            f"schema of the registry: {_REMEDY}"
        )
    return found


def first_values(plan: TablePlan, options: SourceOptions, count: int) -> list[bytes]:
    """The first values of each partition that are there, in all about so many."""
    each = -(-count // max(1, len(plan.ends)))
    found: list[bytes] = []
    for _, pieces in groupby(plan.pieces, key=lambda piece: piece.partition):
        read = TaskRead(plan.topic, plan.topic_id, tuple(pieces))
        found += islice(_values(read, options), each)
    return found


def _values(read: TaskRead, options: SourceOptions) -> Iterator[bytes]:
    for batch in read_task(read, ArrowColumns(SOURCE), options, SourceFilters()):
        yield from (one.as_py() for one in batch["value"] if one.is_valid)
