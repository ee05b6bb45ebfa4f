r"""Records as text: the lines that `varve produce` reads and `varve consume` writes.

Template   as kcat writes it: %v or %s value, %k key, %h headers, %T timestamp in milliseconds, %t
           topic, %p partition, %o offset, %S and %K the sizes of value and key (-1 for null), %% a
           percent sign; \n \r \t \0 \\ and \xNN are single bytes.
JSON       an object with key, value, headers and timestamp; bytes that are not UTF-8 are
           {"base64": "..."}.
Invariant  what a template without sizes writes, the same template reads, as long as no part has
           the text that follows it. A line that cannot be read is named by its number, and no line
           after it is read.
"""

import base64
import binascii
import contextlib
import io
import itertools
import json
import os
import re
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final, Protocol

import click

from varve.foundation.errors import InvalidRecord
from varve.foundation.topic_records import RecordHeaders, StoredRecord

LINE_BYTES_MAX: Final = 256 << 20

_CHUNK_BYTES: Final = 1 << 20
_LINGER_SECONDS: Final = 0.02
"""A pipe that delivers bit by bit is read into one batch as long as bytes come this fast."""
_TIMESTAMP_MAX: Final = 2**63 - 1
_NULL: Final = b"null"
_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_FIELDS: Final = "vskhTtpoSK"
_SIZES: Final = "SK"
_JSON_FIELDS: Final = (
    "key",
    "value",
    "headers",
    "timestamp",
    "partition",
    "offset",
    "topic",
    "type",
)

Token = str | bytes
"""The letter of a field, or bytes that stand for themselves."""


# Reading


class LineReader(Protocol):
    """Reads the record of a line; None for a line without one.

    The partition and the timestamp are -1 where the line does not name them, the offset always.
    """

    def read(self, line: bytes) -> StoredRecord | None: ...


class ValueReader:
    """The whole line, or file, is the value."""

    def read(self, line: bytes) -> StoredRecord:
        return StoredRecord(-1, -1, -1, None, line)


@dataclass(frozen=True, slots=True)
class KeyValueReader:
    """Key, separator and value."""

    separator: bytes

    def read(self, line: bytes) -> StoredRecord:
        key, separator, value = line.partition(self.separator)
        if not separator:
            raise InvalidRecord(f"no key separator {shorten(self.separator)} in {shorten(line)}")
        return StoredRecord(-1, -1, -1, key, value)


class JsonReader:
    """One object, as `varve consume --json` writes it; topic, partition and offset are ignored."""

    def read(self, line: bytes) -> StoredRecord | None:
        if not line.strip():
            return None
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRecord(f"not JSON: {error}") from error
        if not isinstance(content, dict):
            raise InvalidRecord(f'not a JSON object: {shorten(line)}; write {{"value": ...}}')
        unknown = sorted(content.keys() - set(_JSON_FIELDS))
        if unknown:
            raise InvalidRecord(
                f"unknown field {unknown[0]!r:.60}; known are {', '.join(_JSON_FIELDS)}"
            )
        return StoredRecord(
            -1,
            -1,
            _parse_timestamp(content.get("timestamp")),
            _parse_cell(content.get("key"), "key"),
            _parse_cell(content.get("value"), "value"),
            _parse_json_headers(content.get("headers")),
        )


class TemplateReader:
    """A line in the form of a template; topic and offset in it are ignored."""

    def __init__(self, template: str) -> None:
        tokens = parse_template(template)
        if tokens and isinstance(tokens[-1], bytes):
            tokens[-1] = tokens[-1].removesuffix(b"\n")
        _check_readable(tokens)
        first = tokens[0]
        self._prefix = first if isinstance(first, bytes) else b""
        self._tokens = tokens[1:] if self._prefix else tokens

    def read(self, line: bytes) -> StoredRecord:
        if not line.startswith(self._prefix):
            raise InvalidRecord(f"{shorten(line)} does not start with {shorten(self._prefix)}")
        remaining = line[len(self._prefix) :]
        fields: dict[str, bytes] = {}
        for index, token in enumerate(self._tokens):
            if isinstance(token, bytes):
                continue
            following = self._tokens[index + 1] if index + 1 < len(self._tokens) else b""
            fields[token], remaining = _cut(remaining, following, token)
        return StoredRecord(
            _parse_number(fields, "p"),
            -1,
            _parse_number(fields, "T"),
            fields.get("k"),
            fields.get("v", fields.get("s")),
            _parse_template_headers(fields.get("h", b"")),
        )


@dataclass(frozen=True, slots=True)
class FinishingReader:
    """Adds what the options give to every record."""

    reader: LineReader
    headers: RecordHeaders
    partition: int | None
    is_empty_null: bool

    def read(self, line: bytes) -> StoredRecord | None:
        record = self.reader.read(line)
        if record is None:
            return None
        return replace(
            record,
            headers=(*record.headers, *self.headers),
            partition=record.partition if self.partition is None else self.partition,
            key=(record.key or None) if self.is_empty_null else record.key,
            value=(record.value or None) if self.is_empty_null else record.value,
        )


def choose_reader(
    *,
    input: str,
    key_separator: str | None,
    headers: Sequence[str],
    partition: int | None,
    is_empty_null: bool,
) -> LineReader:
    """The reader that the options of `varve produce` select."""
    reader: LineReader
    if key_separator is not None:
        if input != "lines":
            raise click.UsageError("--key-separator and --input exclude each other")
        reader = KeyValueReader(parse_separator(key_separator))
    elif input == "json":
        reader = JsonReader()
    elif "%" in input:
        reader = TemplateReader(input)
    elif input in ("lines", "files"):
        reader = ValueReader()
    else:
        raise click.BadParameter(
            f"{input!r:.60} is not lines, json, files or a template such as '%k=%v'",
            param_hint="'--input'",
        )
    if not headers and partition is None and not is_empty_null:
        return reader
    return FinishingReader(reader, parse_headers(headers), partition, is_empty_null)


def parse_separator(text: str) -> bytes:
    """The key separator; `\\t` is a tab."""
    if not text:
        raise click.BadParameter(
            "it is empty; give the text between key and value", param_hint="'--key-separator'"
        )
    return text.replace("\\t", "\t").encode()


def parse_headers(texts: Sequence[str]) -> RecordHeaders:
    """`NAME=VALUE`, or `NAME` for a null."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise click.BadParameter(
                f"{text!r:.80} has no name; write NAME=VALUE", param_hint="'--header'"
            )
        headers.append((name, value.encode() if equals else None))
    return tuple(headers)


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Lines that arrived together; `first` is the number of the first."""

    first: int
    lines: list[bytes]
    size: int


def read_chunks(stream: BinaryIO) -> Iterator[LineChunk]:
    """Lines without their ends, as many at a time as have arrived or make a good batch."""
    remaining = bytearray()  # grows in place: a huge line comes in many pieces
    number = 1
    for data in _arrivals(stream):
        whole, newline, last = data.rpartition(b"\n")
        if newline:
            whole = bytes(remaining) + whole
            remaining = bytearray()
            lines = [line.removesuffix(b"\r") for line in whole.split(b"\n")]
            yield LineChunk(number, lines, len(whole) + 1)
            number += len(lines)
        remaining += last
        if len(remaining) > LINE_BYTES_MAX:
            raise InvalidRecord(
                f"line {number} is longer than {LINE_BYTES_MAX} bytes; is the input text?"
            )
    if remaining:
        yield LineChunk(number, [bytes(remaining).removesuffix(b"\r")], len(remaining))


def _arrivals(stream: BinaryIO) -> Iterator[bytes]:
    descriptor = _waiting_descriptor(stream)
    while data := _read_some(stream):
        while descriptor is not None and len(data) < _CHUNK_BYTES:
            if not select.select([descriptor], [], [], _LINGER_SECONDS)[0]:
                break
            more = _read_some(stream)
            if not more:
                break
            data += more
        yield data


def _read_some(stream: BinaryIO) -> bytes:
    if isinstance(stream, io.BufferedReader):
        return stream.read1(_CHUNK_BYTES)
    return stream.read(_CHUNK_BYTES)


def _waiting_descriptor(stream: BinaryIO) -> int | None:
    """The descriptor of a pipe or terminal, where bytes come bit by bit; None for a file."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
    return None


def _parse_cell(cell: object, what: str) -> bytes | None:
    if cell is None:
        return None
    if isinstance(cell, str):
        return _encode(cell, what)
    if isinstance(cell, dict) and list(cell) == ["base64"] and isinstance(cell["base64"], str):
        try:
            return base64.b64decode(cell["base64"], validate=True)
        except binascii.Error as error:
            raise InvalidRecord(f"{what} is not base64: {error}") from error
    raise InvalidRecord(
        f'{what} must be text, null or {{"base64": "..."}}, not {json.dumps(cell):.60}; '
        "put other JSON into a text"
    )


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"{what} cannot be stored as UTF-8: {text!a:.60}") from error


def _parse_json_headers(content: object) -> RecordHeaders:
    if content is None:
        return ()
    pairs = list(content.items()) if isinstance(content, dict) else content
    if not isinstance(pairs, list):
        raise InvalidRecord(f"headers must be an object or pairs, not {json.dumps(content):.60}")
    headers: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRecord(f"header {json.dumps(pair):.60} is not a pair of name and value")
        _encode(pair[0], "a header's name")
        headers.append((pair[0], _parse_cell(pair[1], f"header {pair[0]!r:.60}")))
    return tuple(headers)


def _parse_timestamp(content: object) -> int:
    if content is None:
        return -1
    is_number = isinstance(content, int) and not isinstance(content, bool)
    if not is_number or not -1 <= content <= _TIMESTAMP_MAX:  # type: ignore[operator]
        raise InvalidRecord(
            f"timestamp must be milliseconds since 1970, from 0 to {_TIMESTAMP_MAX} or -1 for "
            f"none, not {json.dumps(content):.60}"
        )
    return content  # type: ignore[return-value]


def _check_readable(tokens: Sequence[Token]) -> None:
    fields = [token for token in tokens if isinstance(token, str)]
    if not set(fields) & set("vs"):
        raise click.BadParameter("the template has no %v, the value", param_hint="'--input'")
    sizes = [field for field in fields if field in _SIZES]
    if sizes:
        raise click.BadParameter(
            f"%{sizes[0]} is a size, not a part of a record; leave it out", param_hint="'--input'"
        )
    if len(fields) != len(set(fields)) or {"v", "s"} <= set(fields):
        raise click.BadParameter(
            "a field is in the template twice; name it once", param_hint="'--input'"
        )
    for token, following in itertools.pairwise(tokens):
        if isinstance(token, str) and isinstance(following, str):
            raise click.BadParameter(
                f"%{token}%{following}: put text between them", param_hint="'--input'"
            )


def _cut(data: bytes, following: Token, field: str) -> tuple[bytes, bytes]:
    end = following if isinstance(following, bytes) else b""
    if not end:
        return data, b""
    value, separator, remaining = data.partition(end)
    if not separator:
        raise InvalidRecord(f"{shorten(end)} is missing after %{field} in {shorten(data)}")
    return value, remaining


def _parse_number(fields: dict[str, bytes], name: str) -> int:
    text = fields.get(name)
    if text is None:
        return -1
    if not re.fullmatch(rb"-?[0-9]{1,18}", text):
        raise InvalidRecord(f"%{name} is {shorten(text)}, which is not a whole number")
    return int(text)


def _parse_template_headers(data: bytes) -> RecordHeaders:
    headers: list[tuple[str, bytes | None]] = []
    for header in data.split(b",") if data else []:
        name, equals, value = header.partition(b"=")
        headers.append((name.decode(errors="replace"), value if equals else None))
    return tuple(headers)


# Writing


class LineWriter(Protocol):
    """Writes the records of a topic."""

    def write(self, record: StoredRecord) -> bytes: ...


@dataclass(frozen=True, slots=True)
class JsonWriter:
    """Lines that `varve produce --input json` reads."""

    topic: str

    def write(self, record: StoredRecord) -> bytes:
        content: dict[str, Any] = {
            "type": "record",
            "topic": self.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": encode_cell(record.key),
            "value": encode_cell(record.value),
        }
        if record.headers:
            pairs = [(name, encode_cell(value)) for name, value in record.headers]
            # An object cannot hold a name twice, a record can.
            is_unique = len({name for name, _ in pairs}) == len(pairs)
            content["headers"] = dict(pairs) if is_unique else pairs
        return json.dumps(content, ensure_ascii=False).encode() + b"\n"


class TemplateWriter:
    """Records in the form of a template."""

    def __init__(self, topic: str, template: str, *, is_terminal: bool = False) -> None:
        tokens = [topic.encode() if token == "t" else token for token in parse_template(template)]
        self._parts = [token if isinstance(token, bytes) else _FORMATS[token] for token in tokens]
        self._is_terminal = is_terminal

    def write(self, record: StoredRecord) -> bytes:
        line = b"".join([part if isinstance(part, bytes) else part(record) for part in self._parts])
        # A terminal must not interpret bytes that are not text.
        return line.decode(errors="backslashreplace").encode() if self._is_terminal else line


def choose_writer(
    topic: str,
    *,
    template: str | None = None,
    key_separator: str | None = None,
    has_headers: bool = False,
    is_json: bool,
    is_terminal: bool,
) -> LineWriter:
    """The writer that the options of `varve consume` select."""
    if (template is not None) + is_json + (key_separator is not None or has_headers) > 1:
        raise click.UsageError(
            "--template, --json, and --key-separator or --headers exclude each other"
        )
    if is_json:
        return JsonWriter(topic)
    if template is None:
        key = ""
        if key_separator is not None:
            separator = parse_separator(key_separator).decode()
            key = "%k" + separator.replace("%", "%%").replace("\\", "\\\\")
        template = ("%h\\t" if has_headers else "") + key + "%v\\n"
    return TemplateWriter(topic, template, is_terminal=is_terminal)


def parse_template(text: str) -> list[Token]:
    """The fields and the bytes between them; raises BadParameter for an unknown one."""
    tokens: list[Token] = []
    for letter, byte, escape, plain, rest in _TOKEN.findall(text):
        if letter and letter in _FIELDS:
            tokens.append(letter)
            continue
        if letter and letter != "%":
            raise click.BadParameter(
                f"%{letter} in {text!r:.80} is unknown; there are %v %k %h %T %t %p %o %S %K and %%"
            )
        if escape and escape not in _ESCAPES:
            raise click.BadParameter(
                f"\\{escape} in '{text:.80}' is unknown; there are \\n, \\t, \\xNN and \\\\"
            )
        if rest:
            raise click.BadParameter(f"'{text:.80}' ends with a single {rest}; write {rest}{rest}")
        data = letter.encode() or bytes.fromhex(byte) or _ESCAPES.get(escape, b"") or plain.encode()
        if tokens and isinstance(tokens[-1], bytes):
            tokens[-1] += data
        else:
            tokens.append(data)
    return tokens


_FORMATS: Final[dict[str, Callable[[StoredRecord], bytes]]] = {
    "v": lambda record: _NULL if record.value is None else record.value,
    "s": lambda record: _NULL if record.value is None else record.value,
    "k": lambda record: _NULL if record.key is None else record.key,
    "h": lambda record: format_headers(record.headers),
    "T": lambda record: str(record.timestamp).encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "S": lambda record: _format_size(record.value),
    "K": lambda record: _format_size(record.key),
}


def _format_size(data: bytes | None) -> bytes:
    return str(-1 if data is None else len(data)).encode()


def format_headers(headers: RecordHeaders) -> bytes:
    """`name=value,name=value`; a null value has no equals sign."""
    return b",".join(
        name.encode() if value is None else name.encode() + b"=" + value for name, value in headers
    )


def encode_cell(data: bytes | None) -> str | dict[str, str] | None:
    """Text if the bytes are UTF-8, otherwise base64 in an object."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def shorten(data: bytes) -> str:
    """The start of some bytes, for an error."""
    text = data[:60].decode(errors="backslashreplace")
    return repr(text + ("..." if len(data) > 60 else ""))
