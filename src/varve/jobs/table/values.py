"""One JSON value after the other into the values of a column, with what has no column.

Invariant  a value that does not fit its type is refused, not bent: no text for a number, no
           fraction for an integer, no integer that a double would round, nothing out of range.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from varve.foundation.errors import InvalidRequest
from varve.jobs.table.schema import Fields, show_type

MICROSECONDS_MIN: Final = -62_135_596_800_000_000
"""The year 1, where calendars of readers begin."""
MICROSECONDS_MAX: Final = 253_402_300_799_999_999

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = 60
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a pair: text of JSON may hold one as an escape, and no UTF-8 can."""


class Unfit(ValueError):
    """Why a value cannot be a row."""


Convert = Callable[[Any], Any]
"""A value of JSON, not null, into what Arrow takes; raises Unfit."""


class RowReader:
    """Opens values one by one: exact, and slow beside reading a block of them."""

    def __init__(self, fields: Fields) -> None:
        self._fields = {one.name: (make_convert(one.type), one) for one in fields}
        self._required = [one.name for one in fields if one.is_required]

    def read(self, value: bytes) -> tuple[list[Any], str | None]:
        """The columns of one value, and its other fields as JSON; raises Unfit."""
        document = parse_json(value)
        for name in self._required:
            if document.get(name) is None:
                raise Unfit(f"field {name} is required and is not there")
        row: list[Any] = []
        for name, (convert, field) in self._fields.items():
            given = document.get(name)
            try:
                row.append(None if given is None else convert(given))
            except Unfit as error:
                told = json.dumps(given, default=str)[:_SHOWN]
                raise Unfit(
                    f"field {name}: {told} is no {show_type(field.type)}: {error}"
                ) from None
        return row, self.rest(document)

    def rest(self, document: Mapping[str, Any]) -> str | None:
        """The fields that no column takes; what is null is no loss."""
        left = {
            name: _rest_of(given, self._fields[name][1].type) if name in self._fields else given
            for name, given in document.items()
        }
        kept = {name: given for name, given in left.items() if given is not None}
        if not kept:
            return None
        told = json.dumps(kept, ensure_ascii=False, default=_show_decimal)
        return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", told)


def parse_json(value: bytes) -> dict[str, Any]:
    """An object of JSON with its numbers exact; raises Unfit."""
    try:
        document = json.loads(value.decode(), parse_float=Decimal, parse_constant=_refuse)
    except RecursionError:
        raise Unfit("no JSON that can be read: nested too deep") from None
    except InvalidOperation:
        raise Unfit("a number in it is too large or too small") from None
    except ValueError as error:
        raise Unfit(f"no JSON: {error}"[:200]) from None
    if not isinstance(document, dict):
        raise Unfit(f"JSON, but no object: {type(document).__name__}")
    return document


def _refuse(word: str) -> Any:
    raise Unfit(f"{word} is no JSON")


def _show_decimal(value: Any) -> float | str:
    """A number; as text where it is beyond those that JSON's readers take."""
    made = float(value)
    return made if math.isfinite(made) else str(value)


def _rest_of(given: Any, type: IcebergType) -> Any:
    """What the members of structures leave over; a list is kept whole if one of its items does."""
    if isinstance(given, dict) and isinstance(type, StructType):
        members = {one.name: one.field_type for one in type.fields}
        left = {
            name: _rest_of(inner, members[name]) if name in members else inner
            for name, inner in given.items()
        }
        return {name: inner for name, inner in left.items() if inner is not None} or None
    if isinstance(given, list) and isinstance(type, ListType):
        return given if any(_rest_of(one, type.element_type) for one in given) else None
    if isinstance(given, dict) and isinstance(type, MapType):
        return given if any(_rest_of(one, type.value_type) for one in given.values()) else None
    return None


def make_convert(type: IcebergType) -> Convert:
    """How values of a type are read."""
    match type:
        case ListType():
            return _make_list(make_convert(type.element_type))
        case MapType():
            return _make_map(make_convert(type.value_type))
        case StructType():
            return _make_struct({one.name: make_convert(one.field_type) for one in type.fields})
        case DecimalType():
            return _make_decimal(type)
    found = _CONVERTS.get(type.__class__)
    if found is None:
        raise InvalidRequest(f"JSON has no values of type {type}")
    return found


def _inner(convert: Convert, given: Any) -> Any:
    return None if given is None else convert(given)


def _make_list(convert: Convert) -> Convert:
    def read(given: Any) -> list[Any]:
        if not isinstance(given, list):
            raise Unfit("not a list")
        return [_inner(convert, one) for one in given]

    return read


def _make_map(convert: Convert) -> Convert:
    def read(given: Any) -> list[tuple[str, Any]]:
        if not isinstance(given, dict):
            raise Unfit("not an object")
        return [(_text(name), _inner(convert, one)) for name, one in given.items()]

    return read


def _make_struct(members: Mapping[str, Convert]) -> Convert:
    def read(given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise Unfit("not an object")
        return {name: _inner(convert, given.get(name)) for name, convert in members.items()}

    return read


def _make_decimal(type: DecimalType) -> Convert:
    limit = Decimal(10) ** (type.precision - type.scale)
    step = Decimal(1).scaleb(-type.scale)

    def read(given: Any) -> Decimal:
        if isinstance(given, bool) or not isinstance(given, (int, str, Decimal)):
            raise Unfit("not a number")
        try:
            number = Decimal(given)
            rounded = number.quantize(step)
        except (InvalidOperation, ValueError):
            raise Unfit("not such a number") from None
        if rounded != number or abs(number) >= limit:
            raise Unfit("too many digits")
        return rounded

    return read


def _boolean(given: Any) -> bool:
    if not isinstance(given, bool):
        raise Unfit("not true or false")
    return given


def _make_integer(bits: int) -> Convert:
    limit = 1 << (bits - 1)

    def read(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int):
            raise Unfit("not an integer")
        if not -limit <= given < limit:
            raise Unfit(f"beyond {bits} bits")
        return given

    return read


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float, Decimal)):
        raise Unfit("not a number")
    try:
        made = float(given)
    except OverflowError:
        made = float("inf")
    if made in (float("inf"), float("-inf")):
        raise Unfit("too large")
    if isinstance(given, int) and int(made) != given:
        raise Unfit("an integer with more digits than a double holds exactly")
    return made


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise Unfit("not a text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise Unfit("half of a surrogate pair") from None
    return given


def _bytes(given: Any) -> bytes:
    try:
        return base64.b64decode(_text(given), validate=True)
    except binascii.Error as error:
        raise Unfit(f"no base64: {error}") from None


def _date(given: Any) -> date:
    try:
        return date.fromisoformat(_text(given))
    except ValueError as error:
        raise Unfit(str(error)) from None


def _time(given: Any) -> int:
    try:
        moment = time.fromisoformat(_text(given))
    except ValueError as error:
        raise Unfit(str(error)) from None
    if moment.tzinfo is not None:
        raise Unfit("it has a zone")
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return seconds * 1_000_000 + moment.microsecond


def _make_moment(*, has_zone: bool) -> Convert:
    """Microseconds of an ISO 8601 text, or of a number of milliseconds."""

    def read(given: Any) -> int:
        if isinstance(given, int) and not isinstance(given, bool):
            return _check_moment(given * 1000)
        try:
            moment = datetime.fromisoformat(_text(given))
        except ValueError as error:
            raise Unfit(str(error)) from None
        if moment.tzinfo is None:
            return _count_microseconds(moment, _EPOCH)
        if not has_zone:
            raise Unfit("it has a zone")
        return _check_moment(_count_microseconds(moment, _EPOCH_UTC))

    return read


def _check_moment(found: int) -> int:
    if not MICROSECONDS_MIN <= found <= MICROSECONDS_MAX:
        raise Unfit("beyond the years 1 to 9999")
    return found


def _count_microseconds(moment: datetime, epoch: datetime) -> int:
    span = moment - epoch
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


_CONVERTS: Final[dict[type[IcebergType], Convert]] = {
    BooleanType: _boolean,
    IntegerType: _make_integer(32),
    LongType: _make_integer(64),
    FloatType: _number,
    DoubleType: _number,
    StringType: _text,
    BinaryType: _bytes,
    DateType: _date,
    TimeType: _time,
    TimestampType: _make_moment(has_zone=False),
    TimestamptzType: _make_moment(has_zone=True),
}
