"""JSON values as columns: a block at once where all of it is well, else value by value.

Invariant  a block is taken only if each value in it is one object of its own, and then holds what
           reading value by value gives: whatever Arrow takes more freely goes the slow way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.json as pj  # type: ignore[import-untyped]  # ships no types
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from varve.jobs.table.decode import Decoded, join_decoded
from varve.jobs.table.schema import REST, Fields, to_arrow
from varve.jobs.table.values import (
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    RowReader,
    Unfit,
    parse_json,
)

_ROWS_MIN: Final = 64
"""So few values are read one by one when they do not pass as a block."""

_PLAIN: Final = (BooleanType, IntegerType, LongType, DoubleType, StringType)
_MOMENTS: Final = (TimestampType, TimestamptzType)
_DATE: Final = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d$"
_DECIMAL: Final = r"^-?\d{1,18}(\.\d{1,18})?$"
_EXACT_BELOW: Final = float(1 << 53)
"""Below it a double holds every integer."""
_OPENED_MAX: Final = 1000
"""Brackets in one value: Arrow reads nested ones on the stack, and ends the process without it."""


class _NotPlain(Exception):
    """The block must be read value by value."""


@dataclass(frozen=True)
class JsonDecoder:
    """Columns of a schema, and the text of what has no column."""

    fields: Fields
    _rows: RowReader = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", RowReader(self.fields))

    def __getstate__(self) -> Fields:
        return self.fields

    def __setstate__(self, fields: Fields) -> None:
        object.__setattr__(self, "fields", fields)
        self.__post_init__()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(one.name for one in self.fields), REST)

    def decode(self, values: pa.Array, headers: pa.Array) -> Decoded:
        if not self.fields or not all(_is_plain(one.type) for one in self.fields):
            return self.decode_rows(values)
        return join_decoded(self._decode(values))

    def _decode(self, values: pa.Array) -> list[Decoded]:
        """By halves, so that a bad value sends only those around it the slow way."""
        try:
            return [self.decode_block(values)]
        except _NotPlain:
            if len(values) <= _ROWS_MIN:
                return [self.decode_rows(values)]
        half = len(values) // 2
        return [*self._decode(values[:half]), *self._decode(values[half:])]

    # Value by value

    def decode_rows(self, values: pa.Array) -> Decoded:
        """Each value by itself."""
        is_bad = np.zeros(len(values), np.bool_)
        rows: list[list[Any]] = []
        reasons: list[str] = []
        for number, value in enumerate(values.to_pylist()):
            try:
                row, rest = self._rows.read(value)
                rows.append([*row, rest])
            except Unfit as error:
                is_bad[number] = True
                reasons.append(str(error))
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else None
        types = [one.arrow_type for one in self.fields]
        arrays = [
            make_array([] if columns is None else columns[slot], type)
            for slot, type in enumerate([*types, pa.string()])
        ]
        return Decoded(tuple(arrays), is_bad, tuple(reasons))

    # A block at once

    def decode_block(self, values: pa.Array) -> Decoded:
        """All values at once; raises _NotPlain where one of them is not as it should be."""
        found = self._parse(values)
        arrays: list[pa.Array] = []
        for one in self.fields:
            array = _convert(found.field(one.name), one.type)
            if one.is_required and array.null_count:
                raise _NotPlain
            arrays.append(array)
        rest, is_bad, reasons = self._find_rest(values, found)
        if reasons:
            good = pa.array(~is_bad)
            arrays = [array.filter(good) for array in arrays]
            rest = rest.filter(good)
        return Decoded((*arrays, rest), is_bad, tuple(reasons))

    def _parse(self, values: pa.Array) -> pa.StructArray:
        """The objects as a structure; fields without a column are members too."""
        try:
            text = values.cast(pa.string())
        except pa.ArrowInvalid:
            raise _NotPlain from None
        opened = pc.add(pc.count_substring(text, "["), pc.count_substring(text, "{"))
        if (pc.max(opened).as_py() or 0) > _OPENED_MAX:
            raise _NotPlain
        numbers = pa.array(np.arange(len(values)))
        told = pc.binary_join_element_wise(
            '{"n":', numbers.cast(pa.string()), ',"v":', text, "}\n", ""
        )
        offsets = np.frombuffer(told.buffers()[1], np.int32)[told.offset :]
        data = told.buffers()[2].slice(int(offsets[0]), int(offsets[len(told)] - offsets[0]))
        for is_numeric in (False, True) if self._has_moments() else (False,):
            found = self._read(data, is_numeric)
            if found is not None:
                return _check_frame(found, numbers)
        raise _NotPlain

    def _has_moments(self) -> bool:
        return any(isinstance(one.type, _MOMENTS) for one in self.fields)

    def _read(self, data: pa.Buffer, is_numeric: bool) -> pa.Table | None:
        members = [pa.field(one.name, _block_type(one.type, is_numeric)) for one in self.fields]
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
        self, values: pa.Array, found: pa.StructArray
    ) -> tuple[pa.Array, npt.NDArray[np.bool_], list[str]]:
        """The text of other fields where there are some, and values that are bad for it."""
        known = {one.name for one in self.fields}
        has_rest = np.zeros(len(values), np.bool_)
        for slot, member in enumerate(found.type):
            if member.name not in known:
                has_rest |= found.field(slot).is_valid().to_numpy(zero_copy_only=False)
        is_bad = np.zeros(len(values), np.bool_)
        if not has_rest.any():
            return pa.nulls(len(values), pa.string()), is_bad, []
        texts: list[str | None] = [None] * len(values)
        reasons: list[str] = []
        for number in np.flatnonzero(has_rest).tolist():
            try:
                texts[number] = self._rows.rest(parse_json(values[number].as_py()))
            except Unfit as error:
                is_bad[number] = True
                reasons.append(str(error))
        return pa.array(texts, pa.string()), is_bad, reasons


def make_array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Python values as a column; moments are given in microseconds."""
    if pa.types.is_timestamp(type) or pa.types.is_time(type):
        return pa.array(values, pa.int64()).cast(type)
    return pa.array(values, type)


def _check_frame(found: pa.Table, numbers: pa.Array) -> pa.StructArray:
    """Each value is one object, in its own frame: a crafted one cannot pose as several."""
    if found.column_names != ["n", "v"] or len(found) != len(numbers):
        raise _NotPlain
    frame = found.combine_chunks()
    inner = frame["v"].chunk(0) if frame["v"].num_chunks else frame["v"].combine_chunks()
    if inner.null_count or not frame["n"].combine_chunks().equals(numbers):
        raise _NotPlain
    return inner


def _is_plain(type: IcebergType) -> bool:
    """Whether a block can hold a column of it."""
    if isinstance(type, (*_MOMENTS, DateType, DecimalType, FloatType)):
        return True
    return _is_plain_inside(type)


def _is_plain_inside(type: IcebergType) -> bool:
    match type:
        case ListType():
            return _is_plain_inside(type.element_type)
        case StructType():
            return all(_is_plain_inside(one.field_type) for one in type.fields)
    return isinstance(type, _PLAIN)


def _block_type(type: IcebergType, is_numeric: bool) -> pa.DataType:
    """What Arrow reads for a column; the rest of the way is `_convert`."""
    if isinstance(type, _MOMENTS):
        return pa.int64() if is_numeric else pa.string()
    if isinstance(type, (DateType, DecimalType)):
        return pa.string()
    if isinstance(type, FloatType):
        return pa.float64()
    return _plain_type(type)


def _plain_type(type: IcebergType) -> pa.DataType:
    match type:
        case ListType():
            return pa.list_(_plain_type(type.element_type))
        case StructType():
            return pa.struct([(one.name, _plain_type(one.field_type)) for one in type.fields])
        case BooleanType():
            return pa.bool_()
        case IntegerType():
            return pa.int32()
        case LongType():
            return pa.int64()
        case DoubleType():
            return pa.float64()
    return pa.string()


def _convert(array: pa.Array, type: IcebergType) -> pa.Array:
    """A column as its type wants it; raises _NotPlain."""
    wanted = to_arrow(type)
    try:
        if isinstance(type, _MOMENTS):
            return _convert_moments(array, wanted)
        if isinstance(type, (DateType, DecimalType)):
            return _convert_text(array, wanted)
        if array.type != _block_type(type, False):
            raise _NotPlain  # members that no column takes
        if isinstance(type, (FloatType, DoubleType)) and not _is_exact(array):
            raise _NotPlain
        if not isinstance(type, _PLAIN) and _has_floats(array.type):
            raise _NotPlain
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _NotPlain from None


def _has_floats(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return any(_has_floats(one.type) for one in type)
    if pa.types.is_list(type):
        return _has_floats(type.value_type)
    return bool(pa.types.is_floating(type))


def _is_exact(array: pa.Array) -> bool:
    """Whether no number is so large that Arrow may have rounded an integer, or is infinite."""
    small = pc.less(pc.abs(array), _EXACT_BELOW)
    return bool(pc.all(small, skip_nulls=True).as_py() is not False)


def _convert_moments(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_int64(array.type):
        made = pc.multiply_checked(array, 1000)
    else:
        made = array.cast(wanted).cast(pa.int64())
    bounds = pc.min_max(made).as_py()
    if bounds["min"] is not None and (
        bounds["min"] < MICROSECONDS_MIN or bounds["max"] > MICROSECONDS_MAX
    ):
        raise _NotPlain
    return made.cast(wanted)


def _convert_text(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Only the forms that both ways of reading take alike."""
    pattern = _DATE if pa.types.is_date(wanted) else _DECIMAL
    if not pc.all(pc.match_substring_regex(array, pattern), skip_nulls=True).as_py() is not False:
        raise _NotPlain
    return array.cast(wanted)
