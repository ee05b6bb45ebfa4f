"""Fills a new table with the latest state of its topic.

Invariant  the last record of a key wins, as the state gives them; a record that says nothing about
           a row changes nothing. A row that was deleted does not stay because the log let go of
           the deletion while the table was filled: see `check`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from varve.shapes.feed.counts import FeedCounts
from varve.shapes.feed.decoder import Decoded, Decoder, Record, RecordKind, complete
from varve.shapes.feed.row_key import RowKeys
from varve.shapes.feed.state import StateReader
from varve.shapes.feed.table_store import TableStore


@dataclass(frozen=True, slots=True)
class FillProgress:
    """How far a filling is; `total` is None where nobody knows it."""

    how: str
    done: int
    total: int | None


Progress = Callable[[FillProgress], None]
"""Is told of a filling on its way, and may raise to stop it."""


class Filling:
    """One filling of an empty table."""

    def __init__(
        self, store: TableStore, decoder: Decoder, counts: FeedCounts, *, prefix: str
    ) -> None:
        self._store = store
        self._decoder = decoder
        self._counts = counts
        self._keys = RowKeys(prefix)
        self._deleted_key: str | None = None
        self._deleted: bytes | None = None

    def run(self, reader: StateReader, progress: Progress) -> None:
        """Reads the state into the table."""
        self._store.fill(self._parts(reader, progress))

    def check(self, reader: StateReader, progress: Progress) -> int:
        """Reads the state again, later, and removes the rows that are not in it; how many.

        A log lets go of a row before it lets go of the deletion. So of a row that is still there
        the deletion, if any, was there for as long as the table was filled, and was read. One that
        is there no more was deleted, or written again behind the end, where the feed reads on.
        """
        return self._store.keep(self._parts(reader, progress))

    def _parts(self, reader: StateReader, progress: Progress) -> Iterator[dict[str, bytes | None]]:
        done = 0
        for records in reader.read():
            yield from self._rows_of(records)
            done += len(records)
            progress(FillProgress(reader.how, done, reader.record_count))

    def _rows_of(self, records: Sequence[Record]) -> Iterator[dict[str, bytes | None]]:
        """The rows by key; an empty part where a truncation takes back all before it."""
        rows: dict[str, bytes | None] = {}
        told = self._decoder.decode_many(records)
        for number, decoded in enumerate(told):
            kind = decoded.kind
            if kind <= RecordKind.DELETE:
                key = self._keys.get(decoded.key).text
                if kind is RecordKind.DELETE and _may_move(told, number):
                    self._note_deletion(key, rows)
                rows[key] = self._complete(decoded, key, rows)
            elif kind is RecordKind.TRUNCATE:
                rows = {}
                yield {}
            elif kind is RecordKind.SKIPPED:
                self._counts.skipped += 1
        if rows:
            yield rows

    def _note_deletion(self, key: str, rows: dict[str, bytes | None]) -> None:
        """Keeps a row that is about to go; a tombstone follows on the delete of its key."""
        if key != self._deleted_key:
            self._deleted_key, self._deleted = key, self._find(key, rows)

    def _complete(self, decoded: Decoded, key: str, rows: dict[str, bytes | None]) -> bytes | None:
        if decoded.kind is RecordKind.DELETE:
            return None
        deleted, self._deleted_key, self._deleted = self._deleted, None, None
        if not decoded.unavailable:
            return decoded.text
        previous = self._find(key, rows)
        if previous is None and decoded.kind is RecordKind.MOVE:
            previous = deleted
        return complete(decoded, previous)

    def _find(self, key: str, rows: dict[str, bytes | None]) -> bytes | None:
        return rows[key] if key in rows else self._store.get_rows([key])[0]


def _may_move(told: Sequence[Decoded], number: int) -> bool:
    """Whether a delete, or its tombstone, may stand before the row under another key."""
    behind = told[number + 1 : number + 3]
    return len(behind) < 2 or any(one.kind is RecordKind.MOVE for one in behind)
