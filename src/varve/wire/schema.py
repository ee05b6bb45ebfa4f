"""Declarations of Kafka's messages: dataclasses whose fields know their encoding.

A field has a type, the versions that carry it and, where it may be null or is tagged, the versions
in which it is. Versions are written as in Kafka's own tables: `0+`, `3-7`, `4`. A message looks the
same in every version: fields that a version lacks have their defaults.

Invariant  a declaration holds facts of the protocol and nothing else; `compiler` compiles it.
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
"""Means no id, where the protocol has no null."""


class Kind(Enum):
    """The encoding of a field; those of one letter are format characters of `struct`."""

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
    """A range of versions, both ends included."""

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
    """The encoding of one field."""

    type: FieldType
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions


def _declare(
    type: FieldType, versions: str, nullable: str, tag: int | None, tagged: str | None
) -> dict[str, WireField]:
    tagged_versions = "none" if tag is None else tagged or versions
    return {
        "wire": WireField(
            type,
            Versions.parse(versions),
            Versions.parse(nullable),
            tag,
            Versions.parse(tagged_versions),
        )
    }


def scalar(
    type: FieldType,
    versions: str = "0+",
    default: Any = 0,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """A number, boolean, UUID, string or bytes."""
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
    """One struct; by default one with default values, or with `is_null` None."""
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
    """A dataclass whose `repr`, comparison and docstring are not generated for each class.

    There are hundreds, and generating these took half of the import time.
    """
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls.__repr__, cls.__eq__ = _show, _equals
    return dataclass(slots=True, repr=False, eq=False)(cls)


@dataclass_transform()
def wire_struct(cls: type[T]) -> type[T]:
    """A struct within messages."""
    return _as_dataclass(cls)  # type: ignore[no-any-return]  # the class it was given


class Message:
    """Base of messages, with what is declared of them beside their fields."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    """-1 for records of internal topics."""
    VERSIONS: ClassVar[Versions]
    SERVED: ClassVar[Versions]
    """The versions that the server offers; fewer where newer ones need unsupported features."""
    FLEXIBLE: ClassVar[int]
    """The first version with compact lengths and tagged fields."""


@dataclass_transform()
def wire_message(
    versions: str, *, flexible: str = "none", api_key: int = -1, served: str | None = None
) -> Callable[[type[T]], type[T]]:
    """A message: a request, a response, or a record of an internal topic."""

    def make(cls: type[T]) -> type[T]:
        message: Any = _as_dataclass(cls)
        message.API_KEY = api_key
        message.VERSIONS = Versions.parse(versions)
        message.SERVED = Versions.parse(served or versions)
        message.FLEXIBLE = Versions.parse(flexible).first
        return message  # type: ignore[no-any-return]  # the class it was given, as a dataclass

    return make


def wire_fields(cls: type) -> list[tuple[str, WireField, Any]]:
    """Name, encoding and default of each field in wire order.

    The default of a list is the class `list`, that of a struct its class.
    """
    encoded = []
    for item in fields(cls):
        factory = item.default_factory
        default = factory if callable(factory) else item.default
        encoded.append((item.name, item.metadata["wire"], default))
    return encoded
