"""Records of plain keys and JSON values.

Layout     a key that is a JSON object gives its members as key columns; any other is text in one
           column. A value that is a JSON object gives its members; any other JSON value, and bytes
           that are no JSON, stand in the column `value`: JSON as it is, text as a JSON string.
           Bytes that are no UTF-8 are written as base64 behind `base64:`; a text key that starts
           so itself is written that way too, so that different keys never look alike.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from varve.foundation.errors import InvalidSetting
from varve.kernels.row_texts import fit_values
from varve.shapes.feed.decoder import Decoded, Record, RecordKind
from varve.shapes.feed.row import Row, encode_text, join_row, split_rows, split_texts

VALUE_COLUMN: Final = "value"
_BASE64: Final = "base64:"
_KEYS_MAX: Final = 1 << 16
_UPSERT: Final = RecordKind.UPSERT
_NOTHING_MISSING: Final[frozenset[str]] = frozenset()
_NO_KEY: Final = Decoded(RecordKind.SKIPPED, reason="the record has no key")


class _Key(NamedTuple):
    """The object of a key's columns, and what a row with more of them begins with."""

    columns: bytes
    head: bytes


class PlainDecoder:
    """A record is the row of its key; a null value deletes it."""

    def __init__(self, key_column: str = "key") -> None:
        if not key_column:
            raise InvalidSetting("the key column has no name: give one, such as key")
        self.key_column = key_column
        self._known: dict[bytes | None, _Key] = {}

    def decode(self, key: bytes | None, value: bytes | None) -> Decoded:
        return self.decode_many([(key, value)])[0]

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        keys = self._keys_of(records)
        pairs = [
            (keys[key], value) for key, value in records if key is not None and value is not None
        ]
        texts = iter(_row_texts(pairs))
        decoded: list[Decoded] = []
        new = tuple.__new__
        for key, value in records:
            if key is None:
                decoded.append(_NO_KEY)
            elif value is None:
                decoded.append(Decoded(RecordKind.DELETE, keys[key].columns))
            else:
                # Made without the detour by the class, for many are.
                parts = (_UPSERT, keys[key].columns, next(texts), _NOTHING_MISSING, None, "")
                decoded.append(new(Decoded, parts))
        return decoded

    def _keys_of(self, records: Sequence[Record]) -> dict[bytes | None, _Key]:
        """Keys by how records have them, at least all of these records."""
        known = self._known
        if len(known) >= _KEYS_MAX:
            # Another thread may still use the old ones.
            known = self._known = {}
        missing = dict.fromkeys([key for key, _ in records if key not in known and key is not None])
        for key, split in zip(missing, _split_objects(missing), strict=True):
            columns = join_row(key_columns_of(key, split, self.key_column))
            known[key] = _Key(columns, columns[:-1] + b",")
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


def _row_texts(pairs: Sequence[tuple[_Key, bytes]]) -> list[bytes]:
    """The rows of keys and values; most values stand in them as they are."""
    fitting = fit_values([key.columns for key, _ in pairs], [value for _, value in pairs])
    unfit = [pair for pair, fit in zip(pairs, fitting, strict=True) if fit is None]
    joined = iter(_join_rows(unfit)) if unfit else iter(())
    return [
        key.head + fit[1:] if fit is not None else next(joined)
        for (key, _), fit in zip(pairs, fitting, strict=True)
    ]


def _join_rows(pairs: Sequence[tuple[_Key, bytes]]) -> list[bytes]:
    """The rows of values that are split and joined anew."""
    values = split_texts([value for _, value in pairs])
    keys = split_rows([key.columns for key, _ in pairs])
    texts = []
    for (_, value), split, columns in zip(pairs, values, keys, strict=True):
        assert columns is not None  # a key's columns are an object by its making
        row = {**columns, **_value_columns(value, split)}
        row.update(columns)
        texts.append(join_row(row))
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
