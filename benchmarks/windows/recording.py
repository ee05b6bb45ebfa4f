"""Databases that note what they are asked, so that the same can be asked of bare ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from benchmarks.windows.bare_store import BareStore
from varve.rocks.database import Database, Put, RocksDatabases

BATCH_COUNT = 1_000
"""Keys of a multi-get and of a write batch of the bare store, at most."""


class Call(Enum):
    """What a database was asked."""

    GET = "get"
    WRITE = "write"
    FLUSH = "flush"
    CLOSE = "close"


@dataclass(slots=True)
class Calls:
    """What was asked of all databases, in its order; segments are numbered by their start."""

    listed: list[tuple[Call, int, Any]] = field(default_factory=list)

    def add(self, call: Call, path: str, given: Any = None) -> None:
        self.listed.append((call, int(path.rpartition(".")[2]), given))

    def replay(self, store: BareStore) -> None:
        """Asks the same of bare databases."""
        for call, segment, given in self.listed:
            match call:
                case Call.GET:
                    database = store.get(segment)
                    for start in range(0, len(given), BATCH_COUNT):
                        database.get(given[start : start + BATCH_COUNT])
                case Call.WRITE:
                    for start in range(0, len(given), BATCH_COUNT):
                        store.write(segment, given[start : start + BATCH_COUNT])
                case Call.FLUSH:
                    store.get(segment).flush()
                case Call.CLOSE:
                    store.drop(segment)


class RecordingDatabase:
    """A database that goes on to another one."""

    def __init__(self, database: Database, path: str, calls: Calls) -> None:
        self._database = database
        self._path = path
        self._calls = calls

    def get(self, key: bytes) -> bytes | None:
        return self._database.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self._calls.add(Call.GET, self._path, keys)
        return self._database.get_many(keys)

    def write(self, puts: Sequence[Put]) -> None:
        self._calls.add(Call.WRITE, self._path, puts)
        self._database.write(puts)

    def scan(self, lower: bytes | None, upper: bytes | None, *, backward: bool) -> Any:
        return self._database.scan(lower, upper, backward=backward)

    def flush(self) -> None:
        self._calls.add(Call.FLUSH, self._path)
        self._database.flush()

    def size(self) -> int:
        return self._database.size()

    def close(self) -> None:
        self._calls.add(Call.CLOSE, self._path)
        self._database.close()


class RecordingDatabases:
    """The engine of such databases."""

    name = RocksDatabases.name

    def __init__(self) -> None:
        self.calls = Calls()
        self._databases = RocksDatabases()

    def open(self, path: str, *, must_exist: bool = False) -> RecordingDatabase:
        found = self._databases.open(path, must_exist=must_exist)
        return RecordingDatabase(found, path, self.calls)
