r"""Records in a form of the user's own, as kcat writes it: `%k=%v\n`.

Tokens     %v or %s value, %k key, %h headers, %T timestamp in milliseconds, %t topic, %p partition,
           %o offset, %S and %K the bytes of value and key (-1 for null), %% a percent sign;
           \n \r \t \0 \\ and \xNN are single bytes.
Invariant  what a format without sizes writes, the same format reads, as long as no part holds the
           text that follows it.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import typer

from varve.cli.log_output import NULL
from varve.foundation.errors import InvalidRecord

_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_FIELDS: Final = "vskhTtpoSK"
_SIZES: Final = "SK"

KafkaHeaders = list[tuple[str, bytes | None]]
Token = str | bytes
"""The letter of a field, or bytes that stand for themselves."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as it came from a broker, or goes to one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: KafkaHeaders = field(default_factory=list)


def parse_format(text: str) -> list[Token]:
    """The fields and the bytes between them; raises BadParameter for what is unknown."""
    tokens: list[Token] = []
    for letter, byte, escape, plain, rest in _TOKEN.findall(text):
        if letter and letter in _FIELDS:
            tokens.append(letter)
            continue
        if letter and letter != "%":
            raise typer.BadParameter(
                f"%{letter} in {text!r} is not known; there are %v %k %h %T %t %p %o %S %K and %%"
            )
        if escape and escape not in _ESCAPES:
            raise typer.BadParameter(f"\\{escape} in {text!r} is not known; write \\\\ for \\")
        if rest:
            raise typer.BadParameter(f"{text!r} ends in the middle of {rest!r}; write it twice")
        data = letter.encode() or bytes.fromhex(byte) or _ESCAPES.get(escape, b"") or plain.encode()
        if tokens and isinstance(tokens[-1], bytes):
            tokens[-1] += data
        else:
            tokens.append(data)
    return tokens


def record_writer(tokens: Sequence[Token]) -> Callable[[KafkaRecord], bytes]:
    """The function that writes a record."""

    def write(record: KafkaRecord) -> bytes:
        return b"".join(
            token if isinstance(token, bytes) else _WRITERS[token](record) for token in tokens
        )

    return write


_WRITERS: Final[dict[str, Callable[[KafkaRecord], bytes]]] = {
    "v": lambda record: NULL if record.value is None else record.value,
    "s": lambda record: NULL if record.value is None else record.value,
    "k": lambda record: NULL if record.key is None else record.key,
    "h": lambda record: write_headers(record.headers),
    "T": lambda record: str(record.timestamp).encode(),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "S": lambda record: _size(record.value),
    "K": lambda record: _size(record.key),
}


def _size(data: bytes | None) -> bytes:
    return str(-1 if data is None else len(data)).encode()


def write_headers(headers: KafkaHeaders) -> bytes:
    """`name=value,name=value`; a null value has no equals sign."""
    return b",".join(
        name.encode() if value is None else name.encode() + b"=" + value for name, value in headers
    )


def read_headers(data: bytes) -> KafkaHeaders:
    """The way back."""
    headers: KafkaHeaders = []
    for one in data.split(b",") if data else []:
        name, equals, value = one.partition(b"=")
        headers.append((name.decode(errors="replace"), value if equals else None))
    return headers


def record_reader(tokens: Sequence[Token], topic: str) -> Callable[[bytes], KafkaRecord]:
    """The function that reads a line; topic and offset in it are passed over."""
    given = list(tokens)
    if given and isinstance(given[-1], bytes):
        given[-1] = given[-1].removesuffix(b"\n")
    fields = [one for one in given if isinstance(one, str)]
    _check_readable(given, fields)

    def read(line: bytes) -> KafkaRecord:
        found: dict[str, bytes] = {}
        rest = line
        for index, one in enumerate(given):
            if isinstance(one, bytes):
                continue
            end = given[index + 1] if index + 1 < len(given) else b""
            found[one], rest = _cut(rest, end if isinstance(end, bytes) else b"", one)
        return _make(topic, found)

    lead = given[0] if given and isinstance(given[0], bytes) else b""
    return (lambda line: read(_without(line, lead))) if lead else read


def _check_readable(tokens: Sequence[Token], fields: Sequence[str]) -> None:
    if not set(fields) & set("vs"):
        raise typer.BadParameter("the format has no %v: what would the value be?")
    sized = [one for one in fields if one in _SIZES]
    if sized:
        raise typer.BadParameter(f"%{sized[0]} is no part of a record; leave it out")
    if len(fields) != len(set(fields)) or {"v", "s"} <= set(fields):
        raise typer.BadParameter("a field stands in the format twice; name it once")
    for one, following in itertools.pairwise(tokens):
        if isinstance(one, str) and isinstance(following, str):
            raise typer.BadParameter(f"%{one}%{following}: put something between them")


def _without(line: bytes, lead: bytes) -> bytes:
    if not line.startswith(lead):
        raise InvalidRecord(f"{shown(line)} does not begin with {shown(lead)}")
    return line[len(lead) :]


def _cut(data: bytes, end: bytes, name: str) -> tuple[bytes, bytes]:
    if not end:
        return data, b""
    found, mark, rest = data.partition(end)
    if not mark:
        raise InvalidRecord(f"nothing ends %{name} in {shown(data)}: {shown(end)} is missing")
    return found, rest


def _make(topic: str, found: dict[str, bytes]) -> KafkaRecord:
    return KafkaRecord(
        topic,
        _number(found, "p", -1),
        -1,
        _number(found, "T", -1),
        found.get("k"),
        found.get("v", found.get("s")),
        read_headers(found.get("h", b"")),
    )


def _number(found: dict[str, bytes], name: str, default: int) -> int:
    text = found.get(name)
    if text is None:
        return default
    if not re.fullmatch(rb"-?[0-9]{1,18}", text):
        raise InvalidRecord(f"%{name} is {shown(text)}, and must be a whole number")
    return int(text)


def shown(data: bytes) -> str:
    """The beginning of some bytes, for an error."""
    text = data[:60].decode(errors="backslashreplace")
    return repr(text + ("..." if len(data) > 60 else ""))
