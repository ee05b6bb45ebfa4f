"""Options of the data source `varve`, each declared once: name, values, default and help.

An options class is a frozen dataclass whose fields are declared by `option(...)`. Parsing, the
error for an unknown name and docs/reference/spark-options.md are derived from these declarations.

Invariant  option names are case-insensitive. An unknown name and a value that cannot be parsed
           raise InvalidRequest with the remedy.
"""

import dataclasses
import difflib
import json
import os
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import LONG_MAX
from varve.kafka_client.address import SERVER_NAMES

T = TypeVar("T")

_DECLARATION: Final = "varve.option"
_OFFSET_WORDS: Final = {"earliest": 0, "latest": LONG_MAX}
_KAFKA_OFFSETS: Final = {-2: 0, -1: LONG_MAX}  # what Spark's Kafka source writes for these words
_NAMES_ELSEWHERE: Final = {
    "dir": "directory",
    "path": "directory",
    "store": "url",
    "subscribe": "topic",
}
"""Names in Spark, in its Kafka source and in varve's commands, and the options for the same."""


_OFFSETS_REMEDY: Final = 'write a number, earliest, latest, or JSON such as {"0": 5}'


class OptionUse(StrEnum):
    """Which queries use an option."""

    ALL = "batch, stream"
    BATCH = "batch"
    STREAM = "stream"


@dataclasses.dataclass(frozen=True, slots=True)
class OptionDeclaration:
    """One option; `names` are aliases, and a name that ends in a dot is a prefix of options.

    `values` describes the texts that `parse` accepts; it raises ValueError for others.
    """

    names: tuple[str, ...]
    parse: Callable[[str], Any]
    values: str
    default: str
    help: str
    use: OptionUse


def option(
    default: T,
    names: str,
    parse: Callable[[str], Any],
    help: str,
    *,
    values: str = "",
    default_text: str = "",
    use: OptionUse = OptionUse.ALL,
) -> T:
    """Declares one field of an options class; several `names`, separated by spaces, are aliases."""
    declaration = OptionDeclaration(
        names=tuple(names.split()),
        parse=parse,
        values=values or _describe_values(parse),
        default=default_text or _describe_default(default),
        help=help,
        use=use,
    )
    return dataclasses.field(default=default, metadata={_DECLARATION: declaration})


def settings_option(prefix: str, help: str) -> tuple[tuple[str, str], ...]:
    """Declares a field with all options that start with a prefix, as pairs without the prefix."""
    return option((), prefix, str, help)


def declared_options(cls: type[Any]) -> dict[str, OptionDeclaration]:
    """Returns the declarations of an options class by field name."""
    return {
        field.name: field.metadata[_DECLARATION]
        for field in dataclasses.fields(cls)
        if _DECLARATION in field.metadata
    }


def parse_declared(
    cls: type[Any],
    options: Mapping[str, str],
    *,
    operation: str,
    other_names: Collection[str] = (),
    use: OptionUse = OptionUse.ALL,
) -> dict[str, Any]:
    """Parses the fields of an options class; the names in `options` are in lower case.

    Raises InvalidRequest for an option that queries of this `use` would ignore.

    Options of a Kafka client and `other_names` are accepted and left to the caller.
    """
    declarations = declared_options(cls)
    _check_names(declarations.values(), options, operation, {*other_names, *SERVER_NAMES})
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    fields: dict[str, Any] = {}
    for name, declaration in declarations.items():
        first = declaration.names[0].lower()
        if first.endswith("."):
            settings = {
                key.removeprefix(first): text
                for key, text in options.items()
                if key.startswith(first)
            }
            fields[name] = tuple(sorted(settings.items()))
            continue
        aliases = [alias for alias in declaration.names if alias.lower() in options]
        if len(aliases) > 1:
            raise InvalidRequest(f"give {' or '.join(aliases)}, not both")
        if aliases:
            fields[name] = _parse_option(declaration, aliases[0], options[aliases[0].lower()])
            is_for_other = OptionUse.ALL not in (use, declaration.use) and use != declaration.use
            if is_for_other and fields[name] != defaults[name]:
                raise InvalidRequest(
                    f"option {aliases[0]} is for a {declaration.use} {operation}, and a {use} "
                    f"{operation} would ignore it: leave it out"
                )
    return fields


def _parse_option(declaration: OptionDeclaration, name: str, text: str) -> Any:
    kind = declaration.parse
    try:
        return kind(text)
    except ValueError as error:
        is_enum = isinstance(kind, type) and issubclass(kind, StrEnum)
        reason = f"use one of {', '.join(kind)}" if is_enum else str(error)  # type: ignore[arg-type]
        raise InvalidRequest(f"option {name}={text!r:.200} cannot be used: {reason}") from error


def _check_names(
    declarations: Collection[OptionDeclaration],
    options: Mapping[str, str],
    operation: str,
    other_names: Collection[str],
) -> None:
    names = [name for declaration in declarations for name in declaration.names]
    valid_names = {name.lower(): name for name in [*names, *SERVER_NAMES]}
    prefixes = tuple(name for name in valid_names if name.endswith("."))
    for name in options:
        if name in valid_names or name in other_names or name.startswith(prefixes):
            continue
        raise InvalidRequest(
            f"there is no option {name!r:.80} of a {operation}: {_name_remedy(name, valid_names)}"
        )


def _name_remedy(name: str, valid_names: Mapping[str, str]) -> str:
    """The option that was probably meant, or all of them."""
    shown = {
        key: f"{text}NAME" if text.endswith(".") else text for key, text in valid_names.items()
    }
    meant = _NAMES_ELSEWHERE.get(name, "")
    nearest = [meant] if meant in shown else difflib.get_close_matches(name, shown, n=1)
    return (
        f"did you mean {shown[nearest[0]]}?"
        if nearest
        else f"there are {', '.join(shown.values())}"
    )


def _describe_values(parse: Callable[[str], Any]) -> str:
    if isinstance(parse, type):
        return ", ".join(f"`{value}`" for value in parse) if issubclass(parse, StrEnum) else "text"
    return (parse.__doc__ or "").partition("\n")[0].rstrip(".")


def _describe_default(default: object) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if isinstance(default, int | str) and default else ""


# Parsers of values. docs/reference/spark-options.md shows the first line of their docstrings.


def parse_flag(text: str) -> bool:
    """`true` or `false`."""
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("write true or false")
    return words[text.strip().lower()]


def parse_count(text: str) -> int:
    """A number, at least 0."""
    return _parse_number(text, 0)


def parse_positive(text: str) -> int:
    """A number, at least 1."""
    return _parse_number(text, 1)


def _parse_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"write a number, at least {least}") from None
    if not least <= value <= LONG_MAX:
        raise ValueError(f"it must be at least {least} and fit into 64 bits")
    return value


def parse_list(text: str) -> tuple[str, ...]:
    """Words, separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_directories(text: str) -> tuple[str, ...]:
    """Paths, separated by commas."""
    # Executors may run in another directory.
    return tuple(os.path.abspath(path) for path in parse_list(text))


def parse_moment(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601, in UTC unless it has an offset."""
    try:
        if text.strip().lstrip("-").isdigit():
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("write milliseconds since 1970, or 2026-03-01T12:00:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_by_partition(text: str) -> int | Mapping[int, int]:
    """A number, `earliest`, `latest`, or JSON: `{"0": 5}` or `{"topic": {"0": 5}}`."""
    word = text.strip().lower()
    if word in _OFFSET_WORDS:
        return _OFFSET_WORDS[word]
    try:
        table = json.loads(text)
        if type(table) is int and table >= 0:
            return table
        if len(table) == 1 and isinstance(next(iter(table.values())), dict):
            (table,) = table.values()
        offsets = {int(partition): offset for partition, offset in table.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(_OFFSETS_REMEDY) from None
    for partition, offset in offsets.items():
        if type(offset) is not int or offset < min(_KAFKA_OFFSETS):
            raise ValueError(
                f"{offset!r:.40} of partition {partition} is not an offset: {_OFFSETS_REMEDY}"
            )
    return {number: _KAFKA_OFFSETS.get(offset, offset) for number, offset in offsets.items()}
