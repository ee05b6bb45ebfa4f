"""TableStore: the latest row of each key on disk, and the positions the topic was read up to.

Layout     RocksDB's own files. The key of a row has the row as a JSON object; `\\0state` has the
           state as JSON. docs/how-to/feed-shapes.md
Invariant  rows and state are written together: the rows are those of the positions.
Crash      batches are synced; a killed process keeps a prefix of whole batches. A table whose first
           load was interrupted has no state, and is loaded again. After a failed write RocksDB
           accepts no more, even if the disk has space again: the table must be opened again.
Threads    any; RocksDB has its own locks. Close it only when no thread reads. A synced write of
           rocksdict would block all threads during the sync; a separate sync of its log does not.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rocksdict import DBCompressionType, Rdict, RdictIter, WriteBatch

from varve.commit_log.settings import NO_ERASURE
from varve.foundation.errors import Closed, Corrupt, StoreError
from varve.rocks.database import MemoryBudget, make_write_options, open_failure, rocks_failure
from varve.shapes.feed.row import Row, split_rows
from varve.shapes.kernels.row_texts import are_rows
from varve.topics import HistoryMark

VERSION: Final = 1
_STATE_KEY: Final = b"\0state"
_ROWS_START: Final = b'"'
_ROWS_END: Final = b"#"
"""Every row's key begins with a quote."""
_MARKS_END: Final = b"$"
"""A mark of a second load has the key of its row, prefixed by `_ROWS_END`."""
_MEMORY_BYTES: Final = 64 << 20
"""Memory budget of a table that is opened without one."""
_SCAN_ROWS: Final = 1_000
_SCAN_BYTES: Final = 4 << 20
"""Rows that a scan reads at a time, and bytes of their keys and texts."""


class ResetKind(StrEnum):
    """What happened to the topic, by the names of the reasons to drop its shapes."""

    SOURCE_LOST = "source_lost"
    """It was created again, or lost records, or its table is new."""
    TRUNCATED = "truncated"
    """Its source deleted all rows."""
    SCHEMA_CHANGED = "schema_changed"
    """Its source has other columns."""


class Reset(NamedTuple):
    """A reset; `text` says what happened, and where."""

    kind: ResetKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of a table: it has the records before `positions`, numbered up to `next_tx`.

    `signature` identifies how records become rows; a table with another one, or of another
    `topic_id`, is loaded again. `reset` is why older shapes must be dropped, until they are.
    `ends_position` is the offset to resume at for the ends of source transactions.
    `uncertain_before` has, by partition, the offset before which records after the position are
    uncertain. `marks` are the last batches that were read, at the positions or after them: a log
    with other batches has lost its end. `erasure` is the last erasure of the topic before it was
    loaded.
    """

    positions: Mapping[int, int]
    next_tx: int
    signature: str
    topic_id: str
    caught_up_ms: int
    ends_position: int = 0
    reset: Reset | None = None
    uncertain_before: Mapping[int, int] = field(default_factory=dict)
    marks: Mapping[int, HistoryMark] = field(default_factory=dict)
    erasure: str = NO_ERASURE

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> "TableState | None":
        """The state; None for one of another version. Raises Corrupt for anything else."""
        try:
            document = json.loads(data)
            if document.pop("version") != VERSION:
                return None
            reset = document.pop("reset")
            marks = document.pop("marks")
            return cls(
                positions=_by_partition(document.pop("positions")),
                uncertain_before=_by_partition(document.pop("uncertain_before")),
                reset=None if reset is None else Reset(ResetKind(reset[0]), str(reset[1])),
                marks={int(number): HistoryMark.from_json(mark) for number, mark in marks.items()},
                **document,
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise Corrupt(f"{where}: the state of the table cannot be read: {error}") from error


def _by_partition(entries: Mapping[str, int]) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in entries.items()}


class TableStore:
    """One open table."""

    def __init__(self, path: str, budget: MemoryBudget | None = None) -> None:
        """Opens the directory, or creates it; raises Corrupt, Locked or Unavailable."""
        self.path = path
        self.damage: str | None = None
        """The damage that a read detected; the table must be loaded again."""
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._rocks: Rdict | None = _open(path, budget or MemoryBudget(_MEMORY_BYTES))
        self._has_failed = False
        self._set_logged(True)

    def read_state(self) -> TableState | None:
        """None for a table that was never loaded, or by another version."""
        data: bytes | None = self._get(_STATE_KEY)
        return None if data is None else TableState.decode(data, self.path)

    def get_rows(self, keys: list[str]) -> list[bytes | None]:
        """The row of each key as its text, None where there is none."""
        texts: list[bytes | None] = self._get([key.encode() for key in keys])
        self.check_rows(are_rows([text for text in texts if text is not None]))
        return texts

    def write(
        self, rows: Mapping[str, bytes | None], state: TableState, *, is_cleared: bool = False
    ) -> None:
        """Puts rows, removes those that are None, all with the state; on disk when it returns.

        With `is_cleared` all other rows are deleted.
        """
        batch = _batch_of(rows, is_cleared=is_cleared)
        batch.put(_STATE_KEY, state.encode())
        self._write(batch)
        with self.calling("sync", is_write=True) as rocks:
            rocks.flush_wal(True)

    # Loading: first the rows, then perhaps a second load that removes some, then the state

    def fill(self, parts: Iterable[Mapping[str, bytes | None]]) -> None:
        """Puts many rows into an empty table. An empty part removes all rows before it."""
        self._set_logged(False)
        for rows in parts:
            self._write(_batch_of(rows, is_cleared=not rows))

    def remove_missing(self, parts: Iterable[Mapping[str, bytes | None]]) -> int:
        """Removes the rows whose keys are not in a second load; returns the number removed.

        The keys of the second load are on disk meanwhile, because they may not fit into memory.
        """
        for rows in parts:
            marks = {_mark_of(key): None if row is None else b"" for key, row in rows.items()}
            self._write(_batch_of(marks, is_cleared=False, are_marks_cleared=not rows))
        removed = self._remove_unmarked()
        self._write(_batch_of({}, is_cleared=False, are_marks_cleared=True))
        return removed

    def _remove_unmarked(self) -> int:
        removed = 0
        with closing(self.scan()) as scan:
            for part in scan.parts():
                keys = [key for key, _ in part]
                marks = self._get([_mark_of(key).encode() for key in keys])
                unmarked = [key for key, mark in zip(keys, marks, strict=True) if mark is None]
                self._write(_batch_of(dict.fromkeys(unmarked), is_cleared=False))
                removed += len(unmarked)
        return removed

    def finish(self, state: TableState) -> None:
        """Writes the state of a load once all rows are on disk."""
        with self.calling("flush", is_write=True) as rocks:
            rocks.flush()
        self._set_logged(True)
        self.write({}, state)

    def scan(self) -> "TableScan":
        """The rows as they are now, whatever is written later."""
        with self.calling("scan") as rocks:
            return TableScan(self, rocks.iter())

    def close(self) -> None:
        """Closes the files. A failed write has raised before, and does not raise here again."""
        if self._rocks is not None:
            failing = suppress(StoreError) if self._has_failed else nullcontext()
            with failing, self.calling("close") as rocks:
                self._rocks = None
                rocks.close()

    def check_rows(self, are_all: bool) -> None:
        """Raises Corrupt unless all rows that were read are JSON objects."""
        if not are_all:
            self.damage = f"table {self.path} holds a row that is not a JSON object"
            raise Corrupt(self.damage)

    @contextmanager
    def calling(self, what: str, *, is_write: bool = False) -> Iterator[Rdict]:
        """Raises errors of RocksDB as StoreErrors; records damage and failed writes."""
        if self._rocks is None:
            raise Closed(f"table {self.path} is closed: open the feed again")
        try:
            yield self._rocks
        except StoreError:
            raise
        except Exception as error:
            failure = rocks_failure(error, f"{what} of {self.path}")
            self._has_failed = self._has_failed or is_write
            if isinstance(failure, Corrupt):
                self.damage = str(failure)
            raise failure from error

    def _get(self, keys: Any) -> Any:
        """A value, or a list of values for a list of keys."""
        with self.calling("read") as rocks:
            return rocks.get(keys)

    def _write(self, batch: WriteBatch) -> None:
        with self.calling("write", is_write=True) as rocks:
            rocks.write(batch)

    def _set_logged(self, is_logged: bool) -> None:
        """Whether writes go to RocksDB's write-ahead log."""
        with self.calling("options") as rocks:
            rocks.set_write_options(make_write_options(is_logged=is_logged))


class TableScan:
    """An iterator of RocksDB: it sees the table as it was when the scan started.

    RocksDB keeps its files, and the lock of the directory, until the iterator is deleted.
    """

    def __init__(self, store: TableStore, iterator: RdictIter) -> None:
        self._store = store
        self._iterator: RdictIter | None = iterator

    def parts(self) -> Iterator[list[tuple[str, Row]]]:
        """All rows by key, some at a time."""
        with self._store.calling("scan"):
            self._get().seek(_ROWS_START)
        while True:
            keys, texts = self._take()
            if not keys:
                return
            rows = split_rows(texts)
            part = [(key, row) for key, row in zip(keys, rows, strict=True) if row is not None]
            self._store.check_rows(len(part) == len(keys))
            yield part

    def _take(self) -> tuple[list[str], list[bytes]]:
        iterator = self._get()
        keys: list[str] = []
        texts: list[bytes] = []
        size = 0
        while len(keys) < _SCAN_ROWS and size < _SCAN_BYTES and iterator.valid():
            key = iterator.key()
            if key >= _ROWS_END:
                break
            keys.append(key.decode())
            texts.append(iterator.value())
            size += len(key) + len(texts[-1])
            iterator.next()
        is_at_end = not iterator.valid()
        # An exception keeps its frames alive, so none may refer to the iterator when one is raised.
        del iterator
        if is_at_end:
            with self._store.calling("scan"):
                self._get().status()
        return keys, texts

    def _get(self) -> RdictIter:
        if self._iterator is None:
            raise Closed(f"the scan of table {self._store.path} is closed: start another")
        return self._iterator

    def close(self) -> None:
        self._iterator = None


def remove_table(path: str) -> None:
    """Removes a table that is not open, if there is one."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def _mark_of(key: str) -> str:
    return _ROWS_END.decode() + key


def _batch_of(
    rows: Mapping[str, bytes | None], *, is_cleared: bool, are_marks_cleared: bool = False
) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    if is_cleared:
        batch.delete_range(_ROWS_START, _ROWS_END)
    for key, row in rows.items():
        if row is None:
            batch.delete(key.encode())
        else:
            batch.put(key.encode(), row)
    if are_marks_cleared:
        batch.delete_range(_ROWS_END, _MARKS_END)
    return batch


def _open(path: str, budget: MemoryBudget) -> Rdict:
    options = budget.make_options()
    options.set_compression_type(DBCompressionType.lz4())
    try:
        return Rdict(path, options)
    except Exception as error:
        raise open_failure(error, path) from error
