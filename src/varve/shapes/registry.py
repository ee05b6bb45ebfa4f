"""Which shapes there are: a small database of handles and definitions.

Layout     registry.sqlite in the data directory, write-ahead log. `shapes`: handle, comparable
           definition, where its snapshot ends in the topic (NULL until it is complete), time of
           creation; `facts`: the highest stamp that a handle has carried. docs/shapes.md
Invariant  a handle is given once: stamps only rise, also over a restart and a clock set back.
           Handle and definition are both unique.
Crash      a row is there before its directory; without a snapshot it goes at the next start, or
           with the power. Whoever has a complete one is there for good, and what was removed is
           gone so: the topic's table goes on without that shape. A file that is no database, or a
           damaged one, is moved aside and the registry begins empty.
Threads    any; `_lock` guards the connection.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from varve.foundation.clock import Clock
from varve.foundation.errors import DiskFull, Unavailable
from varve.shapes.definition import Definition
from varve.shapes.offset import Offset, parse_offset

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
    """A shape whose snapshot is complete: it holds the topic up to and with `start`."""

    handle: str
    comparable: str
    start: Offset
    created_ms: int


class Registry:
    """The open database; `open` makes one."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection  # guarded by _lock
        self._clock = clock
        self._lock = threading.Lock()
        self._owed: set[str] = set()  # guarded by _lock; to be removed with the next change

    @classmethod
    def open(cls, directory: str, clock: Clock) -> "Registry":
        """Opens the registry of a directory; one that cannot be read is moved aside."""
        path = f"{directory}/{FILE_NAME}"
        try:
            return cls(_connect(path), clock)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise _failure(error, path) from error
            aside = f"{path}.unreadable-{clock.now_ms()}"
            logger.warning(
                "registry of shapes cannot be read, begins empty",
                extra={"path": path, "aside": aside, "reason": str(error)},
            )
            os.replace(path, aside)
            for suffix in ("-wal", "-shm"):
                if os.path.exists(path + suffix):
                    os.remove(path + suffix)
            return cls(_connect(path), clock)

    def add(self, definition: Definition) -> str:
        """Enters a shape that has no snapshot yet, under a new handle."""
        with self._lock, self._changing_locked() as connection:
            stamp = max(_stamp(connection) + 1, self._clock.now_ms() * 1000)
            handle = f"{definition.hash_number}-{stamp}"
            _delete(connection, self._owed)
            connection.execute(
                "INSERT INTO facts VALUES ('stamp', ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (stamp,),
            )
            # A shape of that definition that is being dropped may have its row still.
            connection.execute(
                "INSERT OR REPLACE INTO shapes VALUES (?, ?, NULL, ?)",
                (handle, definition.comparable, self._clock.now_ms()),
            )
            return handle

    def complete(self, starts: Mapping[str, Offset]) -> None:
        """Notes of each handle where in the topic its snapshot stands, which is complete.

        Durable on return, with one sync for all.
        """
        with self._lock, self._changing_locked(is_synced=True) as connection:
            connection.executemany(
                "UPDATE shapes SET start = ? WHERE handle = ?",
                [(str(start), handle) for handle, start in starts.items()],
            )

    def remove(self, handles: Collection[str]) -> None:
        """Forgets shapes; durable on return. What fails is made up for by the next change."""
        with self._lock:
            self._owed.update(handles)
            with self._changing_locked(is_synced=True) as connection:
                _delete(connection, self._owed)
            self._owed.clear()

    def remove_incomplete(self) -> list[str]:
        """Forgets the shapes without a snapshot, and gives their handles."""
        with self._lock, self._changing_locked() as connection:
            rows = connection.execute("DELETE FROM shapes WHERE start IS NULL RETURNING handle")
            return [handle for (handle,) in rows.fetchall()]

    def shapes(self) -> list[RegisteredShape]:
        """All shapes with a snapshot, the oldest first."""
        with self._lock, _failing():
            rows = self._connection.execute(
                "SELECT handle, comparable, start, created_ms FROM shapes "
                "WHERE start IS NOT NULL ORDER BY created_ms, handle"
            ).fetchall()
        return [
            RegisteredShape(handle, comparable, parse_offset(start), created_ms)
            for handle, comparable, start, created_ms in rows
        ]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _changing_locked(self, *, is_synced: bool = False) -> Iterator[sqlite3.Connection]:
        """One change of the registry; what SQLite says becomes an error of ours."""
        connection = self._connection
        with _failing():
            if connection.in_transaction:  # a rollback failed as well
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


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _failure(error, FILE_NAME) from error


def _stamp(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM facts WHERE name = 'stamp'").fetchone()
    return 0 if row is None else int(row[0])


def _delete(connection: sqlite3.Connection, handles: Collection[str]) -> None:
    connection.executemany("DELETE FROM shapes WHERE handle = ?", [(one,) for one in handles])


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {version}, not {VERSION}")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
    except BaseException:
        connection.close()
        raise
    return connection


def _failure(error: sqlite3.Error, path: str) -> Unavailable:
    # What Python finds itself, such as a connection that is closed, has no name.
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        return DiskFull(f"registry {path}: {error}; free some space")
    return Unavailable(f"registry {path}: {error}; mend the disk and start again")
