"""Which topic a partition directory belongs to, and how a topic id is written.

Layout     `version: 0`, a newline, `topic_id: <22 characters of base64url>`, no final newline.
           docs/formats/directory.md
Crash      written aside and renamed before the first append.
"""

import random
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

from varve.commit_log.names import PARTITION_METADATA_FILE
from varve.foundation.errors import Corrupt

__all__ = [
    "PARTITION_METADATA_FILE",
    "decode",
    "decode_topic_id",
    "encode",
    "encode_topic_id",
    "random_id_text",
    "random_topic_id",
]

VERSION = 0
ZERO_ID = UUID(int=0)

_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_FIELD_SEPARATOR = re.compile(r":[ \t\n\x0b\f\r]+")
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")


def encode_topic_id(topic_id: UUID) -> str:
    """The 22 characters that stand for an id in files and messages."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str, where: str = "topic id") -> UUID:
    """The id behind 22 characters; raises Corrupt for any other text."""
    if _ID.fullmatch(text) is None:
        raise Corrupt(f"{where}: {text[:40]!r} is not an id of 22 base64url characters")
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def random_topic_id(random: random.Random) -> UUID:
    """A fresh id: never zero, and never beginning with '-', which commands take for an option."""
    while True:
        topic_id = UUID(bytes=random.randbytes(16), version=4)
        if not encode_topic_id(topic_id).startswith("-"):
            return topic_id


def random_id_text(random: random.Random) -> str:
    """A fresh id as it is written."""
    return encode_topic_id(random_topic_id(random))


def encode(topic_id: UUID) -> bytes:
    """The content of `partition.metadata`."""
    return f"version: {VERSION}\ntopic_id: {encode_topic_id(topic_id)}".encode()


def decode(data: bytes | bytearray | memoryview, where: str = PARTITION_METADATA_FILE) -> UUID:
    """The topic id; raises Corrupt for a malformed line, a missing field or the zero id."""
    fields = _fields(data, where)
    version = fields.get("version", "")
    if _NUMBER.fullmatch(version) is None or int(version) < VERSION:
        raise Corrupt(f"{where}: version {version[:40]!r} is not a number from {VERSION} on")
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
