"""Decodes JSON values into columns, a block at once with Arrow or value by value.

Invariant  a value that does not fit its type is rejected, not converted: no text for a number, no
           fraction for an integer, no integer that a double would round, nothing out of range.
           Decoding a block gives the same result as decoding value by value: a block in which a
           value is not one JSON object, or which Arrow parses more leniently, is decoded by rows.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.json as pj  # type: ignore[import-untyped]  # ships no types
import pyiceberg.types as iceberg

from varve.foundation.errors import InvalidRequest
from varve.jobs.table import decoding
from varve.jobs.table.types import REST, Fields, ValueField, show_type, to_arrow

_MICROSECONDS_MIN: Final = -62_135_596_800_000_000
"""The start of year 1, the first that readers support."""
_MICROSECONDS_MAX: Final = 253_402_300_799_999_999
_EPOCH: Final = datetime(1970, 1, 1)
_SHOWN_CHARACTERS_MAX: Final = 60
_ROWS_MIN: Final = 64
"""A failed block of at most this many values is decoded value by value, not halved."""

_PLAIN: Final[Mapping[type[iceberg.IcebergType], pa.DataType]] = {
    iceberg.BooleanType: pa.bool_(),
    iceberg.IntegerType: pa.int32(),
    iceberg.LongType: pa.int64(),
    iceberg.DoubleType: pa.float64(),
    iceberg.StringType: pa.string(),
}
"""Types that a block may have at any depth, and the Arrow type that parses them."""
_TEXT: Final = pa.large_string()
_TIMESTAMPS: Final = (iceberg.TimestampType, iceberg.TimestamptzType)
_BY_TEXT: Final = (iceberg.DateType, iceberg.DecimalType)
_DATE: Final = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d$"
_DECIMAL: Final = r"^-?\d{1,18}(\.\d{1,18})?$"
_EXACT_BELOW: Final = float(1 << 53)
"""Below it a double holds every integer."""
_BRACKETS_MAX: Final = 1000
"""Brackets in one value: Arrow recurses for nested ones, and a stack overflow ends the process."""


class RowReader:
    """Decodes values one by one: exact, but slower than a block."""

    def __init__(self, fields: Fields) -> None:
        self._fields = {
            field.name: (decoding.make_converter(field.type, _find_leaf), field) for field in fields
        }
        self._required = [field.name for field in fields if field.is_required]

    def read(self, value: bytes) -> list[Any]:
        """Returns the columns of a value, the last with all other fields; raises ValueRejected."""
        document = parse_json(value)
        for name in self._required:
            if document.get(name) is None:
                raise decoding.ValueRejected(f"field {name} is required and missing")
        row: list[Any] = []
        for name, (convert, column) in self._fields.items():
            member = document.get(name)
            try:
                row.append(convert(member))
            except ValueError as error:
                text = json.dumps(member, default=str)[:_SHOWN_CHARACTERS_MAX]
                raise decoding.ValueRejected(
                    f"field {name}: {text} is not a {show_type(column.type)}: {error}"
                ) from None
        return [*row, self.rest(document)]

    def rest(self, document: Mapping[str, Any]) -> str | None:
        """Encodes the fields without a column as JSON; drops nulls."""
        unmapped = {
            name: _rest_of(value, self._fields[name][1].type) if name in self._fields else value
            for name, value in document.items()
        }
        kept = {name: value for name, value in unmapped.items() if value is not None}
        if not kept:
            return None
        text = json.dumps(kept, ensure_ascii=False, default=_show_decimal)
        return decoding.SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


@lru_cache(maxsize=16)
def make_row_reader(fields: Fields) -> RowReader:
    """Cached per process, because a reader cannot be pickled."""
    return RowReader(fields)


def parse_json(value: bytes) -> dict[str, Any]:
    """Parses a JSON object with exact numbers; raises ValueRejected."""
    try:
        document = json.loads(value.decode(), parse_float=Decimal, parse_constant=_refuse)
    except RecursionError:
        raise decoding.ValueRejected("not readable as JSON: nested too deep") from None
    except InvalidOperation:
        raise decoding.ValueRejected("a number in it is too large or too small") from None
    except ValueError as error:
        raise decoding.ValueRejected(f"not JSON: {error}"[:200]) from None
    if not isinstance(document, dict):
        raise decoding.ValueRejected(f"JSON, but not an object: {type(document).__name__}")
    return document


def _refuse(word: str) -> Any:
    raise decoding.ValueRejected(f"{word} is not JSON")


def _show_decimal(value: Any) -> float | str:
    """Converts to a float, or to text if a float cannot represent it."""
    number = float(value)
    return number if math.isfinite(number) else str(value)


def _rest_of(value: Any, type: iceberg.IcebergType) -> Any:
    """Returns the members without a column; a list with such an item is kept whole."""
    if isinstance(value, dict) and isinstance(type, iceberg.StructType):
        members = {field.name: field.field_type for field in type.fields}
        unmapped = {
            name: _rest_of(inner, members[name]) if name in members else inner
            for name, inner in value.items()
        }
        return {name: inner for name, inner in unmapped.items() if inner is not None} or None
    if isinstance(value, list) and isinstance(type, iceberg.ListType):
        return value if any(_rest_of(item, type.element_type) for item in value) else None
    if isinstance(value, dict) and isinstance(type, iceberg.MapType):
        return value if any(_rest_of(item, type.value_type) for item in value.values()) else None
    return None


# Leaves


def _find_leaf(type: iceberg.IcebergType) -> decoding.Convert:
    if isinstance(type, iceberg.DecimalType):
        limit = Decimal(10) ** (type.precision - type.scale)
        return partial(_read_decimal, limit, Decimal(1).scaleb(-type.scale))
    leaf = _LEAVES.get(type.__class__)
    if leaf is None:
        raise InvalidRequest(f"JSON has no values of type {type}")
    return leaf


def _read_decimal(limit: Decimal, step: Decimal, value: Any) -> Decimal:
    decoding.check_kind(value, (int, str, Decimal), "a number")
    try:
        number = Decimal(value)
        rounded = number.quantize(step)
    except (InvalidOperation, ValueError):
        raise decoding.ValueRejected("not a decimal number") from None
    if rounded != number or abs(number) >= limit:
        raise decoding.ValueRejected("too many digits")
    return rounded


def _read_boolean(value: Any) -> bool:
    decoding.check_kind(value, bool, "true or false")
    return bool(value)


def _read_integer(bits: int, value: Any) -> int:
    decoding.check_kind(value, int, "an integer")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise decoding.ValueRejected(f"beyond {bits} bits")
    return int(value)


def _read_double(value: Any) -> float:
    decoding.check_kind(value, (int, float, Decimal), "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise decoding.ValueRejected("too large")
    if isinstance(value, int) and int(number) != value:
        raise decoding.ValueRejected("an integer with more digits than a double holds exactly")
    return number


def _read_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(decoding.read_text(value), validate=True)
    except binascii.Error as error:
        raise decoding.ValueRejected(f"not base64: {error}") from None


def _read_date(value: Any) -> date:
    return date.fromisoformat(decoding.read_text(value))


def _read_time(value: Any) -> time:
    moment = time.fromisoformat(decoding.read_text(value))
    if moment.tzinfo is not None:
        raise decoding.ValueRejected("it has a time zone")
    return moment


def _read_timestamp(has_zone: bool, value: Any) -> datetime:
    """Converts ISO 8601 text or milliseconds to a UTC time without a zone."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return _EPOCH + timedelta(milliseconds=value)
        moment = datetime.fromisoformat(decoding.read_text(value))
        if moment.tzinfo is None:
            return moment
        if not has_zone:
            raise decoding.ValueRejected("it has a time zone")
        return moment.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        raise decoding.ValueRejected("beyond the years 1 to 9999") from None


_LEAVES: Final[dict[type[iceberg.IcebergType], decoding.Convert]] = {
    iceberg.BooleanType: _read_boolean,
    iceberg.IntegerType: partial(_read_integer, 32),
    iceberg.LongType: partial(_read_integer, 64),
    iceberg.FloatType: _read_double,
    iceberg.DoubleType: _read_double,
    iceberg.StringType: decoding.read_text,
    iceberg.BinaryType: _read_bytes,
    iceberg.DateType: _read_date,
    iceberg.TimeType: _read_time,
    iceberg.TimestampType: partial(_read_timestamp, False),
    iceberg.TimestamptzType: partial(_read_timestamp, True),
}


# Blocks of values


class _NeedsRowPath(Exception):
    """The block must be read value by value."""


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes values into the columns of a schema, and `_rest` for all other fields."""

    fields: Fields

    @property
    def columns(self) -> Fields:
        return (*self.fields, ValueField(REST, iceberg.StringType()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def decode(self, values: pa.Array, headers: pa.Array) -> decoding.Decoded:
        if not self.fields or None in map(_block_type, (column.type for column in self.fields)):
            return self.decode_rows(values)
        return decoding.join_decoded(self._decode(values))

    def _decode(self, values: pa.Array) -> list[decoding.Decoded]:
        """Halves a failed block, so that only the values around a bad one are decoded by rows."""
        try:
            return [self.decode_block(values)]
        except _NeedsRowPath:
            if len(values) <= _ROWS_MIN:
                return [self.decode_rows(values)]
        half = len(values) // 2
        return [*self._decode(values[:half]), *self._decode(values[half:])]

    def decode_rows(self, values: pa.Array) -> decoding.Decoded:
        """Decodes each value by itself."""
        return decoding.decode_rows(values, self.columns, make_row_reader(self.fields).read)

    # A block at once

    def decode_block(self, values: pa.Array) -> decoding.Decoded:
        """Decodes all values at once; raises _NeedsRowPath if one of them needs row decoding."""
        objects = self._parse(values)
        arrays: list[pa.Array] = []
        for column in self.fields:
            array = _convert(objects.field(column.name), column.type)
            if column.is_required and array.null_count:
                raise _NeedsRowPath
            arrays.append(array)
        rest, is_bad, reasons = self._find_rest(values, objects)
        if reasons:
            good = pa.array(~is_bad)
            arrays = [array.filter(good) for array in arrays]
            rest = rest.filter(good)
        return decoding.Decoded((*arrays, rest), is_bad, tuple(reasons))

    def _parse(self, values: pa.Array) -> pa.StructArray:
        """Parses the values as a struct array; fields without a column are members too."""
        try:
            text = values.cast(pa.string())
        except pa.ArrowInvalid:
            raise _NeedsRowPath from None
        brackets = pc.add(pc.count_substring(text, "["), pc.count_substring(text, "{"))
        if (pc.max(brackets).as_py() or 0) > _BRACKETS_MAX:
            raise _NeedsRowPath
        numbers = pa.array(np.arange(len(values)))
        framed = pc.binary_join_element_wise(
            '{"n":', numbers.cast(pa.string()), ',"v":', text, "}\n", ""
        )
        offsets = np.frombuffer(framed.buffers()[1], np.int32)[framed.offset :]
        data = framed.buffers()[2].slice(int(offsets[0]), int(offsets[len(framed)] - offsets[0]))
        has_timestamps = any(isinstance(column.type, _TIMESTAMPS) for column in self.fields)
        for is_numeric in (False, True) if has_timestamps else (False,):
            rows = self._read(data, is_numeric)
            if rows is not None:
                return _check_frame(rows, numbers)
        raise _NeedsRowPath

    def _read(self, data: pa.Buffer, is_numeric: bool) -> pa.Table | None:
        members = [
            pa.field(column.name, _block_type(column.type, is_numeric)) for column in self.fields
        ]
        schema = pa.schema([("n", pa.int64()), ("v", pa.struct(members))])
        try:
            return pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=schema,
                    newlines_in_values=True,
                    unexpected_field_behavior="infer",
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _find_rest(
        self, values: pa.Array, objects: pa.StructArray
    ) -> tuple[pa.Array, npt.NDArray[np.bool_], list[str]]:
        """Returns the `_rest` column, and the values rejected for it with their reasons."""
        names = {column.name for column in self.fields}
        has_rest = np.zeros(len(values), np.bool_)
        for slot, member in enumerate(objects.type):
            if member.name not in names:
                has_rest |= objects.field(slot).is_valid().to_numpy(zero_copy_only=False)
        is_bad = np.zeros(len(values), np.bool_)
        if not has_rest.any():
            return pa.nulls(len(values), _TEXT), is_bad, []
        reader = make_row_reader(self.fields)
        texts: list[str | None] = [None] * len(values)
        reasons: list[str] = []
        for number in np.flatnonzero(has_rest).tolist():
            try:
                texts[number] = reader.rest(parse_json(values[number].as_py()))
            except decoding.ValueRejected as error:
                is_bad[number] = True
                reasons.append(str(error))
        return pa.array(texts, _TEXT), is_bad, reasons


def _check_frame(rows: pa.Table, numbers: pa.Array) -> pa.StructArray:
    """Checks that each value is one object: a crafted value cannot become several rows."""
    if rows.column_names != ["n", "v"] or len(rows) != len(numbers):
        raise _NeedsRowPath
    frame = rows.combine_chunks()
    inner = frame["v"].chunk(0) if frame["v"].num_chunks else frame["v"].combine_chunks()
    if inner.null_count or not frame["n"].combine_chunks().equals(numbers):
        raise _NeedsRowPath
    return inner


def _block_type(type: iceberg.IcebergType, is_numeric: bool = False) -> pa.DataType | None:
    """The type that Arrow parses for a column, before `_convert`; None if rows are required.

    With `is_numeric` timestamps are milliseconds, else text.
    """
    if isinstance(type, _TIMESTAMPS):
        return pa.int64() if is_numeric else pa.string()
    if isinstance(type, _BY_TEXT):
        return pa.string()
    if isinstance(type, iceberg.FloatType):
        return pa.float64()
    return _plain_type(type)


def _plain_type(type: iceberg.IcebergType) -> pa.DataType | None:
    if isinstance(type, iceberg.ListType):
        item = _plain_type(type.element_type)
        return None if item is None else pa.list_(item)
    if isinstance(type, iceberg.StructType):
        members = {member.name: _plain_type(member.field_type) for member in type.fields}
        return None if None in members.values() else pa.struct(members)
    return _PLAIN.get(type.__class__)


def _convert(array: pa.Array, type: iceberg.IcebergType) -> pa.Array:
    """Converts a parsed column to its type; raises _NeedsRowPath."""
    arrow_type = to_arrow(type)
    try:
        if isinstance(type, _TIMESTAMPS):
            return _convert_timestamps(array, arrow_type)
        if isinstance(type, _BY_TEXT):
            return _convert_text(array, arrow_type)
        if array.type != _block_type(type):
            raise _NeedsRowPath  # members without a column
        if isinstance(type, (iceberg.FloatType, iceberg.DoubleType)) and not _is_exact(array):
            raise _NeedsRowPath
        if type.__class__ not in _PLAIN and _has_floats(array.type):
            raise _NeedsRowPath
        return array.cast(arrow_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _NeedsRowPath from None


def _has_floats(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return any(_has_floats(member.type) for member in type)
    if pa.types.is_list(type):
        return _has_floats(type.value_type)
    return bool(pa.types.is_floating(type))


def _is_exact(array: pa.Array) -> bool:
    """Whether all numbers are finite and so small that Arrow has rounded no integer."""
    small = pc.less(pc.abs(array), _EXACT_BELOW)
    return bool(pc.all(small, skip_nulls=True).as_py() is not False)


def _convert_timestamps(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_int64(array.type):
        microseconds = pc.multiply_checked(array, 1000)
    else:
        microseconds = array.cast(arrow_type).cast(pa.int64())
    bounds = pc.min_max(microseconds).as_py()
    if bounds["min"] is not None and (
        bounds["min"] < _MICROSECONDS_MIN or bounds["max"] > _MICROSECONDS_MAX
    ):
        raise _NeedsRowPath
    return microseconds.cast(arrow_type)


def _convert_text(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Converts dates and decimals in notations that both decoders parse alike."""
    pattern = _DATE if pa.types.is_date(arrow_type) else _DECIMAL
    if not pc.all(pc.match_substring_regex(array, pattern), skip_nulls=True).as_py() is not False:
        raise _NeedsRowPath
    return array.cast(arrow_type)
