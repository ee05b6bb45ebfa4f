"""Records from standard input: a line each, as plain values, keys and values, or JSON.

Invariant  a line that cannot be read is named by its number, and nothing behind it is taken.
"""

import base64
import binascii
import contextlib
import io
import json
import os
import select
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from varve.foundation.errors import InvalidRecord

CHUNK_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 256 << 20
LINGER_SECONDS: Final = 0.02
NO_TIMESTAMP: Final = -1
TIMESTAMP_MAX: Final = 2**63 - 1

_FIELDS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")

Headers = list[tuple[str, bytes | str | None]]
Parts = tuple[bytes | str | None, bytes | str | None, Headers, int | None]
ParseLine = Callable[[bytes], Parts | None]
"""A line's record; None for a line that holds none."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines that arrived together; `first` is the number of the first."""

    first: int
    lines: list[bytes]
    size: int


def read_chunks(stream: BinaryIO) -> Iterator[Chunk]:
    """Lines without their ends, as many at a time as have arrived or make a good batch."""
    rest = bytearray()  # grows in place: a huge line comes in many pieces
    number = 1
    for data in _arrivals(stream):
        whole, newline, last = data.rpartition(b"\n")
        if newline:
            whole = bytes(rest) + whole
            rest = bytearray()
            lines = [line.removesuffix(b"\r") for line in whole.split(b"\n")]
            yield Chunk(number, lines, len(whole) + 1)
            number += len(lines)
        rest += last
        if len(rest) > LINE_BYTES_MAX:
            raise InvalidRecord(
                f"line {number} is longer than {LINE_BYTES_MAX} bytes; is the input made of lines?"
            )
    if rest:
        yield Chunk(number, [bytes(rest).removesuffix(b"\r")], len(rest))


def _arrivals(stream: BinaryIO) -> Iterator[bytes]:
    descriptor = _waiting_descriptor(stream)
    while data := _read_some(stream):
        while descriptor is not None and len(data) < CHUNK_BYTES:
            if not select.select([descriptor], [], [], LINGER_SECONDS)[0]:
                break
            more = _read_some(stream)
            if not more:
                break
            data += more
        yield data


def _read_some(stream: BinaryIO) -> bytes:
    if isinstance(stream, io.BufferedReader):
        return stream.read1(CHUNK_BYTES)
    return stream.read(CHUNK_BYTES)


def _waiting_descriptor(stream: BinaryIO) -> int | None:
    """The descriptor of a pipe or terminal, where bytes come bit by bit; None for a file."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
    return None


def parse_value(line: bytes) -> Parts:
    """The whole line is the value."""
    return None, line, [], None


def key_value_parser(separator: str) -> ParseLine:
    """Lines of key, separator and value."""
    mark = separator.encode()

    def parse(line: bytes) -> Parts:
        key, found, value = line.partition(mark)
        if not found:
            raise InvalidRecord(f"no key separator {separator!r} in {_shown(line)}")
        return key, value, [], None

    return parse


def parse_json(line: bytes) -> Parts | None:
    """One JSON object; see `varve log append --help` for its fields."""
    if not line.strip():
        return None
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidRecord(f'not a JSON object: {_shown(line)}; write {{"value": ...}}')
    unknown = sorted(content.keys() - set(_FIELDS))
    if unknown:
        raise InvalidRecord(f"unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    return (
        _cell(content.get("key"), "key"),
        _cell(content.get("value"), "value"),
        _headers(content.get("headers")),
        _timestamp(content.get("timestamp")),
    )


def _cell(given: object, what: str) -> bytes | str | None:
    if given is None:
        return None
    if isinstance(given, str):
        return _encoded(given, what)
    if isinstance(given, dict) and list(given) == ["base64"] and isinstance(given["base64"], str):
        try:
            return base64.b64decode(given["base64"], validate=True)
        except binascii.Error as error:
            raise InvalidRecord(f"{what} is no base64: {error}") from error
    raise InvalidRecord(
        f'{what} must be text, null or {{"base64": "..."}}, not {json.dumps(given):.60}; '
        "put other JSON into a text"
    )


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"{what} cannot be stored as UTF-8: {text!a:.60}") from error


def _headers(given: object) -> Headers:
    if given is None:
        return []
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise InvalidRecord(f"headers must be an object or pairs, not {json.dumps(given):.60}")
    headers: Headers = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRecord(f"header {json.dumps(pair):.60} is no pair of name and value")
        _encoded(pair[0], "a header's name")
        headers.append((pair[0], _cell(pair[1], f"header {pair[0]!r}")))
    return headers


def _timestamp(given: object) -> int | None:
    if given is None:
        return None
    if (
        not isinstance(given, int)
        or isinstance(given, bool)
        or not NO_TIMESTAMP <= given <= TIMESTAMP_MAX
    ):
        raise InvalidRecord(
            f"timestamp must be milliseconds since 1970, from 0 to {TIMESTAMP_MAX} or "
            f"{NO_TIMESTAMP} for none, not {json.dumps(given):.60}"
        )
    return given


def _shown(line: bytes) -> str:
    text = line[:60].decode(errors="backslashreplace")
    return repr(text + ("..." if len(line) > 60 else ""))
