"""Decodes Avro values into columns, with one schema or with the schemas of a registry.

Layout     with a registry: byte 0, the schema id (4 bytes, big-endian), the datum, as Confluent's
           serializers write it. Without a registry a value is the datum alone.
Invariant  values are resolved to the schema of the table, whatever schema wrote them. A value with
           an unknown schema id becomes a bad row, and the id is requested again by the next batch;
           a registry that fails ends the run.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from struct import Struct
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyiceberg.types as iceberg
import requests
from fastavro.schema import SchemaParseException, UnknownType

from varve.foundation.errors import Corrupt, InvalidRequest, StoreDenied, StoreUnavailable
from varve.jobs.table import decoding
from varve.jobs.table.types import Fields, ValueField, list_of, map_of, struct_of

ParsedSchema = Any
"""A schema as fastavro parses it."""

_FRAME_HEAD: Final = Struct(">bi")
_DEPTH_MAX: Final = 20
"""Nesting of types."""
_TIMEOUT_SECONDS: Final = 10
_REQUEST_ATTEMPTS_MAX: Final = 3
_SCHEMA_BYTES_MAX: Final = 4 << 20
_PRIMITIVES: Final[Mapping[str, iceberg.IcebergType]] = {
    "boolean": iceberg.BooleanType(),
    "int": iceberg.IntegerType(),
    "long": iceberg.LongType(),
    "float": iceberg.FloatType(),
    "double": iceberg.DoubleType(),
    "string": iceberg.StringType(),
    "bytes": iceberg.BinaryType(),
    "enum": iceberg.StringType(),
    "fixed": iceberg.BinaryType(),
}
_LOGICAL: Final[Mapping[str, iceberg.IcebergType]] = {
    "date": iceberg.DateType(),
    "time-millis": iceberg.TimeType(),
    "time-micros": iceberg.TimeType(),
    "timestamp-millis": iceberg.TimestamptzType(),
    "timestamp-micros": iceberg.TimestamptzType(),
    "local-timestamp-millis": iceberg.TimestampType(),
    "local-timestamp-micros": iceberg.TimestampType(),
    "uuid": iceberg.StringType(),
}


def parse_avro(text: str, where: str) -> ParsedSchema:
    """Parses the JSON of a schema; raises InvalidRequest."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError) as error:
        line = f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"{where} is not an Avro schema: {line:.300}") from error


@lru_cache(maxsize=256)
def _parse_cached(text: str) -> ParsedSchema:
    return parse_avro(text, "the schema of the registry")


def avro_fields(schema: ParsedSchema, where: str) -> Fields:
    """Returns the columns of a record schema; raises InvalidRequest for unsupported types."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidRequest(f"{where}: values must be records, this schema has another type")
    expanded: Any = fastavro.schema.expand_schema(schema)
    return tuple(
        ValueField(
            field["name"],
            _convert_type(field["type"], f"{where}: field {field['name']}"),
            not _is_optional(field),
        )
        for field in expanded["fields"]
    )


class SchemaRegistry:
    """Fetches schemas by id from Confluent's schema registry over HTTP.

    The schema of an id never changes, so fetched schemas are cached, and pickled with the registry.
    Threads may share it.
    """

    def __init__(self, url: str, schemas: Mapping[int, str] | None = None) -> None:
        self._url = url
        self._schemas = dict(schemas or {})

    def __reduce__(self) -> tuple[type["SchemaRegistry"], tuple[str, dict[int, str]]]:
        return type(self), (self._url, dict(self._schemas))

    def find_schema(self, schema_id: int) -> str | None:
        """Returns the text of a schema; None if the registry does not have its id.

        Raises StoreDenied, StoreUnavailable or Corrupt if the request fails.
        """
        schema = self._schemas.get(schema_id) or self._fetch(schema_id)
        if schema is not None:
            self._schemas[schema_id] = schema
        return schema

    def _fetch(self, schema_id: int) -> str | None:
        base_url, auth = _split_user(self._url)
        url = f"{base_url.rstrip('/')}/schemas/ids/{schema_id}"
        response = _request(url, auth)
        if response.status_code == 404:
            return None
        if response.status_code in (401, 403):
            raise StoreDenied(
                f"{url}: the registry denied access (status {response.status_code}): check the "
                "user, the password and their permissions"
            )
        if response.status_code != 200:
            raise StoreUnavailable(
                f"{url}: the registry responded with status {response.status_code}"
            )
        return _decode_schema(response.content, url)


def _decode_schema(data: bytes, url: str) -> str:
    if len(data) > _SCHEMA_BYTES_MAX:
        raise Corrupt(
            f"{url}: the response has {len(data)} bytes, a schema may have {_SCHEMA_BYTES_MAX}: "
            "correct the registry"
        )
    try:
        document: dict[str, Any] = json.loads(data)
        kind = document.get("schemaType", "AVRO")
        schema = document["schema"]
        if kind != "AVRO":
            raise ValueError(f"a schema of type {kind}")
        json.loads(schema)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{url}: not an Avro schema: {error!r:.200}: correct the registry") from error
    return str(schema)


def _request(url: str, auth: tuple[str, str] | None) -> requests.Response:
    headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
    for attempts_left in reversed(range(_REQUEST_ATTEMPTS_MAX)):
        try:
            response = requests.get(url, auth=auth, headers=headers, timeout=_TIMEOUT_SECONDS)
        except requests.RequestException as error:
            if not attempts_left:
                line = f"{type(error).__name__}: {error}".splitlines()[0]
                raise StoreUnavailable(
                    f"{url}: the registry cannot be reached: {line:.200}"
                ) from error
            continue
        if response.status_code < 500 or not attempts_left:
            return response
    raise AssertionError("the last try returns or raises")


def _split_user(url: str) -> tuple[str, tuple[str, str] | None]:
    """Splits user and password off a URL."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    return urlunsplit(parts._replace(netloc=host)), (unquote(name), unquote(password))


def find_first_schema(values: Iterable[bytes], registry: SchemaRegistry) -> str | None:
    """Returns the schema of the first value whose schema id the registry has."""
    for value in values:
        if len(value) >= _FRAME_HEAD.size and value[0] == 0:
            schema = registry.find_schema(_FRAME_HEAD.unpack_from(value)[1])
            if schema is not None:
                return schema
    return None


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """Decodes records; `schema` is the text of the reader schema."""

    fields: Fields
    schema: str
    registry: SchemaRegistry | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def decode(self, values: pa.Array, headers: pa.Array) -> decoding.Decoded:
        reader = _parse_cached(self.schema)
        converters = [
            (field.name, decoding.make_converter(field.type, _find_leaf)) for field in self.fields
        ]
        missing: set[int] = set()

        def read(value: bytes) -> list[Any]:
            row = self._read(value, reader, missing)
            return [convert(row.get(name)) for name, convert in converters]

        return decoding.decode_rows(values, self.fields, read)

    def _read(self, value: bytes, reader: ParsedSchema, missing: set[int]) -> dict[str, Any]:
        writer, datum = reader, value
        if self.registry is not None:
            writer, datum = self._open_frame(value, self.registry, missing)
        stream = BytesIO(datum)
        try:
            row = fastavro.schemaless_reader(stream, writer, reader)
        except Exception as error:  # fastavro raises any exception for invalid bytes
            raise decoding.ValueRejected(
                f"not a value of its Avro schema: {type(error).__name__}: {error}"[:200]
            ) from None
        if stream.read(1):
            raise decoding.ValueRejected("bytes follow the Avro value: it has another schema")
        if not isinstance(row, dict):
            raise decoding.ValueRejected("the Avro value is not a record")
        return row

    def _open_frame(
        self, value: bytes, registry: SchemaRegistry, missing: set[int]
    ) -> tuple[ParsedSchema, bytes]:
        """Returns the writer schema and the datum of a value; requests a `missing` id once."""
        if len(value) < _FRAME_HEAD.size or value[0] != 0:
            raise decoding.ValueRejected("the value does not begin with a schema id")
        schema_id = _FRAME_HEAD.unpack_from(value)[1]
        text = None if schema_id in missing else registry.find_schema(schema_id)
        if text is None:
            missing.add(schema_id)
            raise decoding.ValueRejected(f"the registry has no schema with id {schema_id}")
        return _parse_cached(text), value[_FRAME_HEAD.size :]


def _convert_type(schema: Any, where: str, depth: int = 0) -> iceberg.IcebergType:
    """Converts a type whose names are resolved; that of a recursive type is left in it."""
    if depth > _DEPTH_MAX:
        raise InvalidRequest(f"{where}: types are nested more than {_DEPTH_MAX} deep")
    match schema:
        case list():
            branches = [branch for branch in schema if branch != "null"]
            if len(branches) != 1:
                raise InvalidRequest(
                    f"{where}: a union of {len(branches)} types besides null cannot be a column"
                )
            return _convert_type(branches[0], where, depth + 1)
        case str() if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        case str():
            problem = "null" if schema == "null" else f"the recursive type {schema}"
            raise InvalidRequest(f"{where}: {problem} cannot be a column")
    logical = _find_logical(schema)
    if logical is not None:
        return logical
    match schema["type"]:
        case "record" | "error":
            return struct_of(
                {
                    field["name"]: _convert_type(
                        field["type"], f"{where}.{field['name']}", depth + 1
                    )
                    for field in schema["fields"]
                }
            )
        case "array":
            return list_of(_convert_type(schema["items"], f"{where}[]", depth + 1))
        case "map":
            return map_of(_convert_type(schema["values"], f"{where}{{}}", depth + 1))
        case inner:
            return _convert_type(inner, where, depth + 1)


def _find_logical(schema: Mapping[str, Any]) -> iceberg.IcebergType | None:
    name = schema.get("logicalType", "")
    if name == "decimal":
        precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
        return iceberg.DecimalType(precision, scale) if 0 < precision <= 38 else None
    return _LOGICAL.get(name)


def _is_optional(field: Mapping[str, Any]) -> bool:
    type = field["type"]
    return type == "null" or (isinstance(type, list) and "null" in type)


def _find_leaf(type: iceberg.IcebergType) -> decoding.Convert:
    """Arrow accepts the values of fastavro, except UUIDs."""
    return str if isinstance(type, iceberg.StringType) else _keep


def _keep(value: Any) -> Any:
    return value
