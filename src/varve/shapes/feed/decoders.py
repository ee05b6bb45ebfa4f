"""Decodes records to rows: plain keys with JSON values, and Debezium's envelopes.

Plain      a key that is a JSON object gives its members as key columns; any other key is text in
           one column. A value that is a JSON object gives its members; any other JSON value, and
           bytes that are not JSON, go to the column `value`: JSON unchanged, text as a JSON string.
           Bytes that are not UTF-8 are written as base64 after `base64:`; a text key that starts
           with that prefix is written that way too, so that different keys stay different.
Debezium   `{"before", "after", "source", "op", "transaction"}`, alone or as the `payload` beside a
           `schema`; keys likewise. `c`, `r` and `u` give the row after the change, `d` and
           tombstones delete, `t` truncates, `m` is not about rows. A changed key is written as `d`,
           a tombstone and `c`. Any other form is skipped.
Invariant  a decoder keeps no state between records: equal records are decoded equally.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple, Protocol

from varve.foundation.errors import InvalidSetting
from varve.shapes.feed.row import (
    NO_COLUMNS,
    NULL,
    Row,
    decode_text,
    encode_text,
    get_row,
    join_row,
    split_texts,
)
from varve.shapes.kernels.row_texts import join_rows

Record = tuple[bytes | None, bytes | None]
"""Key and value."""
VALUE_COLUMN: Final = "value"
_BASE64: Final = "base64:"
_CACHED_BYTES_MAX: Final = 32 << 20
"""Bytes of cached keys and their columns, so that most keys are not decoded again."""
_ENTRY_BYTES: Final = 200
"""About the memory of a cached entry besides its bytes."""
_COMPLETE: Final[frozenset[str]] = frozenset()
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value that its source did not send again."""
_WRAPPER: Final = {"schema", "payload"}
_UPSERTS: Final = frozenset({b'"c"', b'"r"', b'"u"'})
_POSTGRES_ID: Final = re.compile(r"([0-9]+):[0-9]+")
"""A transaction of PostgreSQL, and the log position of the single event."""
Split = Row | bytes | None


class RecordKind(IntEnum):
    """What a record does. Those up to DELETE are about a row."""

    MOVE = -1
    """An upsert of a row that had another key, which the delete before it names."""
    UPSERT = 0
    DELETE = 1
    NOTHING = 2
    """Not about a row: a message of the source, or a tombstone after a delete."""
    TRUNCATE = 3
    """All rows are deleted: the shapes of the topic must be dropped."""
    SCHEMA_CHANGE = 4
    """Columns changed their meaning: the shapes of the topic must be dropped."""
    SKIPPED = 5
    """It has no key, or no form that the decoder knows."""


class SourceTransaction(NamedTuple):
    """The place of a record in a transaction of its source."""

    id: str
    order: int
    """From 1 within the transaction, over all collections."""
    collection_order: int
    """From 1 within the transaction and this collection."""


class Decoded(NamedTuple):
    """One record, decoded.

    `key` is the object of the key's columns. `text` is that of the row, which begins with them; it
    is None unless UPSERT or MOVE.
    """

    kind: RecordKind
    key: bytes = NO_COLUMNS
    text: bytes | None = None
    unavailable: frozenset[str] = frozenset()
    """Columns that the source left out: the value of the previous row remains valid."""
    transaction: SourceTransaction | None = None

    @property
    def is_tombstone(self) -> bool:
        """Of a topic with source transactions: a delete that is not an event of its source."""
        return self.kind is RecordKind.DELETE and self.transaction is None

    @property
    def row(self) -> Row | None:
        return None if self.text is None else get_row(self.text)


class TransactionEnd(NamedTuple):
    """The end of a source transaction: how many records each collection has of it."""

    id: str
    counts: dict[str, int]


class Decoder(Protocol):
    """Decodes records to changes of rows. Any thread may use it."""

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        """Decodes each record independently of the others; a null value is a tombstone."""
        ...


def transaction_ids(records: Iterable[Decoded]) -> Iterator[str | None]:
    """The source transaction of each record; a tombstone has that of the delete before it."""
    name: str | None = None
    for record in records:
        if not record.is_tombstone:
            name = None if record.transaction is None else record.transaction.id
        yield name


def complete(decoded: Decoded, previous: bytes | None) -> bytes | None:
    """The row, with columns that the source left out taken from the previous row if it has them."""
    row = decoded.row
    if row is None or not decoded.unavailable:
        return decoded.text
    previous_row = {} if previous is None else get_row(previous)
    missing = decoded.unavailable
    return join_row(
        {
            name: previous_row[name] if name in missing else text
            for name, text in row.items()
            if name not in missing or name in previous_row
        }
    )


_UPSERT: Final = RecordKind.UPSERT
_NEW_DECODED: Final = partial(tuple.__new__, Decoded)
"""Builds a tuple without calling the class, which is slow for many."""
_NO_KEY: Final = Decoded(RecordKind.SKIPPED)


class PlainDecoder:
    """A record is the row of its key; a null value deletes it."""

    def __init__(self, key_column: str = "key") -> None:
        if not key_column:
            raise InvalidSetting("the key column has no name: give one, such as key")
        self.key_column = key_column
        self._columns_by_key: dict[bytes, bytes] = {}
        self._cached_bytes = 0

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        columns_by_key = self._keys_of(records)
        rows = [(key, value) for key, value in records if key is not None and value is not None]
        columns = [columns_by_key[key] for key, _ in rows]
        texts = _row_texts(columns, [value for _, value in rows])
        parts = zip(repeat(_UPSERT), columns, texts, repeat(_COMPLETE), repeat(None))
        upserts = map(_NEW_DECODED, parts)
        if len(rows) == len(records):
            return list(upserts)
        return [
            _NO_KEY
            if key is None
            else Decoded(RecordKind.DELETE, columns_by_key[key])
            if value is None
            else next(upserts)
            for key, value in records
        ]

    def _keys_of(self, records: Sequence[Record]) -> dict[bytes, bytes]:
        """The object of the key's columns by key, at least for all of these records."""
        columns_by_key = self._columns_by_key
        missing = dict.fromkeys(
            [key for key, _ in records if key not in columns_by_key and key is not None]
        )
        for key, split in zip(missing, _split_objects(missing), strict=True):
            columns = columns_by_key[key] = join_row(key_columns_of(key, split, self.key_column))
            self._cached_bytes += _ENTRY_BYTES + len(key) + len(columns)
        if self._cached_bytes >= _CACHED_BYTES_MAX:
            # A new dictionary, because the caller and other threads use the old one.
            self._columns_by_key, self._cached_bytes = {}, 0
        return columns_by_key


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
    objects = iter(split_texts([key for key in keys if _may_be_object(key)]))
    return [next(objects) if _may_be_object(key) else None for key in keys]


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
    """The rows of values that must be split and joined again."""
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


class DebeziumDecoder:
    """A record is a change of the row of its key."""

    def __init__(self, key_column: str = "key", unavailable: str = UNAVAILABLE) -> None:
        self._key_column = key_column
        as_bytes = base64.b64encode(unavailable.encode()).decode()
        text = encode_text(unavailable)
        self._unavailable = frozenset({text, encode_text(as_bytes), b"[" + text + b"]"})

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        keys = _unwrapped([key for key, _ in records])
        envelopes = _unwrapped([value for _, value in records])
        rows = _split([_object(envelope, "after") for envelope in envelopes])
        marks = _split([_object(envelope, "transaction") for envelope in envelopes])
        return [
            self._decoded(record, key, envelope, row, mark)
            for record, key, envelope, row, mark in zip(
                records, keys, envelopes, rows, marks, strict=True
            )
        ]

    def _decoded(
        self, record: Record, key: Split, envelope: Split, row: Split, mark: Split
    ) -> Decoded:
        operation = envelope.get("op") if isinstance(envelope, dict) else None
        if operation == b'"t"':
            return Decoded(RecordKind.TRUNCATE, transaction=_transaction(mark))
        if operation == b'"m"':
            return Decoded(RecordKind.NOTHING, transaction=_transaction(mark))
        if isinstance(envelope, dict) and ("ddl" in envelope or "tableChanges" in envelope):
            return Decoded(RecordKind.SCHEMA_CHANGE)
        if record[0] is None or key == NULL:
            return Decoded(RecordKind.SKIPPED)
        columns = key_columns_of(record[0], key, self._key_column)
        name = join_row(columns)
        if record[1] is None or envelope == NULL:
            return Decoded(RecordKind.DELETE, name)
        if operation == b'"d"':
            return Decoded(RecordKind.DELETE, name, transaction=_transaction(mark))
        if operation not in _UPSERTS or not isinstance(row, dict):
            return Decoded(RecordKind.SKIPPED, name)
        missing = frozenset([name for name, text in row.items() if text in self._unavailable])
        text = join_row({**columns, **row, **columns})
        # A row that is new has all its values: one that lacks some has got another key.
        kind = RecordKind.MOVE if missing and operation == b'"c"' else RecordKind.UPSERT
        return Decoded(kind, name, text, missing, _transaction(mark))


def find_transaction_end(value: bytes | None) -> TransactionEnd | None:
    """What a record of Debezium's transaction topic says, if it is the end of a transaction."""
    (event,) = _unwrapped([value])
    if not isinstance(event, dict) or event.get("status") != b'"END"':
        return None
    name = _find_id(event)
    try:
        counts = json.loads(event.get("data_collections", NULL)) or []
        by_collection = {
            str(entry["data_collection"]): int(entry["event_count"]) for entry in counts
        }
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return None if name is None else TransactionEnd(name, by_collection)


def find_transaction_begin(value: bytes | None) -> str | None:
    """The transaction that a record of Debezium's transaction topic begins, if it does."""
    (event,) = _unwrapped([value])
    is_begin = isinstance(event, dict) and event.get("status") == b'"BEGIN"'
    return _find_id(event) if is_begin and isinstance(event, dict) else None


def _split(texts: Sequence[bytes | None]) -> list[Split]:
    """Each text that is there, split; one kernel call serves all."""
    objects = iter(split_texts([text for text in texts if text is not None]))
    return [None if text is None else next(objects) for text in texts]


def _unwrapped(texts: Sequence[bytes | None]) -> list[Split]:
    """Splits each text into its members; for a text with schema and payload, the payload."""
    outer = _split(texts)
    is_wrapped = [isinstance(split, dict) and split.keys() == _WRAPPER for split in outer]
    if not any(is_wrapped):
        return outer
    inner = _split(
        [
            _member(split, "payload") if wrapped else None
            for split, wrapped in zip(outer, is_wrapped, strict=True)
        ]
    )
    return [
        payload if wrapped else split
        for split, payload, wrapped in zip(outer, inner, is_wrapped, strict=True)
    ]


def _member(split: Split, name: str) -> bytes | None:
    return split.get(name) if isinstance(split, dict) else None


def _object(split: Split, name: str) -> bytes | None:
    """A member that is an object, which null is not."""
    text = split.get(name) if isinstance(split, dict) else None
    return text if text is not None and text[0] == 0x7B else None


def _transaction(mark: Split) -> SourceTransaction | None:
    if not isinstance(mark, dict):
        return None
    name = _find_id(mark)
    orders = [mark.get(name, b"") for name in ("total_order", "data_collection_order")]
    if name is None or not all(order.isdigit() and len(order) < 19 for order in orders):
        return None
    return SourceTransaction(name, int(orders[0]), int(orders[1]))


def _find_id(event: Row) -> str | None:
    """The transaction id that all events of a transaction and its end share."""
    name = decode_text(event.get("id", NULL))
    postgres_id = None if name is None else _POSTGRES_ID.fullmatch(name)
    return name if postgres_id is None else postgres_id[1]
