"""Whom a log directory belongs to, and the mark of a clean shutdown.

Layout     `meta.properties`: a Java properties file; version 1 has cluster.id, node.id and
           directory.id, version 0 has broker.id. `.kafka_cleanshutdown`: one JSON object.
           docs/formats/directory.md
Crash      the properties are written aside and renamed. The mark counts by existing: a torn one
           still means a clean shutdown, it only has lost its broker epoch.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from varve.commit_log.names import CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE
from varve.commit_log.partition_metadata import decode_topic_id, encode_topic_id
from varve.foundation.errors import Corrupt, UnsupportedFormat

__all__ = [
    "CLEAN_SHUTDOWN_FILE",
    "META_PROPERTIES_FILE",
    "DirectoryMetadata",
    "decode_clean_shutdown",
    "decode_meta_properties",
    "encode_clean_shutdown",
    "encode_meta_properties",
]

NO_BROKER_EPOCH: Final = -1

_INT32_MAX: Final = 2**31 - 1
_NODE_ID_NAMES: Final = ("broker.id", "node.id")  # by version
_BLANK: Final = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryMetadata:
    """The owner of a log directory; None is what the file does not say."""

    cluster_id: str | None
    node_id: int | None
    directory_id: UUID | None = None
    version: int = 1


def encode_meta_properties(metadata: DirectoryMetadata) -> bytes:
    """The content of `meta.properties`."""
    values = {
        "version": str(metadata.version),
        "cluster.id": metadata.cluster_id,
        _NODE_ID_NAMES[metadata.version]: _text_of(metadata.node_id),
        "directory.id": _text_of_id(metadata.directory_id),
    }
    return "".join(
        f"{_escape(name)}={_escape(value)}\n"
        for name, value in sorted(values.items())
        if value is not None
    ).encode("ascii")


def _text_of(number: int | None) -> str | None:
    return None if number is None else str(number)


def _text_of_id(directory_id: UUID | None) -> str | None:
    return None if directory_id is None else encode_topic_id(directory_id)


def decode_meta_properties(
    data: bytes | bytearray | memoryview, where: str = META_PROPERTIES_FILE
) -> DirectoryMetadata:
    """The owner of a directory; raises Corrupt for a broken file or one that lacks its owner."""
    # Java reads properties as ISO 8859-1, in which every byte is a character.
    properties = decode_properties(bytes(data).decode("iso-8859-1"), where)
    version = _integer(properties, "version", where) if "version" in properties else 0
    if version not in (0, 1):
        raise UnsupportedFormat(f"{where}: version {version}, only 0 and 1 are known")
    node_id_name = _NODE_ID_NAMES[version]
    if version == 1:
        _require(properties, "cluster.id", where)
        _require(properties, node_id_name, where)
    return DirectoryMetadata(
        version=version,
        cluster_id=properties.get("cluster.id"),
        node_id=_integer(properties, node_id_name, where) if node_id_name in properties else None,
        directory_id=_find_directory_id(properties, where),
    )


def _require(properties: Mapping[str, str], name: str, where: str) -> None:
    if name not in properties:
        raise Corrupt(f"{where}: version 1 needs {name}: add the line or remove the file")


def _find_directory_id(properties: Mapping[str, str], where: str) -> UUID | None:
    text = properties.get("directory.id")
    return None if text is None else decode_topic_id(text, f"{where}: directory.id")


def _integer(properties: Mapping[str, str], name: str, where: str) -> int:
    text = properties[name].strip()
    if _INTEGER.fullmatch(text) is None or not -_INT32_MAX - 1 <= int(text) <= _INT32_MAX:
        raise Corrupt(f"{where}: {name} {text[:40]!r} is not a 32-bit number")
    return int(text)


def decode_properties(text: str, where: str) -> dict[str, str]:
    """The pairs of a Java properties file, with its escapes and continued lines."""
    pairs = {}
    for number, line in _logical_lines(text):
        name_end = _end_of_name(line)
        value = line[name_end:].lstrip(_BLANK)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANK)
        place = f"{where}: line {number}"
        pairs[_unescape(line[:name_end], place)] = _unescape(value, place)
    return pairs


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, without blanks before, comments and empty ones."""
    start, pending = 0, None
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_BLANK)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            start, pending = number, ""
        if _is_continued(line):
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = None
    if pending is not None:
        yield start, pending


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _end_of_name(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\":
            character = text[position : position + 1]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if _HEX.fullmatch(digits) is None:
                    raise Corrupt(f"{where}: \\u{digits} is not a character of four hex digits")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        parts.append(character)
    # Java writes a character beyond 16 bits as two escapes.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _escape(text: str) -> str:
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character in "\\=:#! ":
        return f"\\{character}"
    if " " < character < "\x7f":
        return character
    if character in _ESCAPED:
        return _ESCAPED[character]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(
        f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True)
    )


def encode_clean_shutdown(broker_epoch: int = NO_BROKER_EPOCH) -> bytes:
    """The content of the clean-shutdown mark."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes | bytearray | memoryview) -> int | None:
    """The broker epoch in the mark; None when it holds none, whatever its bytes are."""
    try:
        return _find_broker_epoch(json.loads(bytes(data)))
    except (ValueError, RecursionError):
        return None


def _find_broker_epoch(value: object) -> int | None:
    if not isinstance(value, dict) or value.get("version") != 0:
        return None
    epoch = value.get("brokerEpoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool):
        return None
    return epoch if epoch >= 0 else None
