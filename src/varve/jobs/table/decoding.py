"""Decodes record values into Arrow columns.

Invariant  a decoder turns every value into a row or a rejection with its reason, independently of
           other values. A value that does not fit its type is rejected, not converted.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyiceberg.types as iceberg

from varve.jobs.table.types import Fields, raw_fields

_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError)

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: JSON can escape one, UTF-8 cannot encode it."""

Convert = Callable[[Any], Any]
"""Converts a decoded, non-null value to one that Arrow accepts; raises ValueError."""


class ValueRejected(ValueError):
    """The value cannot become a row; the message says why."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`columns` hold the accepted values in order; `is_bad` marks the others, with `reasons`."""

    columns: tuple[pa.Array, ...]
    is_bad: npt.NDArray[np.bool_]
    reasons: tuple[str, ...] = ()


class Decoder(Protocol):
    """Decodes values; pickled for executors."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the decoded columns."""

    def decode(self, values: pa.Array, headers: pa.Array) -> Decoded:
        """Decodes values, none of which is null."""


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """Returns the bytes of values unchanged, with the headers."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in raw_fields())

    def decode(self, values: pa.Array, headers: pa.Array) -> Decoded:
        return Decoded((values, headers), np.zeros(len(values), np.bool_))


def join_decoded(parts: Sequence[Decoded]) -> Decoded:
    """Concatenates the rows of the parts."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.columns for part in parts), strict=True)
    return Decoded(
        tuple(pa.concat_arrays(arrays) for arrays in columns),
        np.concatenate([part.is_bad for part in parts]),
        tuple(reason for part in parts for reason in part.reasons),
    )


# Value by value


def decode_rows(
    values: pa.Array, fields: Fields, read: Callable[[bytes], Sequence[Any]]
) -> Decoded:
    """Decodes each value with `read`, which returns one item per field or raises ValueRejected."""
    rows: dict[int, Sequence[Any]] = {}
    reasons: dict[int, str] = {}
    for number, value in enumerate(values.to_pylist()):
        try:
            rows[number] = read(value)
        except ValueRejected as error:
            reasons[number] = str(error)
    try:
        columns = _make_columns(rows, fields)
    except _ARROW_ERRORS:
        for number, row in rows.items():
            reasons |= _find_misfit(number, row, fields)
        fitting = {number: row for number, row in rows.items() if number not in reasons}
        columns = _make_columns(fitting, fields)
    is_bad = np.isin(np.arange(len(values)), list(reasons))
    return Decoded(columns, is_bad, tuple(reasons[number] for number in sorted(reasons)))


def _make_columns(rows: Mapping[int, Sequence[Any]], fields: Fields) -> tuple[pa.Array, ...]:
    return tuple(
        pa.array([row[slot] for row in rows.values()], field.arrow_type)
        for slot, field in enumerate(fields)
    )


def _find_misfit(number: int, row: Sequence[Any], fields: Fields) -> dict[int, str]:
    for field, value in zip(fields, row, strict=True):
        try:
            pa.array([value], field.arrow_type)
        except _ARROW_ERRORS as error:
            return {number: f"field {field.name}: {value!r:.60} does not fit: {error!s:.100}"}
    return {}


def make_converter(
    type: iceberg.IcebergType, find_leaf: Callable[[iceberg.IcebergType], Convert]
) -> Convert:
    """Returns a converter of values and nulls; `find_leaf` returns those of primitive types."""
    convert: Convert
    match type:
        case iceberg.ListType():
            convert = partial(_read_list, make_converter(type.element_type, find_leaf))
        case iceberg.MapType():
            convert = partial(_read_map, make_converter(type.value_type, find_leaf))
        case iceberg.StructType():
            members = {
                member.name: make_converter(member.field_type, find_leaf) for member in type.fields
            }
            convert = partial(_read_struct, members)
        case _:
            convert = find_leaf(type)
    return partial(_read_optional, convert)


def _read_optional(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _read_list(convert: Convert, value: Any) -> list[Any]:
    check_kind(value, list, "a list")
    return [convert(item) for item in value]


def _read_map(convert: Convert, value: Any) -> list[tuple[str, Any]]:
    check_kind(value, dict, "an object")
    return [(read_text(name), convert(item)) for name, item in value.items()]


def _read_struct(members: Mapping[str, Convert], value: Any) -> dict[str, Any]:
    check_kind(value, dict, "an object")
    return {name: convert(value.get(name)) for name, convert in members.items()}


def read_text(value: Any) -> str:
    check_kind(value, str, "a string")
    if SURROGATE.search(value):
        raise ValueRejected("half of a surrogate pair")
    return str(value)


def check_kind(value: Any, types: type | tuple[type, ...], name: str) -> None:
    """Raises ValueRejected for other types; a bool is not a number here, unlike in Python."""
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        raise ValueRejected(f"not {name}")
