"""How the bytes of keys and values are shown: as text, hex, base64, JSON or a number.

Invariant  every byte string has a form under every decoder: one that does not fit is shown in hex
           and says so.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Decoder(StrEnum):
    """What keys or values are taken for."""

    UTF_8 = "utf-8"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    INT = "int"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that are not what the decoder takes them for."""

    decoder: Decoder
    data: bytes

    def __str__(self) -> str:
        return f"<not {self.decoder}: {self.data.hex()}>"


def decode_value(decoder: Decoder, data: bytes) -> object:
    """The value for JSON: text, a number, a document, or Undecodable."""
    try:
        return _DECODERS[decoder](data)
    except (ValueError, RecursionError):
        return Undecodable(decoder, data)


def decode_text(decoder: Decoder, data: bytes) -> str:
    """The value on one line of text."""
    value = decode_value(decoder, data)
    if decoder is Decoder.JSON and not isinstance(value, Undecodable):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def _decode_utf_8(data: bytes) -> str:
    return data.decode(errors="replace")


def _decode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_integer(size: int) -> Callable[[bytes], int]:
    def decode(data: bytes) -> int:
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes instead of {size}")
        return int.from_bytes(data, "big", signed=True)

    return decode


_DECODERS: dict[Decoder, Callable[[bytes], object]] = {
    Decoder.UTF_8: _decode_utf_8,
    Decoder.HEX: bytes.hex,
    Decoder.BASE64: _decode_base64,
    Decoder.JSON: json.loads,
    Decoder.INT: _decode_integer(4),
    Decoder.LONG: _decode_integer(8),
}
