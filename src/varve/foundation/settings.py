"""Settings declared once: default, bounds, Kafka's name and help in one place.

A settings class is a frozen dataclass whose fields are declared by `setting(...)`. The name of a
setting is that of its field with dots for underscores, after the class's `setting_prefix` if it has
one. Parsing, validation, conversion to Kafka's names and
docs/reference/configuration.md are derived from those declarations.

Invariant  every instance is valid: `__post_init__` calls `check_settings`.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol, TypeVar

from varve.foundation.errors import InvalidSetting
from varve.foundation.units import parse_duration, parse_size

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...]
GivenValue = bool | int | float | str | Any
"""A setting as a user gives it. `Any` admits a dict of mixed values, which is of objects."""

_DECLARATION = "varve.setting"
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_WITH_UNIT = re.compile(r"[0-9.]+ ?[A-Za-z].*", re.DOTALL)


class SettingText(str):
    """A value as text that knows its source, such as a file and its line, for errors."""

    __slots__ = ("source",)
    source: str

    def __new__(cls, text: str, source: str) -> "SettingText":
        value = super().__new__(cls, text)
        value.source = source
        return value


class SettingType(StrEnum):
    """The types of Kafka's configuration tables."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


_TYPE_LIMITS: dict[SettingType, tuple[int, int]] = {
    SettingType.INT: (-INT_MAX - 1, INT_MAX),
    SettingType.LONG: (-LONG_MAX - 1, LONG_MAX),
}


class Settings(Protocol):
    """Any dataclass whose fields are declared by `setting`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


S = TypeVar("S", bound=Settings)
T = TypeVar("T", bool, int, float, str, tuple[str, ...])


@dataclasses.dataclass(frozen=True, slots=True)
class SettingDeclaration:
    """Declaration of one setting.

    `at_least` and `at_most` are None where only the type bounds the value; `also` lists values that
    are valid outside the range; `broker_name` is the broker-wide name of a topic setting's default,
    empty if it has none; `is_own` marks a setting that Kafka does not have.
    """

    name: str
    kafka_name: str
    broker_name: str
    type: SettingType
    default: Value
    help: str
    at_least: int | float | None
    at_most: int | float | None
    also: tuple[int, ...]
    choices: tuple[str, ...]
    ignore_case: bool
    is_own: bool

    @property
    def valid_text(self) -> str:
        """The valid values as text, for the configuration page and error messages."""
        if self.choices:
            quantifier = "any of" if self.type is SettingType.LIST else "one of"
            return f"{quantifier} {', '.join(self.choices)}"
        if self.type is SettingType.BOOLEAN:
            return "true or false"
        return " or ".join(text for text in (self._range_text(), *map(str, self.also)) if text)

    @property
    def default_text(self) -> str:
        return format_value(self.default)

    @property
    def limits(self) -> tuple[int | float | None, int | float | None]:
        """The lowest and the highest value; the type's where no bound is declared."""
        type_min, type_max = _TYPE_LIMITS.get(self.type, (None, None))
        return (
            type_min if self.at_least is None else self.at_least,
            type_max if self.at_most is None else self.at_most,
        )

    def _range_text(self) -> str:
        low, high = self.at_least, self.at_most
        if low is not None and high is not None:
            return f"{low} to {high}" if low != high else str(low)
        if low is not None:
            return f"at least {low}"
        return "" if high is None else f"at most {high}"


def setting(
    default: T,
    help: str,
    *,
    kafka_name: str = "",
    broker_name: str = "",
    at_least: int | float | None = None,
    at_most: int | float | None = None,
    also: tuple[int, ...] = (),
    choices: tuple[str, ...] = (),
    ignore_case: bool = False,
    long: bool = False,
    is_own: bool = False,
) -> T:
    """Declare one field of a settings class; a whole number has 32 bits, or 64 if `long`.

    `kafka_name` is needed only if it cannot be derived from the field's name. Names that begin with
    `varve.`, and all names of a class with `is_own`, are not Kafka's.
    """
    declaration = SettingDeclaration(
        name="",
        kafka_name=kafka_name,
        broker_name=broker_name,
        type=_type_of(default, long=long),
        default=default,
        help=help,
        at_least=at_least,
        at_most=at_most,
        also=also,
        choices=choices,
        ignore_case=ignore_case,
        is_own=is_own,
    )
    return dataclasses.field(default=default, metadata={_DECLARATION: declaration})


def declared(settings: type[Settings] | Settings) -> list[SettingDeclaration]:
    """The declarations of a settings class, in the order of its fields."""
    return list(_declared(settings if isinstance(settings, type) else type(settings)))


@functools.cache  # called whenever a topic is created or described
def _declared(cls: type[Settings]) -> tuple[SettingDeclaration, ...]:
    prefix, is_own = getattr(cls, "setting_prefix", ""), getattr(cls, "is_own", False)
    declarations = []
    for field in dataclasses.fields(cls):
        declaration: SettingDeclaration = field.metadata[_DECLARATION]
        name = declaration.kafka_name or prefix + field.name.replace("_", ".")
        declarations.append(
            dataclasses.replace(
                declaration,
                name=field.name,
                kafka_name=name,
                is_own=declaration.is_own or is_own or name.startswith("varve."),
            )
        )
    return tuple(declarations)


def parse_settings(
    cls: type[S],
    values: Mapping[str, GivenValue],
    where: str = "settings",
    *,
    base: S | None = None,
    by_broker_name: bool = False,
) -> S:
    """Build settings from values by Kafka's names; others come from `base` or are the defaults.

    With `by_broker_name` the names are those of the defaults of topics. Raises InvalidSetting,
    naming `where`, for an unknown name and for a value of the wrong type or out of range.
    """
    parsed = parse_values(cls, values, where, by_broker_name=by_broker_name)
    if base is not None:
        return dataclasses.replace(base, **parsed)
    return cls(**parsed)


def parse_values(
    cls: type[Settings],
    values: Mapping[str, GivenValue],
    where: str,
    *,
    by_broker_name: bool = False,
) -> dict[str, Value]:
    """Each value by the name of its field, checked by itself: others may contradict it."""
    check_mapping(values, where)
    declarations = {
        (by_broker_name and declaration.broker_name) or declaration.kafka_name: declaration
        for declaration in declared(cls)
    }
    parsed: dict[str, Value] = {}
    for kafka_name, raw_value in values.items():
        declaration = declarations.get(kafka_name)
        if declaration is None:
            raise InvalidSetting(_unknown_name_message(kafka_name, declarations, where))
        named = f"{kafka_name} in {find_source(raw_value) or where}"
        value = _parse(declaration, raw_value, named)
        _check(declaration, value, named)
        parsed[declaration.name] = value
    return parsed


def find_source(value: GivenValue) -> str:
    """Where a value was written; empty if it does not know."""
    return value.source if isinstance(value, SettingText) else ""


def expand_units(values: Mapping[str, GivenValue], where: str) -> dict[str, GivenValue]:
    """The values, with milliseconds for `7d` in `retention.ms=7d` and bytes for `64MiB`.

    For settings that people write; the values of Kafka's protocol have no units. Raises
    InvalidRequest.
    """
    check_mapping(values, where)
    return {
        name: expand_unit(name, value, where) if isinstance(value, str) else value
        for name, value in values.items()
    }


def expand_unit(name: str, value: str, where: str = "") -> str:
    """One value as `expand_units` makes it."""
    if not _WITH_UNIT.fullmatch(value.strip()):
        return value
    source = find_source(value)
    named = f"{name} in {source or where}" if source or where else name
    if name.endswith(".ms"):
        number = parse_duration(value.strip(), name=named)
    elif name.endswith(".bytes"):
        number = parse_size(value, name=named)
    else:
        return value
    return SettingText(str(number), source) if source else str(number)


def check_mapping(values: object, where: str) -> None:
    """Raises InvalidSetting unless it is a mapping whose keys are text."""
    if not isinstance(values, Mapping):
        raise InvalidSetting(
            f"{where}: settings of type {type(values).__name__}; give a mapping of names to values"
        )
    for name in values:
        if not isinstance(name, str):
            raise InvalidSetting(f"{where}: the name of a setting is text, not {name!r:.80}")


def format_settings(values: Mapping[str, GivenValue], where: str) -> dict[str, str]:
    """The values as text, by the names as they are given; raises InvalidSetting."""
    check_mapping(values, where)
    texts = {}
    for name, value in values.items():
        given: object = tuple(value) if isinstance(value, list) else value
        if not isinstance(given, bool | int | float | str | tuple):
            raise InvalidSetting(
                f"{where}: {name} cannot be a {type(value).__name__}; give text, a number or a bool"
            )
        texts[name] = format_value(given)
    return texts


def check_settings(settings: Settings) -> None:
    """Raise InvalidSetting unless every value has its type and lies in its range."""
    where = type(settings).__name__
    for declaration in declared(settings):
        value = getattr(settings, declaration.name)
        if not _has_type(declaration.type, value):
            named = f"{declaration.kafka_name} in {where}"
            raise InvalidSetting(_wrong_type_message(declaration, value, named))
        _check(declaration, value, f"{declaration.kafka_name} in {where}")


def to_kafka_names(settings: Settings, *, only_changed: bool = False) -> dict[str, str]:
    """The values as text under Kafka's names; `only_changed` leaves out those at their default."""
    texts: dict[str, str] = {}
    for declaration in declared(settings):
        value: Value = getattr(settings, declaration.name)
        if not only_changed or value != declaration.default:
            texts[declaration.kafka_name] = format_value(value)
    return texts


def format_value(value: Value) -> str:
    """The text Kafka uses for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _type_of(default: Value, *, long: bool) -> SettingType:
    if isinstance(default, bool):
        return SettingType.BOOLEAN
    if isinstance(default, int):
        return SettingType.LONG if long else SettingType.INT
    if isinstance(default, float):
        return SettingType.DOUBLE
    return SettingType.LIST if isinstance(default, tuple) else SettingType.STRING


def _has_type(type: SettingType, value: object) -> bool:
    match type:
        case SettingType.BOOLEAN:
            return isinstance(value, bool)
        case SettingType.INT | SettingType.LONG:
            return isinstance(value, int) and not isinstance(value, bool)
        case SettingType.DOUBLE:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case SettingType.STRING:
            return isinstance(value, str)
        case SettingType.LIST:
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _parse(declaration: SettingDeclaration, raw_value: GivenValue, named: str) -> Value:
    value: Value | None = raw_value
    if isinstance(raw_value, str):
        value = _parse_text(declaration, raw_value.strip())
    if value is None or not _has_type(declaration.type, value):
        raise InvalidSetting(_wrong_type_message(declaration, raw_value, named))
    return (
        float(value) if declaration.type is SettingType.DOUBLE and isinstance(value, int) else value
    )


def _parse_text(declaration: SettingDeclaration, text: str) -> Value | None:
    """The value of the text; None if it is not of the declared type."""
    match declaration.type:
        case SettingType.BOOLEAN:
            return {"true": True, "false": False}.get(text.lower())
        case SettingType.INT | SettingType.LONG:
            # Longer text is out of range in any case, and int() takes quadratic time.
            return int(text) if len(text) <= 40 and _WHOLE_NUMBER.fullmatch(text) else None
        case SettingType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                return None
        case SettingType.STRING:
            return text.lower() if declaration.ignore_case else text
        case SettingType.LIST:
            items = (item.strip() for item in text.split(","))
            folded = (item.lower() if declaration.ignore_case else item for item in items if item)
            return tuple(dict.fromkeys(folded))


def _check(declaration: SettingDeclaration, value: Value, named: str) -> None:
    if not _is_valid(declaration, value):
        raise InvalidSetting(
            f"{named} is {_abbreviated_repr(value)}, but must be "
            f"{_limit_text(declaration)} (default {declaration.default_text})"
        )


def _is_valid(declaration: SettingDeclaration, value: Value) -> bool:
    if isinstance(value, tuple):
        return not declaration.choices or set(value) <= set(declaration.choices)
    if isinstance(value, str):
        return not declaration.choices or value in declaration.choices
    if isinstance(value, bool) or value in declaration.also:
        return True
    if value != value:  # NaN compares false with every limit
        return False
    low, high = declaration.limits
    return (low is None or value >= low) and (high is None or value <= high)


def _limit_text(declaration: SettingDeclaration) -> str:
    if declaration.type not in _TYPE_LIMITS or declaration.at_most is not None:
        return declaration.valid_text
    low, high = declaration.limits
    return " or ".join([f"{low} to {high}", *map(str, declaration.also)])


_LISTED_NAMES_MAX: Final = 12
"""More names than these are looked up in the documentation."""


def _unknown_name_message(
    name: str, declarations: Mapping[str, SettingDeclaration], where: str
) -> str:
    broker_name = re.sub(r"\.(hours|minutes)$", ".ms", name)
    of_topic = [one.kafka_name for one in declarations.values() if one.broker_name == broker_name]
    nearest = difflib.get_close_matches(name.replace("_", "."), declarations, n=1, cutoff=0.5)
    if of_topic and broker_name:
        remedy = f"it is the broker's name, a topic's is {of_topic[0]!r}"
    elif nearest:
        remedy = f"did you mean {nearest[0]!r}?"
    elif len(declarations) <= _LISTED_NAMES_MAX:
        remedy = f"known names are {', '.join(sorted(declarations))}"
    else:
        remedy = "docs/reference/configuration.md lists the settings"
    return f"unknown setting {_abbreviated_repr(name)} in {where}: {remedy}"


def _wrong_type_message(declaration: SettingDeclaration, raw_value: object, named: str) -> str:
    limit = _limit_text(declaration)
    return (
        f"{named} is {_abbreviated_repr(raw_value)}, "
        f"but must be of type {declaration.type}{f': {limit}' if limit else ''} "
        f"(default {declaration.default_text})"
    )


def _abbreviated_repr(value: object) -> str:
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
