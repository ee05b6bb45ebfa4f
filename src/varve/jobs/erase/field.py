"""Which records have a wanted value in a field of their JSON.

A path names fields by dots, `customer.email`, or as a list in JSON, `["customer", "e.mail"]`, where
names hold dots themselves; where it meets a list any element may match. In plain JSON it begins at
the value and at the key. In Debezium's events it begins at the rows before and after the change, at
the source and at the key, inside the envelope of a schema or not.

Invariant  values are compared as what they are: text with text, a number with a number, however it
           is written; one beyond all decimals as it is written. True, false and null match nothing.
           Where a name stands several times in one object each of its values counts.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final, Self

from varve.foundation.errors import InvalidRequest
from varve.jobs.source.record_blocks import RecordBlock
from varve.kernels.batch_layout import RecordColumn

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
        names = _names(path)
        if not all(names) or not 0 < len(names) <= _DEPTH_MAX:
            raise InvalidRequest(
                f"field {path!r:.200} must be 1 to {_DEPTH_MAX} names joined by dots, such as "
                """customer.email, or a list in JSON, such as ["customer", "e.mail"]"""
            )
        if not values:
            raise InvalidRequest(f"field {path!r:.200} is given without a value to look for")
        numbers = frozenset(one for text in values if (one := _number(text)) is not None)
        return cls(names, frozenset(values), numbers, format)

    @property
    def written(self) -> str:
        """The path as it is given."""
        plain = ".".join(self.path)
        return plain if _names(plain) == self.path else json.dumps(self.path, ensure_ascii=False)

    def find(self, block: RecordBlock) -> tuple[list[bool], int]:
        """Which records match, and how many values could not be read as JSON."""
        payload = block.payload.data
        columns = slice(RecordColumn.KEY_START, RecordColumn.VALUE_SIZE + 1)
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
        return any(self._matches(one) for one in (key, *_values(key, _PAYLOAD)))

    def _roots(self, value: Any) -> Iterator[Any]:
        if self.format is ValueFormat.JSON:
            yield value
            return
        for envelope in (value, *_values(value, _PAYLOAD)):
            for name in _ROWS:
                yield from _values(envelope, name)

    def _matches(self, root: Any) -> bool:
        return any(self._is_wanted(one) for one in _walk(root, self.path))

    def _is_wanted(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self.texts
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return False
        return value in self.numbers


def _names(path: str) -> tuple[str, ...]:
    """The names of a path; one that is no list in JSON has them between dots."""
    if path.startswith("["):
        try:
            names = json.loads(path)
        except (ValueError, RecursionError):
            names = None
        if isinstance(names, list) and all(isinstance(one, str) for one in names):
            return tuple(names)
    return tuple(path.split("."))


class _Doubled(list[Any]):
    """All values of a name that stands several times in one object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        values: dict[str, list[Any]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(value)
        found |= {name: _Doubled(many) for name, many in values.items() if len(many) > 1}
    return found


def _values(value: Any, name: str) -> Sequence[Any]:
    """What stands under a name, which may be several things or none."""
    if not isinstance(value, dict) or name not in value:
        return ()
    found = value[name]
    return found if isinstance(found, _Doubled) else (found,)


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
        return json.loads(bytes(data), parse_float=_decimal, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _decimal(text: str) -> Decimal | str:
    """A number as JSON writes it; as text where its exponent is beyond all decimals."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
