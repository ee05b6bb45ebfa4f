"""Rows as raw JSON, and the texts that name them to clients.

A row is passed on as one text, an object of its columns as `join_row` writes it; most rows are
never split into columns.

Layout     a row key is `"public"."<topic>"`, then for each key column by name `/"<value>"` with `/`
           doubled. A JSON string is written unquoted, null as `_`, everything else as its JSON.
Invariant  the text of a column is valid JSON, keeps its digits and escapes, and has no blanks
           outside strings and no raw newlines. Of columns with one name the last one counts.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Final, NamedTuple

import numpy as np

from varve.foundation.errors import Corrupt
from varve.shapes.kernels.json_text import (
    MEMBER_BYTES_MIN,
    NOT_OBJECT,
    SPAN_FIELD_COUNT,
    VALUE_HAS_BLANKS,
    find_members,
    squeeze_blanks,
)

Row = dict[str, bytes]
NULL: Final = b"null"
NO_COLUMNS: Final = b"{}"
_NAMES_MAX: Final = 1 << 14
_CACHED_NAME_MAX: Final = 256
"""Longer names of columns are not cached: at most 16 MiB of names are."""
_PLAIN_TEXT: Final = re.compile(r"[ !#-\[\]-~]*")
SCHEMA: Final = "public"
"""Topics have no schema: messages name this one, and requests may name no other."""
_ENTRY_BYTES: Final = 400
"""About the memory of a cached key besides its bytes."""
_KEYS_BYTES: Final = 32 << 20
_ONE_TEXT: Final = re.compile(rb'\{"[^"\\]*":("[^"\\]*")\}')
"""One column with a plain text, as most keys are."""


def split_row(data: bytes) -> Row | None:
    """The members of a JSON object; None when the text is anything else, or no JSON."""
    return split_rows([data])[0]


def get_row(text: bytes) -> Row:
    """The columns of a row's text; raises Corrupt for anything else."""
    row = split_row(text)
    if row is None:
        raise Corrupt(f"a row is not a JSON object: {text[:80]!r}")
    return row


def split_rows(texts: Sequence[bytes]) -> list[Row | None]:
    """The members of each text that is a JSON object; one kernel call serves all."""
    split = split_texts(texts)
    return [row if isinstance(row, dict) else None for row in split]


def split_texts(texts: Sequence[bytes]) -> list[Row | bytes | None]:
    """Of each text the members of its object, else the squeezed JSON value, else None."""
    if not texts:
        return []
    data = texts[0] if len(texts) == 1 else b"".join(texts)
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=ends[1:])
    spans = np.empty((len(data) // MEMBER_BYTES_MIN + len(texts), SPAN_FIELD_COUNT), np.int64)
    counts = np.empty(len(texts), np.int64)
    size = find_members(np.frombuffer(data, np.uint8), ends, spans, counts)
    # Lists and slices: this is the loop that every record passes.
    members = spans[:size].tolist()
    names: dict[bytes, str] = {}
    rows: list[Row | bytes | None] = []
    at = 0
    for count in counts.tolist():
        if count >= 0:
            row: Row = {}
            for name_start, name_end, start, end, flags in members[at : at + count]:
                name = names.get(spelled := data[name_start:name_end])
                if name is None:
                    name = names[spelled] = _name(spelled)
                row[name] = _value(data, start, end, flags) if flags else data[start:end]
            rows.append(row)
            at += count
        elif count == NOT_OBJECT:
            _, _, start, end, flags = members[at]
            rows.append(_value(data, start, end, flags))
            at += 1
        else:
            rows.append(None)
    return rows


def join_row(row: Row, columns: Iterable[str] | None = None) -> bytes:
    """The row as a JSON object, or those of the columns that it has, in the order given."""
    if columns is None:
        return b"{" + b",".join([name_prefix(name) + text for name, text in row.items()]) + b"}"
    parts = [name_prefix(name) + row[name] for name in columns if name in row]
    return b"{" + b",".join(parts) + b"}"


def name_prefix(name: str) -> bytes:
    """A column's name as a JSON string and the colon after it."""
    if len(name) > _CACHED_NAME_MAX:
        return encode_text(name) + b":"
    return _short_name_prefix(name)


@lru_cache(_NAMES_MAX)
def _short_name_prefix(name: str) -> bytes:
    return encode_text(name) + b":"


def encode_text(text: str) -> bytes:
    """A text as a JSON string; halves of surrogate pairs, which UTF-8 lacks, become escapes."""
    if _PLAIN_TEXT.fullmatch(text):
        return b'"%s"' % text.encode()
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        return encode_basestring_ascii(text).encode()


def decode_text(text: bytes) -> str | None:
    """What a column's text says if it is a JSON string, else None."""
    if text[0] != 0x22:
        return None
    if b"\\" not in text:
        return text[1:-1].decode()
    decoded: str = json.loads(text)
    return decoded


def _name(spelled: bytes) -> str:
    if b"\\" in spelled:
        decoded: str = json.loads(b'"' + spelled + b'"')
        return decoded
    return spelled.decode()


def _value(data: bytes, start: int, end: int, flags: int) -> bytes:
    text = data[start:end]
    if not flags & VALUE_HAS_BLANKS:
        return text
    target = np.empty(len(text), np.uint8)
    return target[: squeeze_blanks(np.frombuffer(text, np.uint8), target)].tobytes()


class RowKey(NamedTuple):
    """The key of a row in each form that is used often. Kernels know the order."""

    text: str
    encoded: bytes
    json: bytes
    """The key as a JSON string, as messages have it."""
    columns: bytes
    """The key's columns as a JSON object, with which the row begins."""


class RowKeys:
    """Row keys of a topic; recent ones are cached. One thread uses it."""

    def __init__(self, prefix: str) -> None:
        """`prefix` is that of `row_key_prefix`."""
        self._prefix = prefix
        self._cache: dict[bytes, RowKey] = {}
        self._byte_count = 0

    def get(self, columns: bytes) -> RowKey:
        """The key with these columns, a JSON object."""
        return self.get_all([columns])[0]

    def get_all(self, columns: Sequence[bytes]) -> list[RowKey]:
        """The keys with each of these columns."""
        cache = self._cache
        keys = [cache.get(column) or self._add(column) for column in columns]
        if self._byte_count >= _KEYS_BYTES:
            cache.clear()
            self._byte_count = 0
        return keys

    def _add(self, columns: bytes) -> RowKey:
        text = self._make_text(columns)
        key = RowKey(text, text.encode(), encode_basestring(text).encode(), columns)
        self._cache[columns] = key
        self._byte_count += _ENTRY_BYTES + sum(map(len, key))
        return key

    def _make_text(self, columns: bytes) -> str:
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
    """The value of a JSON string; a text with half a surrogate pair stays as it is written."""
    value = decode_text(text)
    if value is None:
        return text.decode()
    try:
        value.encode()
    except UnicodeEncodeError:
        return text[1:-1].decode()
    return value
