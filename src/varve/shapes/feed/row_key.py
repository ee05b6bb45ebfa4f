"""The text that names a row to clients.

Layout     `"public"."<topic>"`, then for each key column by name `/"<value>"` with `/` doubled.
           A JSON string stands as what it says, null as `_` without quotes, all else as its JSON.
"""

import re
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from varve.shapes.feed.row import NULL, Row, decode_text, get_row

SCHEMA: Final = "public"
"""Topics have no schema; this is the one that messages name, and the only one to be asked for."""
_KEYS_MAX: Final = 1 << 16
_KEYS_BYTES: Final = 32 << 20
_ONE_TEXT: Final = re.compile(rb'\{"[^"\\]*":("[^"\\]*")\}')
"""One column with a plain text, as most keys are."""


class RowKey(NamedTuple):
    """The key of a row in the forms that are needed again and again. Kernels know the order."""

    text: str
    encoded: bytes
    json: bytes
    """The key as a JSON string, as messages have it."""
    columns: bytes
    """The key's columns as a JSON object, with which the row begins."""


class RowKeys:
    """Keys of a topic's rows, of which those asked for lately are kept. One thread uses it."""

    def __init__(self, prefix: str) -> None:
        """`prefix` is that of `row_key_prefix`."""
        self._prefix = prefix
        self._known: dict[bytes, RowKey] = {}
        self._byte_count = 0

    def get(self, columns: bytes) -> RowKey:
        """The key with these columns, a JSON object."""
        return self.get_all([columns])[0]

    def get_all(self, columns: Sequence[bytes]) -> list[RowKey]:
        """The keys with each of these columns."""
        known = self._known
        if len(known) >= _KEYS_MAX or self._byte_count >= _KEYS_BYTES:
            known.clear()
            self._byte_count = 0
        return [known.get(one) or self._learn(one) for one in columns]

    def _learn(self, columns: bytes) -> RowKey:
        text = self._spell(columns)
        key = RowKey(text, text.encode(), encode_basestring(text).encode(), columns)
        self._known[columns] = key
        self._byte_count += sum(map(len, key))
        return key

    def _spell(self, columns: bytes) -> str:
        plain = _ONE_TEXT.fullmatch(columns)
        if plain is not None:
            return self._prefix + _part(plain[1])
        return row_key(self._prefix, get_row(columns))


def row_key_prefix(topic: str) -> str:
    """What the keys of a topic's rows start with."""
    return f'"{SCHEMA}"."{topic}"'


def row_key(prefix: str, key_columns: Row) -> str:
    """The key of a row, given `row_key_prefix` of its topic."""
    if len(key_columns) == 1:
        (text,) = key_columns.values()
        return prefix + _part(text)
    return prefix + "".join([_part(key_columns[name]) for name in sorted(key_columns)])


def _part(text: bytes) -> str:
    if text == NULL:
        return "/_"
    return f'/"{_display(text)}"'.replace("/", "//")[1:]


def _display(text: bytes) -> str:
    """What a JSON string says; a text with half a surrogate pair stays as it is spelled."""
    said = decode_text(text)
    if said is None:
        return text.decode()
    try:
        said.encode()
    except UnicodeEncodeError:
        return text[1:-1].decode()
    return said
