"""A field of a JSON value as the bytes of an id.

The text is that of Spark's `get_json_object`, so that the processor and the Spark job know the same
ids. A string is itself; what is no string is its JSON text without blanks, numbers with a fraction
or an exponent as Java writes a double. Null is no id, nor is a field that is not there.

Invariant  what is no JSON has no id, nor has a field with bytes that are no UTF-8. What follows the
           value is not looked at. Where a name stands several times in one object, the first that
           leads to something counts.
"""

import json
import math
from json.encoder import encode_basestring
from typing import Any, Final

_BLANKS: Final = " \t\n\r"
_POSITIONAL_MIN: Final = 1e-3
_POSITIONAL_MAX: Final = 1e7


class _Doubled(list[tuple[str, Any]]):
    """The names and values of an object in which a name stands several times."""


class JsonField:
    """A path of names joined by dots, and what it leads to in values."""

    def __init__(self, path: str) -> None:
        self._names = tuple(path.split("."))
        self._quoted = tuple(f'"{name}"'.encode() for name in self._names)

    def find(self, data: bytes) -> bytes | None:
        """The id in a value, or None."""
        # What is no UTF-8 becomes what cannot be encoded again.
        text = data.decode(errors="surrogateescape").lstrip(_BLANKS)
        try:
            decoder = _PLAIN_DECODER if self._is_plain(data) else _DECODER
            found = _find(decoder.raw_decode(text)[0], self._names)
            if isinstance(found, dict | list) and decoder is _PLAIN_DECODER:
                found = _find(_DECODER.raw_decode(text)[0], self._names)
            if found is None:
                return None
            return (found if isinstance(found, str) else _write(found)).encode()
        except (ValueError, RecursionError):
            return None

    def _is_plain(self, data: bytes) -> bool:
        """Whether no name of the path can stand twice: the faster decoder takes the last then."""
        return b"\\" not in data and max(map(data.count, self._quoted)) < 2


def _find(value: Any, path: tuple[str, ...]) -> Any:
    for depth, name in enumerate(path):
        if isinstance(value, _Doubled):
            inner = (_find(one, path[depth + 1 :]) for other, one in value if other == name)
            return next((found for found in inner if found is not None), None)
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _write(value: Any) -> str:
    """JSON text without blanks."""
    match value:
        case str():
            return encode_basestring(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _write_double(value)
        case _Doubled():
            return "{" + ",".join(f"{encode_basestring(k)}:{_write(v)}" for k, v in value) + "}"
        case dict():
            pairs = (f"{encode_basestring(k)}:{_write(v)}" for k, v in value.items())
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(map(_write, value)) + "]"
        case _:
            raise AssertionError(f"JSON has no {type(value).__name__}")


def _write_double(value: float) -> str:
    """As Java does: with an exponent beyond seven digits or below a thousandth."""
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or _POSITIONAL_MIN <= abs(value) < _POSITIONAL_MAX:
        return repr(value)
    sign, digits, exponent = _split_double(value)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _split_double(value: float) -> tuple[str, str, int]:
    """Sign, shortest digits without zeros around them, and the exponent of the first digit."""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    lost = len(whole + fraction) - len(digits)
    first = len(whole) - 1 - lost + int(exponent or 0)
    return "-" if value < 0 else "", digits.rstrip("0"), first


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> Any:
    made = dict(pairs)
    return made if len(made) == len(pairs) else _Doubled(pairs)


_PLAIN_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, strict=False)
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse, strict=False)
