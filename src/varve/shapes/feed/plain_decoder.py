"""Records of plain keys and JSON values.

Layout     a key that is a JSON object gives its members as key columns; any other is text in one
           column. A value that is a JSON object gives its members; any other JSON value, and bytes
           that are no JSON, stand in the column `value`: JSON as it is, text as a JSON string.
           Bytes that are no UTF-8 are written as base64 behind `base64:`; a text key that starts
           so itself is written that way too, so that different keys never look alike.
"""

import base64
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Final

from varve.foundation.errors import InvalidSetting
from varve.kernels.row_texts import join_rows
from varve.shapes.feed.decoder import Decoded, Record, RecordKind
from varve.shapes.feed.row import Row, encode_text, get_row, join_row, split_texts

VALUE_COLUMN: Final = "value"
_BASE64: Final = "base64:"
_KEYS_MAX: Final = 1 << 16
_UPSERT: Final = RecordKind.UPSERT
_COMPLETE: Final[frozenset[str]] = frozenset()
_NEW_DECODED: Final = partial(tuple.__new__, Decoded)
"""Made without the detour by the class, for many are."""
_NO_KEY: Final = Decoded(RecordKind.SKIPPED)


class PlainDecoder:
    """A record is the row of its key; a null value deletes it."""

    def __init__(self, key_column: str = "key") -> None:
        if not key_column:
            raise InvalidSetting("the key column has no name: give one, such as key")
        self.key_column = key_column
        self._known: dict[bytes, bytes] = {}

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        known = self._keys_of(records)
        told = [(key, value) for key, value in records if key is not None and value is not None]
        columns = [known[key] for key, _ in told]
        texts = _row_texts(columns, [value for _, value in told])
        parts = zip(repeat(_UPSERT), columns, texts, repeat(_COMPLETE), repeat(None))
        upserts = map(_NEW_DECODED, parts)
        if len(told) == len(records):
            return list(upserts)
        return [
            _NO_KEY
            if key is None
            else Decoded(RecordKind.DELETE, known[key])
            if value is None
            else next(upserts)
            for key, value in records
        ]

    def _keys_of(self, records: Sequence[Record]) -> dict[bytes, bytes]:
        """The object of the key's columns by key, at least for all of these records."""
        known = self._known
        if len(known) >= _KEYS_MAX:
            # Another thread may still use the old ones.
            known = self._known = {}
        missing = dict.fromkeys([key for key, _ in records if key not in known and key is not None])
        for key, split in zip(missing, _split_objects(missing), strict=True):
            known[key] = join_row(key_columns_of(key, split, self.key_column))
        return known


def _may_be_object(key: bytes) -> bool:
    """Whether a key's first byte, past blanks, opens an object."""
    return key[:1] == b"{" or key[:1].isspace()


def key_columns_of(key: bytes, split: Row | bytes | None, column: str) -> Row:
    """The members of a key that is an object, else one column with its text."""
    if isinstance(split, dict) and split:
        return split
    return {column: encode_text(_key_text(key))}


def _split_objects(keys: Iterable[bytes]) -> list[Row | bytes | None]:
    """Each key that may be an object, split; None for the others."""
    found = iter(split_texts([key for key in keys if _may_be_object(key)]))
    return [next(found) if _may_be_object(key) else None for key in keys]


def _row_texts(keys: list[bytes], values: list[bytes]) -> list[bytes]:
    """The rows of keys' columns and values; most values stand in them as they are."""
    texts = join_rows(keys, values)
    if b"" in texts:
        unfit = [at for at, text in enumerate(texts) if not text]
        joined = _join_unfit([keys[at] for at in unfit], [values[at] for at in unfit])
        for at, text in zip(unfit, joined, strict=True):
            texts[at] = text
    return texts


def _join_unfit(keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """The rows of values that are split and joined anew."""
    texts = []
    for key, value, split in zip(keys, values, split_texts(values), strict=True):
        columns = get_row(key)
        texts.append(join_row({**columns, **_value_columns(value, split), **columns}))
    return texts


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
