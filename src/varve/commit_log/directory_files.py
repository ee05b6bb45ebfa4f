"""Formats of the files that identify a directory's owner, and the text form of topic ids.

Layout     `partition.metadata`: `version: 0`, a newline, `topic_id: <22 characters of base64url>`,
           no final newline. `meta.properties`: a Java properties file; version 1 has cluster.id,
           node.id and directory.id, version 0 has broker.id. `.kafka_cleanshutdown`: one JSON
           object. docs/reference/formats/directory.md
Crash      replaced atomically, `partition.metadata` before the first append. The existence of
           `.kafka_cleanshutdown` marks a clean shutdown; a torn file only loses its broker epoch.
"""

import json
import random
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from varve.commit_log.names import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
)
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.foundation.properties import escape_property, parse_properties
from varve.kernels.batch_layout import INT32_MAX

_METADATA_VERSION = 0
ZERO_ID = UUID(int=0)

_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_FIELD_SEPARATOR = re.compile(r":[ \t\n\x0b\f\r]+")
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")


def encode_topic_id(topic_id: UUID) -> str:
    """The 22 characters of an id in files and messages."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str, where: str = "topic id") -> UUID:
    """The id of 22 characters; raises Corrupt for any other text."""
    if _ID.fullmatch(text) is None:
        raise Corrupt(f"{where}: {text[:40]!r} is not an id of 22 base64url characters")
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def random_topic_id(rng: random.Random) -> UUID:
    """A random id: never zero, and never starting with '-', which commands take for an option."""
    while True:
        topic_id = UUID(bytes=rng.randbytes(16), version=4)
        if not encode_topic_id(topic_id).startswith("-"):
            return topic_id


def random_id_text(rng: random.Random) -> str:
    """A random id in its text form."""
    return encode_topic_id(random_topic_id(rng))


def encode_partition_metadata(topic_id: UUID) -> bytes:
    """The content of `partition.metadata`."""
    return f"version: {_METADATA_VERSION}\ntopic_id: {encode_topic_id(topic_id)}".encode()


def decode_partition_metadata(
    data: bytes | bytearray | memoryview, where: str = PARTITION_METADATA_FILE
) -> UUID:
    """The topic id; raises Corrupt for a malformed line, a missing field or the zero id."""
    fields = _fields(data, where)
    version = fields.get("version", "")
    if _NUMBER.fullmatch(version) is None or int(version) < _METADATA_VERSION:
        raise Corrupt(
            f"{where}: version {version[:40]!r} is not a number of at least {_METADATA_VERSION}"
        )
    if "topic_id" not in fields:
        raise Corrupt(f"{where}: no topic_id: write the topic's id or remove the file")
    topic_id = decode_topic_id(fields["topic_id"], where)
    if topic_id == ZERO_ID:
        raise Corrupt(f"{where}: the topic id is zero: write the topic's id or remove the file")
    return topic_id


def _fields(data: bytes | bytearray | memoryview, where: str) -> dict[str, str]:
    fields = {}
    for number, raw in enumerate(bytes(data).splitlines(), start=1):
        parts = _FIELD_SEPARATOR.split(raw.decode(errors="replace"))
        if len(parts) != 2:
            raise Corrupt(f"{where}: line {number}: {raw[:80]!r} is not `name: value`")
        fields[parts[0]] = parts[1]
    return fields


_NODE_ID_NAMES: Final = ("broker.id", "node.id")  # by version


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryMetadata:
    """The owner of a log directory; None for a field that the file lacks."""

    cluster_id: str | None
    node_id: int | None
    directory_id: UUID | None = None
    version: int = 1


def encode_meta_properties(metadata: DirectoryMetadata) -> bytes:
    """The content of `meta.properties`."""
    values = {
        "version": metadata.version,
        "cluster.id": metadata.cluster_id,
        _NODE_ID_NAMES[metadata.version]: metadata.node_id,
        "directory.id": metadata.directory_id and encode_topic_id(metadata.directory_id),
    }
    return "".join(
        f"{escape_property(name)}={escape_property(str(value))}\n"
        for name, value in sorted(values.items())
        if value is not None
    ).encode("ascii")


def decode_meta_properties(
    data: bytes | bytearray | memoryview, where: str = META_PROPERTIES_FILE
) -> DirectoryMetadata:
    """The owner of a directory; raises Corrupt for a broken file or one that lacks its owner."""
    # Java reads properties as ISO 8859-1, in which every byte is a character.
    properties = decode_properties(bytes(data).decode("iso-8859-1"), where)
    version = _integer(properties, "version", where) if "version" in properties else 0
    if version not in (0, 1):
        raise UnsupportedFormat(f"{where}: version {version}, only 0 and 1 are known")
    node_id_name, id = _NODE_ID_NAMES[version], properties.get("directory.id")
    for name in ("cluster.id", node_id_name) if version == 1 else ():
        if name not in properties:
            raise Corrupt(f"{where}: version 1 needs {name}: add the line or remove the file")
    return DirectoryMetadata(
        version=version,
        cluster_id=properties.get("cluster.id"),
        node_id=_integer(properties, node_id_name, where) if node_id_name in properties else None,
        directory_id=None if id is None else decode_topic_id(id, f"{where}: directory.id"),
    )


def _integer(properties: Mapping[str, str], name: str, where: str) -> int:
    text = properties[name].strip()
    if _NUMBER.fullmatch(text) is None or not -INT32_MAX - 1 <= int(text) <= INT32_MAX:
        raise Corrupt(f"{where}: {name} {text[:40]!r} is not a 32-bit number")
    return int(text)


def decode_properties(text: str, where: str) -> dict[str, str]:
    """The pairs of a Java properties file; raises Corrupt naming the line."""
    try:
        return {name: value for _, name, value in parse_properties(text)}
    except ValueError as error:
        raise Corrupt(f"{where}: {error}") from None


def decode_clean_shutdown(data: bytes | bytearray | memoryview) -> int | None:
    """The broker epoch in `.kafka_cleanshutdown`; None if it has none or cannot be parsed."""
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("version") != 0:
        return None
    epoch = content.get("brokerEpoch")
    return epoch if type(epoch) is int and epoch >= 0 else None
