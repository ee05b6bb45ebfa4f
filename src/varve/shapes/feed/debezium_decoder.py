"""Records of Debezium: an envelope with the row before and after a change of its source.

Layout     `{"before", "after", "source", "op", "transaction"}`, alone or as the `payload` beside a
           `schema`; keys likewise. A null value is the tombstone behind a delete.
Invariant  `c`, `r` and `u` give the row after, `d` and tombstones delete, `t` truncates, `m` says
           nothing about rows. A change of a key is told as `d`, a tombstone and `c`. What has
           another form is skipped, never guessed at.
"""

import base64
import json
import re
from collections.abc import Sequence
from typing import Final

from varve.shapes.feed.decoder import (
    Decoded,
    Record,
    RecordKind,
    SourceTransaction,
    TransactionEnd,
)
from varve.shapes.feed.plain_decoder import key_columns_of
from varve.shapes.feed.row import NULL, Row, decode_text, encode_text, join_row, split_texts

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value that its source did not send again."""
_WRAPPER: Final = {"schema", "payload"}
_UPSERTS: Final = frozenset({b'"c"', b'"r"', b'"u"'})
_POSTGRES_ID: Final = re.compile(r"([0-9]+):[0-9]+")
"""A transaction of PostgreSQL, and a place in its log that each event has of its own."""

Split = Row | bytes | None


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
        held = {str(entry["data_collection"]): int(entry["event_count"]) for entry in counts}
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return None if name is None else TransactionEnd(name, held)


def find_transaction_begin(value: bytes | None) -> str | None:
    """The transaction that a record of Debezium's transaction topic begins, if it does."""
    (event,) = _unwrapped([value])
    is_begin = isinstance(event, dict) and event.get("status") == b'"BEGIN"'
    return _find_id(event) if is_begin and isinstance(event, dict) else None


def _split(texts: Sequence[bytes | None]) -> list[Split]:
    """Each text that is there, split; one kernel call serves all."""
    found = iter(split_texts([text for text in texts if text is not None]))
    return [None if text is None else next(found) for text in texts]


def _unwrapped(texts: Sequence[bytes | None]) -> list[Split]:
    """Each text split; of one that stands beside its schema the payload."""
    outer = _split(texts)
    is_wrapped = [isinstance(held, dict) and held.keys() == _WRAPPER for held in outer]
    if not any(is_wrapped):
        return outer
    inner = _split(
        [
            _member(held, "payload") if wrapped else None
            for held, wrapped in zip(outer, is_wrapped, strict=True)
        ]
    )
    return [
        payload if wrapped else held
        for held, payload, wrapped in zip(outer, inner, is_wrapped, strict=True)
    ]


def _member(held: Split, name: str) -> bytes | None:
    return held.get(name) if isinstance(held, dict) else None


def _object(held: Split, name: str) -> bytes | None:
    """A member that is an object, which null is not."""
    text = held.get(name) if isinstance(held, dict) else None
    return text if text is not None and text[0] == 0x7B else None


def _transaction(mark: Split) -> SourceTransaction | None:
    if not isinstance(mark, dict):
        return None
    name = _find_id(mark)
    orders = [mark.get(name, b"") for name in ("total_order", "data_collection_order")]
    if name is None or not all(order.isdigit() and len(order) < 19 for order in orders):
        return None
    return SourceTransaction(name, int(orders[0]), int(orders[1]))


def _find_id(held: Row) -> str | None:
    """What all events of a transaction, and its end, have in common."""
    told = decode_text(held.get("id", NULL))
    of_postgres = None if told is None else _POSTGRES_ID.fullmatch(told)
    return told if of_postgres is None else of_postgres[1]
