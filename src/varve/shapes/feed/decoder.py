"""What a record of a topic says about a row: the answer of every decoder.

Invariant  a decoder keeps no state between records: the same record always says the same.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from varve.shapes.feed.row import Row


class RecordKind(IntEnum):
    """What a record does."""

    UPSERT = 0
    DELETE = 1
    NOTHING = 2
    """It says nothing about a row: a message of the source, a tombstone behind a delete."""
    TRUNCATE = 3
    """All rows are gone: the topic's shapes start anew."""
    SCHEMA_CHANGE = 4
    """Columns changed their meaning: the topic's shapes start anew."""
    SKIPPED = 5
    """It has no key, or no form that the decoder knows; `reason` says which."""


class SourceTransaction(NamedTuple):
    """Where a record stands in a transaction of its source."""

    id: str
    order: int
    """From 1 within the transaction, over all collections."""
    collection_order: int
    """From 1 within the transaction and this collection."""


class Decoded(NamedTuple):
    """One record, decoded. `row` holds the key columns as well; it is None unless UPSERT."""

    kind: RecordKind
    key_columns: Row
    row: Row | None = None
    unavailable: frozenset[str] = frozenset()
    """Columns of `row` that the source left out: the previous row's value goes on to hold."""
    transaction: SourceTransaction | None = None
    reason: str = ""


class TransactionEnd(NamedTuple):
    """The end of a source transaction: how many records each collection has of it."""

    id: str
    counts: dict[str, int]


Record = tuple[bytes | None, bytes | None]
"""Key and value."""


class Decoder(Protocol):
    """Turns records into what they say about rows. Any thread may use it."""

    def decode(self, key: bytes | None, value: bytes | None) -> Decoded:
        """One record; a null value is a tombstone."""
        ...

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        """The same for many, which costs less per record."""
        ...


def complete(decoded: Decoded, previous: Row | None) -> Row | None:
    """The row with what the source left out taken from the previous one, or without it."""
    row = decoded.row
    if row is None or not decoded.unavailable:
        return row
    kept = {name: text for name, text in row.items() if name not in decoded.unavailable}
    if previous is not None:
        kept |= {name: previous[name] for name in decoded.unavailable if name in previous}
    return kept
