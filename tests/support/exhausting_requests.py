"""Well formed requests that name as many things as a server accepts, in several shapes."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from tests.support.hostile_requests import LENGTH
from varve.kafka_server.settings import ServerSettings
from varve.wire import APIS, Api, Message, encode, write_request_header
from varve.wire.schema import FieldType, Kind, wire_fields

_LIMITS: Final = ServerSettings()
_INTS: Final = (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)
_FIXED: Final = {
    "resource_type": 2,
    "timeout_ms": 1_000,
    "max_wait_ms": 0,
    "rebalance_timeout_ms": 10_000,
    "session_timeout_ms": 10_000,
    "validate_only": True,
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
    "resource_type_filter": 2,
    "pattern_type_filter": 3,
    "acks": -1,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How many elements the arrays of each depth have, and whether their names repeat."""

    name: str
    counts: tuple[int, ...]
    is_unique: bool


SHAPES: Final = tuple(
    Shape(f"{name}, {'unique' if is_unique else 'repeated'}", counts, is_unique)
    for name, counts in {
        "outer": (49_000, 1, 1),
        "outer, few": (4_900, 1, 1),
        "inner": (1, 90_000, 1),
        "inner, few": (1, 9_000, 1),
        "both": (300, 300, 1),
        "both, few": (90, 90, 1),
    }.items()
    for is_unique in (True, False)
)


def random_shapes(chance: random.Random, count: int) -> Iterator[Shape]:
    """Of any nesting and size that a server reads."""
    for number in range(count):
        left = int(10 ** chance.uniform(2, 5))
        counts = []
        for _ in range(2):
            counts.append(int(left ** chance.random()))
            left //= counts[-1]
        yield Shape(f"random {number}", (*counts, left), chance.random() < 0.5)


def exhausting_frames(
    api: Api, version: int, name: str, id: UUID, shapes: Iterable[Shape] = SHAPES
) -> Iterator[tuple[Shape, bytes]]:
    """Those that the server reads; `name` and `id` are of something that is there."""
    for shape in shapes:
        data = frame_of(_Maker(shape, version, name, id).make(api.request), version)
        if len(data) < _LIMITS.request_max_bytes:
            yield shape, data


def frame_of(message: Message, version: int) -> bytes:
    """A request as it is sent."""
    api = APIS[message.API_KEY]
    is_flexible = api.is_flexible(version)
    data = write_request_header(api.key, version, 1, "exhausting", is_flexible=is_flexible)
    data += encode(message, version)
    return LENGTH.pack(len(data)) + data


class _Maker:
    def __init__(self, shape: Shape, version: int, name: str, id: UUID) -> None:
        self._shape = shape
        self._version = version
        self._name = name
        self._id = id

    def make(self, kind: type[Message]) -> Any:
        return self._struct(kind, 0, 0)

    def _struct(self, kind: Any, depth: int, number: int) -> Any:
        return kind(
            **{
                name: self._value(field.type, name, depth, number)
                for name, field, _ in wire_fields(kind)
                if self._version in field.versions and field.tag is None
            }
        )

    def _value(self, type: FieldType, name: str, depth: int, number: int) -> Any:
        kind, is_unique = type.kind, self._shape.is_unique
        if name in _FIXED:
            return _FIXED[name]
        if kind is Kind.STRUCT:
            return self._struct(type.struct, depth, number)
        if kind is Kind.ARRAY:
            assert type.element is not None
            start = number * 1_000 % (1 << 20)
            numbers = range(start, start + self._shape.counts[min(depth, 2)])
            return [self._value(type.element, name, depth + 1, one) for one in numbers]
        if kind is Kind.STRING:
            return f"{self._name}-{number}" if is_unique else self._name
        if kind is Kind.UUID:
            return UUID(int=number + 1) if is_unique else self._id
        if kind in _INTS:
            return number if "partition" in name and is_unique else 0
        return {Kind.BOOLEAN: False, Kind.FLOAT64: 1.0}.get(kind, b"x")
