"""Declarations of Kafka's messages: dataclasses whose annotations give the encoding of fields.

    class JoinGroupRequest(Message, versions="0-9", flexible="6+", api_key=11):
        group_id: str = field()
        session_timeout_ms: Int32 = field()
        group_instance_id: str | None = field("5+", None)
        protocols: list[JoinGroupRequestProtocol] = field()

The arguments of `field` are those of Kafka's own tables: the versions that carry the field, written
as `0+`, `3-7` or `4`, its default, and, where they differ from these versions, the ones in which
it may be null. A message looks the same in every version: fields that a version lacks have their
defaults.

Invariant  a declaration holds facts of the protocol and nothing else; `compiler` compiles it.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Union, dataclass_transform, get_args, get_origin
from uuid import UUID

VERSION_END: Final = 1 << 15
NO_ID: Final = UUID(int=0)
"""The protocol's null value of a UUID."""


class Kind(Enum):
    """The encoding of a field; those of one letter are format characters of `struct`."""

    BOOLEAN = "?"
    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
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


Int8 = Annotated[int, Kind.INT8]
Int16 = Annotated[int, Kind.INT16]
UInt16 = Annotated[int, Kind.UINT16]
Int32 = Annotated[int, Kind.INT32]
Int64 = Annotated[int, Kind.INT64]
Records = Annotated[memoryview, Kind.RECORDS]

_KINDS: Final[dict[Any, Kind]] = {
    bool: Kind.BOOLEAN,
    float: Kind.FLOAT64,
    UUID: Kind.UUID,
    str: Kind.STRING,
    bytes: Kind.BYTES,
}
_DEFAULTS: Final[dict[Kind, Any]] = {
    Kind.BOOLEAN: False,
    Kind.FLOAT64: 0.0,
    Kind.UUID: NO_ID,
    Kind.STRING: "",
    Kind.BYTES: b"",
}
"""Of scalars other than integers, whose default is 0."""


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
    """The type of a field or of an array's elements; `struct` is a subclass of Struct."""

    kind: Kind
    struct: type | None = None
    element: "FieldType | None" = None


@dataclass(frozen=True, slots=True)
class WireField:
    """The encoding of one field; it is tagged in all of its versions or in none."""

    type: FieldType
    versions: Versions
    nullable: Versions
    tag: int | None


_TYPE_DEFAULT: Final = object()


@dataclass(frozen=True, slots=True)
class _Declaration:
    versions: str
    default: Any
    nullable: str | None
    tag: int | None


def field(
    versions: str = "0+",
    default: Any = _TYPE_DEFAULT,
    *,
    nullable: str | None = None,
    tag: int | None = None,
) -> Any:
    """A field, by default 0, empty or a struct of defaults.

    One whose annotation allows None is nullable in all of its versions unless `nullable` says in
    which.
    """
    return _Declaration(versions, default, nullable, tag)


def _to_dataclass_field(annotation: Any, declared: _Declaration) -> Any:
    is_optional = get_origin(annotation) in (Union, UnionType)
    if is_optional:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    type_ = _field_type(annotation)
    nullable = (declared.nullable or declared.versions) if is_optional else "none"
    wire = WireField(
        type_, Versions.parse(declared.versions), Versions.parse(nullable), declared.tag
    )
    metadata = {"wire": wire}
    if declared.default is not _TYPE_DEFAULT:
        return dataclasses.field(default=declared.default, metadata=metadata)
    if type_.kind is Kind.ARRAY:
        return dataclasses.field(default_factory=list, metadata=metadata)
    if type_.struct is not None:
        return dataclasses.field(default_factory=type_.struct, metadata=metadata)
    return dataclasses.field(default=_DEFAULTS.get(type_.kind, 0), metadata=metadata)


@cache
def _field_type(annotation: Any) -> FieldType:
    if get_origin(annotation) is list:
        (element,) = get_args(annotation)
        return FieldType(Kind.ARRAY, element=_field_type(element))
    if get_origin(annotation) is Annotated:
        return FieldType(annotation.__metadata__[0])
    if annotation in _KINDS:
        return FieldType(_KINDS[annotation])
    return FieldType(Kind.STRUCT, struct=annotation)


@dataclass_transform()
class _StructType(type):
    """Turns declarations into dataclasses with slots.

    Their `repr`, comparison and docstring are not generated for each of the hundreds of classes,
    which would double the import time.
    """

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        namespace.setdefault("__doc__", name)
        cls = super().__new__(mcs, name, bases, namespace, **options)
        if "__slots__" in namespace:  # A base, or the class that `dataclass` copies to add slots.
            return cls
        for attribute, annotation in inspect.get_annotations(cls).items():
            declared = namespace.get(attribute)
            if isinstance(declared, _Declaration):
                setattr(cls, attribute, _to_dataclass_field(annotation, declared))
        return dataclass(slots=True, repr=False, eq=False)(cls)


class Struct(metaclass=_StructType):
    """A struct within messages."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        values_of = _getter_of(type(self))
        return type(other) is type(self) and bool(values_of(self) == values_of(other))


@cache
def _getter_of(cls: type[Struct]) -> Callable[[Any], Any]:
    names = cls.__match_args__
    return attrgetter(*names) if names else lambda _: ()


class Message(Struct):
    """Base of messages; class attributes hold the API key and the versions."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    """-1 for records of internal topics."""
    VERSIONS: ClassVar[Versions]
    SERVED: ClassVar[Versions]
    """The versions that the server offers; fewer where newer ones need unsupported features."""
    FLEXIBLE: ClassVar[int]
    """The first version with compact lengths and tagged fields."""

    def __init_subclass__(
        cls,
        *,
        versions: str | None = None,
        flexible: str = "none",
        api_key: int = -1,
        served: str | None = None,
    ) -> None:
        """`versions` is None for the copy with slots, which has these attributes already."""
        if versions is not None:
            cls.API_KEY = api_key
            cls.VERSIONS = Versions.parse(versions)
            cls.SERVED = Versions.parse(served or versions)
            cls.FLEXIBLE = Versions.parse(flexible).first


def wire_fields(cls: type) -> list[tuple[str, WireField, Any]]:
    """Name, encoding and default of each field in wire order.

    The default of a list is the class `list`, that of a struct its class.
    """
    rows = []
    for item in dataclasses.fields(cls):
        factory = item.default_factory
        default = factory if callable(factory) else item.default
        rows.append((item.name, item.metadata["wire"], default))
    return rows
