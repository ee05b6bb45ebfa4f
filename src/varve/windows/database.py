"""What a segment asks of its database: ordered bytes to bytes, written in batches.

Invariant  keys order by unsigned bytes; a scan shows the state of its first step, whatever is
           written meanwhile.
Crash      after a crash a database holds all that was flushed, and of later batches a prefix.
Threads    one thread at a time per database; databases of one engine are independent.
Errors     `Closed` after close, `Corrupt` for bytes that break their format, `DiskFull` and
           `Unavailable` where the disk refuses.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

Entry = tuple[bytes, bytes]
Put = tuple[bytes, bytes | None]
"""A key and its value; None deletes. Both are plain tuples, as they are made per entry."""


class Scan(Iterator[Entry], Protocol):
    """Entries between two bounds; ends early, without an error, when its database is closed."""

    def close(self) -> None:
        """Give back what it holds open; closing twice is harmless."""


class Database(Protocol):
    """The entries of one segment."""

    def get(self, key: bytes) -> bytes | None:
        """None when there is no such key."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """One answer per key, in their order."""

    def write(self, puts: Sequence[Put]) -> None:
        """All or nothing, also after a crash; of two puts of one key the later wins."""

    def scan(self, lower: bytes | None, upper: bytes | None, *, backward: bool) -> Scan:
        """Entries from `lower` to `upper`, both inclusive, None meaning no bound."""

    def flush(self) -> None:
        """On disk after this."""

    def size(self) -> int:
        """Bytes on disk, about."""

    def close(self) -> None:
        """Flush, end all scans and let go of the directory; closing twice is harmless."""


class Databases(Protocol):
    """An engine: opens databases and shares memory among them."""

    name: str
    """Which engine it is, as noted in the store's meta file."""

    def open(self, path: str, *, must_exist: bool = False) -> Database:
        """The database in this directory, made if absent unless it must exist.

        Raises `Corrupt` when it cannot be read, `Locked` when someone has it open.
        """
