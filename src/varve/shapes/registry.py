"""The registry of shapes: an SQLite database of handles and definitions, and the shapes in memory.

Layout     registry.sqlite in the data directory, write-ahead log. `shapes`: handle, comparable
           definition, where its snapshot ends in the topic (NULL until it is complete), time of
           creation; `facts`: the highest stamp that a handle has carried.
           docs/how-to/serve-shapes.md
Invariant  a handle is used once: stamps only increase, also after a restart or when the clock is
           set back. Handle and definition are both unique. If two rows parse to one definition, as
           after an upgrade, the older one stays.
Crash      a row is written before the shape's directory; one without a complete snapshot is removed
           at the next start, or lost with the power. Completed and removed rows are synced: the
           topic's table continues without a removed shape. A file that is not a database, or a
           damaged one, is moved aside and the registry starts empty.
Threads    any; the connection and the maps have a lock each.
"""

import heapq
import logging
import os
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, DiskFull, Unavailable
from varve.shapes.definition import Definition, parse_definition
from varve.shapes.offset import ShapeOffset, parse_offset
from varve.shapes.shape import Shape

logger = logging.getLogger(__name__)

FILE_NAME: Final = "registry.sqlite"
VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS shapes (
    handle TEXT PRIMARY KEY,
    comparable TEXT NOT NULL UNIQUE,
    start TEXT,
    created_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


class RegisteredShape(NamedTuple):
    """A shape whose snapshot is complete: it holds the topic up to and including `start`."""

    handle: str
    comparable: str
    start: ShapeOffset
    created_ms: int


class ShapeRegistry:
    """All shapes of one engine, by handle and by definition.

    `open` creates the database. The row of a shape is written before the shape is added to memory,
    and removed after the shape is hidden.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection  # guarded by _database_lock
        self._clock = clock
        self._database_lock = threading.Lock()
        self._unremoved: set[str] = set()  # guarded by _database_lock; removed with a later change
        self._lock = threading.Lock()
        self._by_handle: dict[str, Shape] = {}  # guarded by _lock
        self._by_definition: dict[str, Shape] = {}  # guarded by _lock

    @classmethod
    def open(cls, directory: str, clock: Clock) -> "ShapeRegistry":
        """Opens the database of a directory; one that cannot be read is moved aside."""
        path = f"{directory}/{FILE_NAME}"
        try:
            return cls(_connect(path), clock)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise _to_store_error(error, path) from error
            aside = f"{path}.unreadable-{clock.now_ms()}"
            logger.warning(
                "registry of shapes cannot be read and starts empty",
                extra={"path": path, "aside": aside, "reason": str(error)},
            )
            os.replace(path, aside)
            for suffix in ("-wal", "-shm"):
                if os.path.exists(path + suffix):
                    os.remove(path + suffix)
            return cls(_connect(path), clock)

    # Rows

    def new_handle(self, definition: Definition) -> str:
        """Adds a shape that has no snapshot yet; returns its new handle."""
        with self._database_lock, self._changing_locked() as connection:
            stamp = max(_stamp(connection) + 1, self._clock.now_ms() * 1000)
            handle = f"{definition.hash_number}-{stamp}"
            _delete(connection, self._unremoved)
            connection.execute(
                "INSERT INTO facts VALUES ('stamp', ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (stamp,),
            )
            # A shape of that definition that is being dropped may still have its row.
            connection.execute(
                "INSERT OR REPLACE INTO shapes VALUES (?, ?, NULL, ?)",
                (handle, definition.comparable, self._clock.now_ms()),
            )
            return handle

    def complete(self, starts: Mapping[str, ShapeOffset]) -> None:
        """Records the offset in the topic of each complete snapshot; synced once for all."""
        with self._database_lock, self._changing_locked(is_synced=True) as connection:
            connection.executemany(
                "UPDATE shapes SET start = ? WHERE handle = ?",
                [(str(start), handle) for handle, start in starts.items()],
            )

    def remove(self, handles: Collection[str]) -> None:
        """Removes shapes; durable on return. A removal that fails is part of the next change."""
        with self._database_lock:
            self._unremoved.update(handles)
            with self._changing_locked(is_synced=True) as connection:
                _delete(connection, self._unremoved)
            self._unremoved.clear()

    def remove_incomplete(self) -> list[str]:
        """Removes the shapes without a snapshot; returns their handles."""
        with self._database_lock, self._changing_locked() as connection:
            rows = connection.execute("DELETE FROM shapes WHERE start IS NULL RETURNING handle")
            return [handle for (handle,) in rows.fetchall()]

    def rows(self) -> list[RegisteredShape]:
        """All shapes with a snapshot, the oldest first."""
        with self._database_lock, _sqlite_errors():
            rows = self._connection.execute(
                "SELECT handle, comparable, start, created_ms FROM shapes "
                "WHERE start IS NOT NULL ORDER BY created_ms, handle"
            ).fetchall()
        return [
            RegisteredShape(handle, comparable, parse_offset(start), created_ms)
            for handle, comparable, start, created_ms in rows
        ]

    def handles(self, topic: str | None = None) -> set[str]:
        """The shapes of a topic, or of all; also those without a snapshot.

        A definition that cannot be read may be of any topic.
        """
        with self._database_lock, _sqlite_errors():
            rows = self._connection.execute("SELECT handle, comparable FROM shapes").fetchall()
        return {handle for handle, text in rows if topic is None or _may_be_of(topic, text)}

    def forget(self, topic: str) -> None:
        """Removes the shapes of a topic, and overwrites what was stored about removed shapes."""
        self.remove(self.handles(topic))
        with self._database_lock, _sqlite_errors():
            # Removed rows stay in free pages and in the journal otherwise.
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def load(self) -> list[tuple[RegisteredShape, Definition]]:
        """The shapes of earlier runs; removes rows that cannot be read, and duplicates."""
        loaded: dict[str, tuple[RegisteredShape, Definition]] = {}
        for row in self.rows():
            definition = _find_definition(row)
            if definition is None or definition.comparable in loaded:
                self.remove([row.handle])
            else:
                loaded[definition.comparable] = row, definition
        return list(loaded.values())

    def close(self) -> None:
        """Closes the database; shapes in memory can still be found."""
        with self._database_lock:
            self._connection.close()

    @contextmanager
    def _changing_locked(self, *, is_synced: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction; errors of SQLite become Unavailable or DiskFull."""
        connection = self._connection
        with _sqlite_errors():
            if connection.in_transaction:  # an earlier rollback failed as well
                connection.execute("ROLLBACK")
            # SQLite syncs a commit of a write-ahead log at FULL alone.
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    # Shapes in memory

    def __len__(self) -> int:
        return len(self._by_handle)

    def find(self, handle: str) -> Shape | None:
        return self._by_handle.get(handle)

    def find_by_definition(self, definition: Definition) -> Shape | None:
        return self._by_definition.get(definition.comparable)

    def shapes(self) -> list[Shape]:
        """All shapes, the oldest first."""
        with self._lock:
            return list(self._by_handle.values())

    def least_recently_read(self, now_ms: int, count_max: int) -> list[Shape]:
        """The shapes to evict first; empty if all of them are in use."""
        evictable = (shape for shape in self.shapes() if shape.is_evictable(now_ms))
        return heapq.nsmallest(count_max, evictable, key=lambda shape: shape.last_read)

    def add(self, shape: Shape) -> None:
        """Makes a shape available under its handle and its definition."""
        with self._lock:
            assert shape.definition.comparable not in self._by_definition, shape
            self._by_handle[shape.handle] = shape
            self._by_definition[shape.definition.comparable] = shape

    def hide(self, shapes: Iterable[Shape]) -> None:
        """Removes shapes from memory, so that they are no longer found; their rows stay."""
        with self._lock:
            for shape in shapes:
                if self._by_handle.pop(shape.handle, None) is not None:
                    del self._by_definition[shape.definition.comparable]


def _find_definition(row: RegisteredShape) -> Definition | None:
    try:
        return parse_definition(row.comparable)
    except Corrupt as error:
        logger.warning("shape is dropped", exc_info=error, extra={"handle": row.handle})
        return None


def _may_be_of(topic: str, comparable: str) -> bool:
    try:
        return parse_definition(comparable).topic == topic
    except Corrupt:
        return True


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _to_store_error(error, FILE_NAME) from error


def _stamp(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM facts WHERE name = 'stamp'").fetchone()
    return 0 if row is None else int(row[0])


def _delete(connection: sqlite3.Connection, handles: Collection[str]) -> None:
    connection.executemany("DELETE FROM shapes WHERE handle = ?", [(handle,) for handle in handles])


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        # Definitions hold values of rows in their filters: removed ones are overwritten.
        connection.execute("PRAGMA secure_delete = ON")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {version}, not {VERSION}")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        (damage,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if damage != "ok":
            raise sqlite3.DatabaseError(damage)
    except BaseException:
        connection.close()
        raise
    return connection


def _to_store_error(error: sqlite3.Error, path: str) -> Unavailable:
    # Errors that Python raises itself, such as for a closed connection, have no name.
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        return DiskFull(f"registry {path}: {error}; free some space")
    return Unavailable(f"registry {path}: {error}; repair the disk and start again")
