"""Random messages of any version, as their declarations allow them."""

import random
from typing import Any
from uuid import UUID

from varve.wire.schema import FieldType, Kind, Message, wire_fields

_WIDTHS = {
    Kind.INT8: 7,
    Kind.INT16: 15,
    Kind.UINT16: 16,
    Kind.INT32: 31,
    Kind.INT64: 40,
}
"""Bits; times in milliseconds must be such as readers of other hands can show."""


class MessageMaker:
    """Fills the fields that a version has; others keep their defaults."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self, kind: type[Message], version: int) -> Any:
        return self._struct(kind, version)

    def _struct(self, kind: type, version: int) -> Any:
        values = {}
        for name, place, _ in wire_fields(kind):
            if version not in place.versions:
                continue
            if place.tag is not None and self._random.random() < 0.5:
                continue
            is_null = version in place.nullable and self._random.random() < 0.2
            values[name] = None if is_null else self._value(place.type, name, version)
        return kind(**values)

    def _value(self, type: FieldType, name: str, version: int) -> Any:
        chance, kind = self._random, type.kind
        if name.endswith("error_code"):
            return chance.randint(-1, 99)
        if kind is Kind.BOOLEAN:
            return chance.random() < 0.5
        if kind in _WIDTHS:
            return chance.getrandbits(chance.randint(1, _WIDTHS[kind]))
        if kind is Kind.FLOAT64:
            return float(chance.randint(-1000, 1000)) / 8
        if kind is Kind.UUID:
            return UUID(int=chance.getrandbits(127) | 1)
        if kind is Kind.STRING:
            return "".join(chance.choice("abcü-") for _ in range(chance.choice((0, 1, 5, 130))))
        if kind in (Kind.BYTES, Kind.RECORDS):
            return chance.randbytes(chance.choice((0, 1, 5, 130)))
        if kind is Kind.STRUCT:
            assert type.struct is not None
            return self._struct(type.struct, version)
        assert type.element is not None
        return [self._value(type.element, "", version) for _ in range(chance.randint(0, 3))]
