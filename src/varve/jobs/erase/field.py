"""Which records have a wanted value in a field of their JSON.

A path names fields by dots, `customer.email`; where it meets a list any element may match. In plain
JSON it begins at the value and at the key. In Debezium's events it begins at the rows before and
after the change, at the source and at the key, inside the envelope of a schema or not.

Invariant  values are compared as what they are: text with text, a number with a number, however it
           is written. True, false and null match nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final, Self

from varve.foundation.errors import InvalidRequest
from varve.jobs.source.record_blocks import RecordBlock
from varve.kernels.record_parse import RecordField

_PAYLOAD: Final = "payload"
_ROWS: Final = ("before", "after", "source")
_DEPTH_MAX: Final = 64


class ValueFormat(StrEnum):
    """How values are written."""

    JSON = "json"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class FieldMatch:
    """A field, and the values of which one must stand there."""

    path: tuple[str, ...]
    texts: frozenset[str]
    numbers: frozenset[Decimal]
    format: ValueFormat

    @classmethod
    def of(cls, path: str, values: Sequence[str], format: ValueFormat) -> Self:
        """Raises InvalidRequest for a path that names nothing, or without a value."""
        names = tuple(path.split("."))
        if not all(names) or len(names) > _DEPTH_MAX:
            raise InvalidRequest(
                f"field {path!r:.200} must be 1 to {_DEPTH_MAX} names joined by dots, such as "
                "customer.email"
            )
        if not values:
            raise InvalidRequest(f"field {path!r:.200} is given without a value to look for")
        numbers = frozenset(one for text in values if (one := _number(text)) is not None)
        return cls(names, frozenset(values), numbers, format)

    def find(self, block: RecordBlock) -> tuple[list[bool], int]:
        """Which records match, and how many values could not be read as JSON."""
        payload = block.payload.data
        columns = slice(RecordField.KEY_START, RecordField.VALUE_SIZE + 1)
        found: list[bool] = []
        unread = 0
        for key_at, key_size, value_at, value_size in block.records[:, columns].tolist():
            is_found = False
            if value_size >= 0:
                try:
                    value = _parse(payload[value_at : value_at + value_size])
                    is_found = any(self._matches(one) for one in self._roots(value))
                except ValueError:
                    unread += 1
            if not is_found and key_size >= 0:
                is_found = self._is_in_key(payload[key_at : key_at + key_size])
            found.append(is_found)
        return found, unread

    def _is_in_key(self, data: memoryview) -> bool:
        """Keys need not be JSON."""
        try:
            key = _parse(data)
        except ValueError:
            return False
        return self._matches(key) or (isinstance(key, dict) and self._matches(key.get(_PAYLOAD)))

    def _roots(self, value: Any) -> Iterator[Any]:
        if self.format is ValueFormat.JSON:
            yield value
            return
        for envelope in (value, value.get(_PAYLOAD) if isinstance(value, dict) else None):
            if isinstance(envelope, dict):
                yield from (envelope.get(name) for name in _ROWS)

    def _matches(self, root: Any) -> bool:
        return any(self._is_wanted(one) for one in _walk(root, self.path))

    def _is_wanted(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self.texts
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return False
        return value in self.numbers


def _walk(root: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Everything that a path leads to; lists are gone through."""
    if isinstance(root, list):
        for one in root:
            yield from _walk(one, path)
    elif not path:
        yield root
    elif isinstance(root, dict) and path[0] in root:
        yield from _walk(root[path[0]], path[1:])


def _parse(data: memoryview) -> Any:
    """What JSON says; raises ValueError where it is none."""
    try:
        return json.loads(bytes(data), parse_float=Decimal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
