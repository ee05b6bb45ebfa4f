"""How Kafka's messages are declared: dataclasses whose fields know their place on the wire.

A field has a type, the versions that carry it and, where it may be null or is tagged, the versions
in which it is. Versions are written as in Kafka's own tables: `0+`, `3-7`, `4`. A message looks the
same in every version: fields that a version lacks have their defaults.

Invariant  a declaration holds facts of the protocol and nothing else; `compiler` makes functions of
           it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform
from uuid import UUID

T = TypeVar("T")

VERSION_END: Final = 1 << 15
NO_ID: Final = UUID(int=0)
"""Stands for no id where the wire has no null."""


class Kind(Enum):
    """What a field is on the wire; those with one letter are known to `struct` by it."""

    BOOLEAN = "?"
    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    UINT32 = "I"
    INT64 = "q"
    FLOAT64 = "d"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    ARRAY = "array"
    STRUCT = "struct"

    @property
    def is_fixed(self) -> bool:
        return len(self.value) == 1


@dataclass(frozen=True, slots=True)
class Versions:
    """From the first to the last, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        if text == "none":
            return cls(VERSION_END, VERSION_END)
        first, dash, last = text.removesuffix("+").partition("-")
        if text.endswith("+"):
            return cls(int(first), VERSION_END - 1)
        return cls(int(first), int(last if dash else first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field or of an array's elements; `struct` is a class made by `wire_struct`."""

    kind: Kind
    struct: type | None = None
    element: "FieldType | None" = None


BOOLEAN: Final = FieldType(Kind.BOOLEAN)
INT8: Final = FieldType(Kind.INT8)
INT16: Final = FieldType(Kind.INT16)
UINT16: Final = FieldType(Kind.UINT16)
INT32: Final = FieldType(Kind.INT32)
UINT32: Final = FieldType(Kind.UINT32)
INT64: Final = FieldType(Kind.INT64)
FLOAT64: Final = FieldType(Kind.FLOAT64)
UUID_TYPE: Final = FieldType(Kind.UUID)
STRING: Final = FieldType(Kind.STRING)
BYTES: Final = FieldType(Kind.BYTES)
RECORDS: Final = FieldType(Kind.RECORDS)


@dataclass(frozen=True, slots=True)
class WireField:
    """A field as the wire has it."""

    type: FieldType
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions


def _declare(
    type: FieldType, versions: str, nullable: str, tag: int | None, tagged: str | None
) -> dict[str, WireField]:
    in_tags = "none" if tag is None else tagged or versions
    found = WireField(
        type, Versions.parse(versions), Versions.parse(nullable), tag, Versions.parse(in_tags)
    )
    return {"wire": found}


def scalar(
    type: FieldType,
    versions: str = "0+",
    default: Any = 0,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """A number, a truth value, an id, a text or bytes."""
    return field(default=default, metadata=_declare(type, versions, nullable, tag, tagged))


def array(
    element: FieldType | type,
    versions: str = "0+",
    *,
    nullable: str = "none",
    is_null: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """A list of values of one type; by default empty, or with `is_null` None."""
    of = element if isinstance(element, FieldType) else FieldType(Kind.STRUCT, struct=element)
    place = _declare(FieldType(Kind.ARRAY, element=of), versions, nullable, tag, tagged)
    if is_null:
        return field(default=None, metadata=place)
    return field(default_factory=list, metadata=place)


def nested(
    kind: type,
    versions: str = "0+",
    *,
    nullable: str = "none",
    is_null: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """One struct; by default that of its defaults, or with `is_null` None."""
    place = _declare(FieldType(Kind.STRUCT, struct=kind), versions, nullable, tag, tagged)
    if is_null:
        return field(default=None, metadata=place)
    return field(default_factory=kind, metadata=place)


def _show(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equals(self: Any, other: Any) -> bool:
    kind: Any = type(self)
    values_of = _getter_of(kind)
    return type(other) is kind and bool(values_of(self) == values_of(other))


@cache
def _getter_of(cls: Any) -> Callable[[Any], Any]:
    names = cls.__match_args__
    return attrgetter(*names) if names else lambda _: ()


def _as_dataclass(cls: Any) -> Any:
    """With a text, a comparison and a docstring that are not made for each class.

    There are hundreds, and making these was half the time that importing them took.
    """
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls.__repr__, cls.__eq__ = _show, _equals
    return dataclass(slots=True, repr=False, eq=False)(cls)


@dataclass_transform()
def wire_struct(cls: type[T]) -> type[T]:
    """A part of messages."""
    return _as_dataclass(cls)  # type: ignore[no-any-return]  # the class it was given


class Message:
    """Base of whole messages: what is told of them beside their fields."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    """-1 for what is no request or response."""
    VERSIONS: ClassVar[Versions]
    SERVED: ClassVar[Versions]
    """The versions that the server offers; fewer where newer ones need what it does not do."""
    FLEXIBLE: ClassVar[int]
    """The first version with compact lengths and tagged fields."""


@dataclass_transform()
def wire_message(
    versions: str, *, flexible: str = "none", api_key: int = -1, served: str | None = None
) -> Callable[[type[T]], type[T]]:
    """A whole message: a request, a response, or a record of an internal topic."""

    def make(cls: type[T]) -> type[T]:
        made: Any = _as_dataclass(cls)
        made.API_KEY = api_key
        made.VERSIONS = Versions.parse(versions)
        made.SERVED = Versions.parse(served or versions)
        made.FLEXIBLE = Versions.parse(flexible).first
        return made  # type: ignore[no-any-return]  # the class it was given, as a dataclass

    return make


def wire_fields(cls: type) -> list[tuple[str, WireField, Any]]:
    """Name, place and default of each field, in the order of the wire; the default of a list is
    the class `list`, that of a struct its class.
    """
    found = []
    for one in fields(cls):
        made = one.default_factory
        found.append((one.name, one.metadata["wire"], made if callable(made) else one.default))
    return found
