"""What a record of a topic says about a row: the answer of every decoder.

Invariant  a decoder keeps no state between records: the same record always says the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from varve.shapes.feed.row import NO_COLUMNS, Row, get_row, join_row


class RecordKind(IntEnum):
    """What a record does. Those up to DELETE are about a row."""

    MOVE = -1
    """The row had another key, which the delete before it names: an upsert that goes on with it."""
    UPSERT = 0
    DELETE = 1
    NOTHING = 2
    """It says nothing about a row: a message of the source, a tombstone behind a delete."""
    TRUNCATE = 3
    """All rows are gone: the topic's shapes start anew."""
    SCHEMA_CHANGE = 4
    """Columns changed their meaning: the topic's shapes start anew."""
    SKIPPED = 5
    """It has no key, or no form that the decoder knows."""


class SourceTransaction(NamedTuple):
    """Where a record stands in a transaction of its source."""

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
    """Columns of the row that the source left out: the previous row's value goes on to hold."""
    transaction: SourceTransaction | None = None

    @property
    def is_tombstone(self) -> bool:
        """Of a topic with source transactions: a delete that its source did not tell of."""
        return self.kind is RecordKind.DELETE and self.transaction is None

    @property
    def row(self) -> Row | None:
        return None if self.text is None else get_row(self.text)


class TransactionEnd(NamedTuple):
    """The end of a source transaction: how many records each collection has of it."""

    id: str
    counts: dict[str, int]


Record = tuple[bytes | None, bytes | None]
"""Key and value."""


class Decoder(Protocol):
    """Turns records into what they say about rows. Any thread may use it."""

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        """What each record says, whichever others stand beside it; a null value is a tombstone."""
        ...


def transaction_ids(records: Iterable[Decoded]) -> Iterator[str | None]:
    """The source transaction of each record; a tombstone has that of the delete before it."""
    name: str | None = None
    for one in records:
        if not one.is_tombstone:
            name = None if one.transaction is None else one.transaction.id
        yield name


def complete(decoded: Decoded, previous: bytes | None) -> bytes | None:
    """The row with what the source left out taken from the previous one, or without it."""
    row = decoded.row
    if row is None or not decoded.unavailable:
        return decoded.text
    held = {} if previous is None else get_row(previous)
    missing = decoded.unavailable
    return join_row(
        {
            name: held[name] if name in missing else text
            for name, text in row.items()
            if name not in missing or name in held
        }
    )
