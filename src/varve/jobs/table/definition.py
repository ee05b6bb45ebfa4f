"""The definition of a table: topic, mode, value format and columns, stored as its properties.

Invariant  an existing table is never changed by a schema that does not fit it. Columns are only
           added, and only when that is requested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from varve.foundation.errors import Corrupt, InconsistentTopicId, InvalidRequest
from varve.jobs.table import types
from varve.jobs.table.catalog import (
    find_table,
    get_table,
    make_namespace,
    split_name,
    translate_catalog_errors,
)
from varve.jobs.table.table_state import (
    AVRO,
    BUCKETS,
    FORMAT,
    FRAMED,
    MODE,
    PROPERTIES,
    SCHEMA,
    TOPIC,
    TOPIC_ID,
    translate_commit_errors,
)

COMMIT_BYTES: Final = 1 << 30
"""Log bytes per commit: the work that a killed run repeats at most."""
DEFAULT_BUCKETS: Final = 16
INFER_RECORDS: Final = 1000
SPLIT_BYTES: Final = 32 << 20
"""Log bytes per task."""
BAD: Final = "__bad"
"""Suffix of the name of a side table."""
_BUCKET_FIELD: Final = "_key_bucket"
_FIRST_PARTITION_ID: Final = 1000
"""Iceberg numbers partition fields from 1000 on."""


class TableMode(StrEnum):
    """Which records become rows."""

    APPEND = "append"
    """Every record, deletions among them."""
    UPSERT = "upsert"
    """The last record of each key; a deleted key has no row."""


class ValueFormat(StrEnum):
    """The format of record values."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Settings of a table and of a run.

    Mode, format and buckets of an existing table do not change; None accepts its own. `schema` is
    the text of a schema file. A run commits batches of about `commit_bytes`.
    """

    mode: TableMode | None = None
    format: ValueFormat | None = None
    schema: str | None = None
    schema_name: str = "the schema"
    registry: str | None = None
    buckets: int | None = None
    commit_bytes: int = COMMIT_BYTES
    split_bytes: int = SPLIT_BYTES
    infer_records: int = INFER_RECORDS
    is_adding_columns: bool = False
    is_keeping_expired: bool = False

    def __post_init__(self) -> None:
        if self.buckets is not None and not 1 <= self.buckets <= 10_000:
            raise InvalidRequest(f"buckets is {self.buckets}, it must be from 1 to 10000")
        for name in ("commit_bytes", "split_bytes", "infer_records"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.format is ValueFormat.RAW and (self.schema or self.registry):
            raise InvalidRequest("raw values have no schema: leave it out, or give another format")
        if self.registry is not None and self.format not in (ValueFormat.AVRO, None):
            raise InvalidRequest("a registry holds schemas of Avro values: give format avro")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """One table.

    `avro` is the reader schema of Avro values; with `is_framed` values name their writer schema in
    a registry.
    """

    topic: str
    topic_id: str
    mode: TableMode
    format: ValueFormat
    fields: types.Fields
    avro: str | None = None
    is_framed: bool = False
    buckets: int = DEFAULT_BUCKETS

    @property
    def is_keyed(self) -> bool:
        return self.mode is TableMode.UPSERT

    @property
    def has_bad(self) -> bool:
        """Whether records can be bad: raw values never are, but an upserted table requires keys."""
        return self.is_keyed or self.format is not ValueFormat.RAW

    def schema(self) -> Schema:
        columns = types.record_columns(has_deleted=not self.is_keyed)
        columns += [(field.name, field.type, False) for field in self.fields]
        if self.format is ValueFormat.JSON:
            columns.append((types.REST, StringType(), False))
        return types.number_fields(columns)

    def spec(self, schema: Schema) -> PartitionSpec:
        if not self.is_keyed:
            return UNPARTITIONED_PARTITION_SPEC
        key = schema.find_field(types.KEY).field_id
        bucket: BucketTransform[bytes] = BucketTransform(self.buckets)
        return PartitionSpec(PartitionField(key, _FIRST_PARTITION_ID, bucket, _BUCKET_FIELD))

    def properties(self) -> dict[str, str]:
        properties = {
            TOPIC: self.topic,
            TOPIC_ID: self.topic_id,
            MODE: str(self.mode),
            FORMAT: str(self.format),
            SCHEMA: types.dump_fields(self.fields),
            BUCKETS: str(self.buckets),
        }
        if self.avro is None:
            return properties
        return {**properties, AVRO: self.avro, FRAMED: str(self.is_framed).lower()}


def create_table(catalog: Catalog, name: str, definition: TableDefinition) -> Table:
    """Creates the table; returns the existing one if another program has created it."""
    make_namespace(catalog, split_name(name)[0])
    schema = definition.schema()
    return _create(catalog, name, schema, definition.spec(schema), definition.properties())


def _create(
    catalog: Catalog, name: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]
) -> Table:
    with translate_catalog_errors(f"table {name}"):
        try:
            return catalog.create_table(
                name, schema, partition_spec=spec, properties={**PROPERTIES, **properties}
            )
        except TableAlreadyExistsError:
            existing = find_table(catalog, name)
            assert existing is not None
            return existing


@dataclass
class TablePair:
    """A table and the side table of its rejected records, as last loaded."""

    catalog: Catalog
    name: str
    definition: TableDefinition
    table: Table
    bad: Table | None

    @classmethod
    def load(
        cls, catalog: Catalog, name: str, definition: TableDefinition, table: Table
    ) -> "TablePair":
        """Loads the side table of a table, if it has one; creates it if it is missing."""
        bad = None
        if definition.has_bad:
            bad = find_table(catalog, f"{name}{BAD}") or _create(
                catalog,
                f"{name}{BAD}",
                types.bad_schema(),
                UNPARTITIONED_PARTITION_SPEC,
                {TOPIC: definition.topic, TOPIC_ID: definition.topic_id},
            )
        return cls(catalog, name, definition, table, bad)

    def both(self) -> list[Table]:
        return [self.table] if self.bad is None else [self.table, self.bad]

    def locations(self) -> tuple[str, ...]:
        """Where the files are."""
        return tuple(table.location() for table in self.both())

    def reload(self) -> None:
        self.table = get_table(self.catalog, self.name)
        if self.bad is not None:
            self.bad = get_table(self.catalog, f"{self.name}{BAD}")


def find_with_rejected(catalog: Catalog, name: str) -> list[Table]:
    """Loads a table and its side table, if the catalog has them."""
    names = (name, f"{name}{BAD}")
    return [table for table_name in names if (table := find_table(catalog, table_name)) is not None]


def read_definition(table: Table) -> TableDefinition:
    """Reads the definition of a table; raises InvalidRequest if varve did not create it."""
    name = ".".join(table.name())
    properties = table.properties
    if TOPIC_ID not in properties or MODE not in properties:
        raise InvalidRequest(
            f"table {name} exists and was not created by varve: choose another name, or drop it"
        )
    try:
        definition = TableDefinition(
            topic=properties[TOPIC],
            topic_id=properties[TOPIC_ID],
            mode=TableMode(properties[MODE]),
            format=ValueFormat(properties[FORMAT]),
            fields=types.parse_schema(properties[SCHEMA], SCHEMA)
            if properties[SCHEMA] != "{}"
            else (),
            avro=properties.get(AVRO),
            is_framed=properties.get(FRAMED) == "true",
            buckets=int(properties[BUCKETS]),
        )
    except (KeyError, ValueError, InvalidRequest) as error:
        raise Corrupt(
            f"table {name}: its properties varve.* cannot be read ({error}): drop it and "
            "create it again"
        ) from error
    _check_columns(table, definition)
    return definition


def _check_columns(table: Table, definition: TableDefinition) -> None:
    """Raises InvalidRequest if another program has changed the columns."""
    name = ".".join(table.name())
    columns = {field.name: field.field_type for field in table.schema().fields}
    for field in definition.schema().fields:
        column = columns.get(field.name)
        if column is None or types.to_arrow(column) != types.to_arrow(field.field_type):
            state = "is missing" if column is None else f"is {types.show_type(column)}"
            raise InvalidRequest(
                f"table {name}: column {field.name} should be "
                f"{types.show_type(field.field_type)} and {state}: another program changed it; "
                "change it back, or create another table"
            )


def check_definition(
    definition: TableDefinition, name: str, topic_id: str, settings: TableSettings
) -> None:
    """Raises if the settings of a run do not match the existing table."""
    if definition.topic_id != topic_id:
        raise InconsistentTopicId(
            f"table {name} holds topic {definition.topic} with id {definition.topic_id}, but the "
            f"topic has id {topic_id}: it was recreated. Choose another name, or drop the table"
        )
    requested = {
        "mode": (settings.mode, definition.mode),
        "format": (settings.format, definition.format),
        "buckets": (settings.buckets, definition.buckets if definition.is_keyed else None),
    }
    for setting, (value, current) in requested.items():
        if value is not None and value != current:
            raise InvalidRequest(
                f"table {name} has {setting} {current or 'none'}, not {value}: leave it out, or "
                "create another table"
            )


def check_registry(definition: TableDefinition, name: str, registry: str | None) -> None:
    """Raises InvalidRequest if a registry is missing or unused: all rows would be bad."""
    if definition.is_framed and registry is None:
        raise InvalidRequest(
            f"table {name}: its values contain schema ids: give the registry's URL (--registry)"
        )
    if registry is not None and not definition.is_framed:
        raise InvalidRequest(
            f"table {name}: its values contain no schema ids: leave the registry out"
        )


def find_new_fields(
    definition: TableDefinition, name: str, fields: Sequence[types.ValueField], *, is_adding: bool
) -> types.Fields:
    """Returns the fields without a column; raises InvalidRequest for a changed type."""
    columns = {field.name: field for field in definition.fields}
    new: list[types.ValueField] = []
    for field in fields:
        column = columns.get(field.name)
        if column is None:
            new.append(field)
        elif column.arrow_type != field.arrow_type or column.is_required != field.is_required:
            raise InvalidRequest(
                f"table {name}: column {column.describe()} is given as {field.describe()}: the "
                "type of a column does not change. Nothing was changed; create another table"
            )
    if new and not is_adding:
        names = ", ".join(field.describe() for field in new)
        raise InvalidRequest(
            f"table {name} has no columns for {names:.300}; --add-columns adds them. "
            "Nothing was changed"
        )
    types.check_fields([*definition.fields, *new], name)
    return tuple(replace(field, is_required=False) for field in new)


def add_columns(
    table: Table, definition: TableDefinition, new: types.Fields, avro: str | None
) -> TableDefinition:
    """Adds optional columns and updates the stored definition, in one commit."""
    wider = replace(definition, fields=definition.fields + new, avro=avro or definition.avro)
    properties = wider.properties()
    with translate_commit_errors(table), table.transaction() as transaction:
        with transaction.update_schema() as update:
            for field in new:
                update.add_column(field.name, field.type)
        transaction.set_properties(
            {key: properties[key] for key in (SCHEMA, AVRO) if key in properties}
        )
    return wider
