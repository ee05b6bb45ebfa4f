"""What a segment asks of its database: ordered bytes to bytes, written in batches.

Invariant  keys order by unsigned bytes; a scan shows the state of its first step, whatever is
           written meanwhile.
Crash      after a crash a database holds all that was flushed, and of later batches a prefix.
Threads    one thread at a time per database; databases of one engine are independent.
Errors     `Closed` after close, `Corrupt` for bytes that break their format, `DiskFull` and
           `Unavailable` where the disk refuses.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

Entry = tuple[bytes, bytes]
Put = tuple[bytes, bytes | None]
"""A key and its value; None deletes. Both are plain tuples, as they are made per entry."""


class Scan(Iterator[Entry], Protocol):
    """Entries between two bounds; ends early, without an error, when its database is closed."""

    @property
    def is_begun(self) -> bool:
        """Whether it has made a step and has not ended."""

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
        """Flush, end all scans and let go of the directory; closing twice is harmless.

        Scans that were begun and neither ended nor closed are warned of.
        """


class Databases(Protocol):
    """An engine: opens databases and shares memory among them."""

    name: str
    """Which engine it is, as noted in the store's meta file."""

    def open(self, path: str, *, must_exist: bool = False) -> Database:
        """The database in this directory, made if absent unless it must exist.

        Raises `Corrupt` when it cannot be read, `Locked` when someone has it open.
        """


def end_scans(scans: Iterable[Scan], path: str) -> None:
    """Close all scans of a database that is being closed, and warn of those in use."""
    held = list(scans)
    begun_count = sum(scan.is_begun for scan in held)
    if begun_count:
        logger.warning("scans were left open", extra={"path": path, "count": begun_count})
    for scan in held:
        scan.close()
