"""Records of plain keys and JSON values.

Layout     a key that is a JSON object gives its members as key columns; any other is text in one
           column. A value that is a JSON object gives its members; any other JSON value, and bytes
           that are no JSON, stand in the column `value`: JSON as it is, text as a JSON string.
           Bytes that are no UTF-8 are written as base64 behind `base64:`; a text key that starts
           so itself is written that way too, so that different keys never look alike.
"""

import base64
from collections.abc import Sequence
from typing import Final

from varve.foundation.errors import InvalidSetting
from varve.shapes.feed.decoder import Decoded, Record, RecordKind
from varve.shapes.feed.row import Row, encode_text, split_texts

VALUE_COLUMN: Final = "value"
_BASE64: Final = "base64:"
_NO_KEY: Final = Decoded(RecordKind.SKIPPED, {}, reason="the record has no key")


class PlainDecoder:
    """A record is the row of its key; a null value deletes it."""

    def __init__(self, key_column: str = "key") -> None:
        if not key_column:
            raise InvalidSetting("the key column has no name: give one, such as key")
        self.key_column = key_column

    def decode(self, key: bytes | None, value: bytes | None) -> Decoded:
        return self.decode_many([(key, value)])[0]

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        texts = [text for _, text in records if text is not None]
        texts += [key for key, _ in records if key is not None and _may_be_object(key)]
        found = split_texts(texts)
        values = iter(found)
        keys = iter(found[sum(value is not None for _, value in records) :])
        decoded = []
        for key, value in records:
            members = None if value is None else _value_columns(value, next(values))
            if key is None:
                decoded.append(_NO_KEY)
                continue
            split = next(keys) if _may_be_object(key) else None
            columns = key_columns_of(key, split, self.key_column)
            decoded.append(_decoded(columns, members))
        return decoded


def _may_be_object(key: bytes) -> bool:
    """Whether a key's first byte, past blanks, opens an object."""
    return key[:1] == b"{" or key[:1].isspace()


def key_columns_of(key: bytes, split: Row | bytes | None, column: str) -> Row:
    """The members of a key that is an object, else one column with its text."""
    if isinstance(split, dict) and split:
        return split
    return {column: encode_text(_key_text(key))}


def _decoded(key_columns: Row, members: Row | None) -> Decoded:
    if members is None:
        return Decoded(RecordKind.DELETE, key_columns)
    row = {**key_columns, **members}
    row.update(key_columns)
    return Decoded(RecordKind.UPSERT, key_columns, row)


def _key_text(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return _BASE64 + base64.b64encode(key).decode()
    return _BASE64 + base64.b64encode(key).decode() if text.startswith(_BASE64) else text


def _value_columns(value: bytes, split: Row | bytes | None) -> Row:
    if isinstance(split, dict):
        return split
    if split is not None:
        return {VALUE_COLUMN: split}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64 + base64.b64encode(value).decode()
    return {VALUE_COLUMN: encode_text(text)}
