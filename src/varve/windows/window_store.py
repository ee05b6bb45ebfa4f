"""A window store: values by key and start of window, read by time.

Invariant  times are inclusive at both ends and mean starts of windows. Results of one key are in
           order of time; those of several are in order of segment, then of key bytes, then of time.
Threads    one thread at a time.
"""

from collections.abc import Callable
from typing import Final, Self

from varve.disk import FileSystem, RealFileSystem
from varve.disk.file_system import Closing
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest
from varve.rocks.database import Databases, RocksDatabases
from varve.windows.changelog import Changelog
from varve.windows.logged_store import LoggedStore, RestoreProgress
from varve.windows.segmented_store import SegmentedStore, check_key
from varve.windows.settings import WindowSettings
from varve.windows.window_iterator import WindowIterator
from varve.windows.window_key import (
    SEQUENCE_MAX,
    TIME_MAX_MS,
    check_time,
    encode_window_key,
)

_BEGIN_MS: Final = 0


class WindowStore(Closing):
    """Values by key and time, removed when stream time has advanced by the retention."""

    def __init__(self, writes: LoggedStore) -> None:
        self._writes = writes
        self._store = writes.store
        self._sequence = 0

    def open(self) -> Self:
        """Open what is there, restoring it where there is a changelog."""
        self._writes.open()
        return self

    @property
    def settings(self) -> WindowSettings:
        return self._store.settings

    @property
    def stream_time_ms(self) -> int:
        """The greatest time the store has seen; -1 before the first."""
        return self._store.stream_time_ms

    @property
    def expired_count(self) -> int:
        """Puts that were skipped because they came too late."""
        return self._store.expired_puts.count

    @property
    def dead_on_arrival_count(self) -> int:
        """Puts that were kept and could not be seen any more."""
        return self._store.dead_on_arrival_count

    @property
    def removal_failure_count(self) -> int:
        """Expired segments whose directories could not be removed; the next opening tries again."""
        return self._store.segments.removal_failure_count

    # Writes

    def put(self, key: bytes, value: bytes | None, time_ms: int) -> bool:
        """Keep a value; None deletes. Tells whether it was written: False when it is expired.

        Of one key and time the last value stays, unless the store retains duplicates: then all
        stay, and a deletion does nothing, as it could not say which.
        """
        check_key(key, self._store.name)
        if not (value is None or isinstance(value, bytes)):
            raise InvalidRequest(
                f"store {self._store.name}: a value of type {type(value).__name__}; give bytes, "
                "or None to delete"
            )
        if self.settings.retain_duplicates:
            if value is None:
                return False
            self._sequence = (self._sequence + 1) & SEQUENCE_MAX
        return self._writes.put(self._encode(key, time_ms), value, time_ms)

    def remove(self, key: bytes, time_ms: int) -> bool:
        """Delete one entry; unlike a put of None it makes and drops no segment."""
        check_key(key, self._store.name)
        return self._writes.remove(self._encode(key, time_ms), time_ms)

    def maintain(self, stream_time_ms: int) -> int:
        """Drop what is expired by the task's stream time, for inputs that rest; tells how many."""
        return self._store.maintain(stream_time_ms)

    def flush(self) -> None:
        """Everything put is on disk after this."""
        self._writes.flush()

    def checkpoint(self) -> None:
        """Flush, and note how far: the next opening restores only what came later."""
        self._writes.checkpoint()

    def close(self) -> None:
        """Checkpoint and close; closing twice is harmless."""
        self._writes.close()

    # Reads

    def get(self, key: bytes, time_ms: int) -> bytes | None:
        """The value of a key and time; None when it is not there or expired."""
        check_key(key, self._store.name)
        return self._store.get(self._encode(key, time_ms), time_ms)

    def fetch(self, key: bytes, from_ms: int, to_ms: int) -> WindowIterator:
        """The entries of a key, by time."""
        return self._fetch(key, from_ms, to_ms, backward=False)

    def backward_fetch(self, key: bytes, from_ms: int, to_ms: int) -> WindowIterator:
        return self._fetch(key, from_ms, to_ms, backward=True)

    def fetch_range(
        self, first: bytes | None, last: bytes | None, from_ms: int, to_ms: int
    ) -> WindowIterator:
        """The entries of keys `first` to `last`; None leaves a side open."""
        return self._store.scan(first, last, from_ms=from_ms, to_ms=to_ms, backward=False)

    def backward_fetch_range(
        self, first: bytes | None, last: bytes | None, from_ms: int, to_ms: int
    ) -> WindowIterator:
        return self._store.scan(first, last, from_ms=from_ms, to_ms=to_ms, backward=True)

    def fetch_all(self, from_ms: int, to_ms: int) -> WindowIterator:
        """The entries of all keys."""
        return self._store.scan(None, None, from_ms=from_ms, to_ms=to_ms, backward=False)

    def backward_fetch_all(self, from_ms: int, to_ms: int) -> WindowIterator:
        return self._store.scan(None, None, from_ms=from_ms, to_ms=to_ms, backward=True)

    def all(self) -> WindowIterator:
        """Every entry that is not expired."""
        return self.fetch_all(_BEGIN_MS, TIME_MAX_MS)

    def backward_all(self) -> WindowIterator:
        return self.backward_fetch_all(_BEGIN_MS, TIME_MAX_MS)

    def _fetch(self, key: bytes, from_ms: int, to_ms: int, *, backward: bool) -> WindowIterator:
        check_key(key, self._store.name)
        return self._store.scan(key, key, from_ms=from_ms, to_ms=to_ms, backward=backward)

    def _encode(self, key: bytes, time_ms: int) -> bytes:
        check_time(time_ms)
        return encode_window_key(key, time_ms, self._sequence)


def open_window_store(
    settings: WindowSettings,
    *,
    directory: str,
    changelog: Changelog | None = None,
    databases: Databases | None = None,
    file_system: FileSystem | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[RestoreProgress], None] | None = None,
) -> WindowStore:
    """The store in a directory of its own, made if absent, and restored from its changelog.

    Stores that are open together share memory when they are given the same `databases`. Without
    a changelog a damaged directory raises `Corrupt`.
    """
    store = SegmentedStore(
        settings,
        directory=directory,
        databases=databases or RocksDatabases(),
        file_system=file_system or RealFileSystem(),
        clock=clock or SystemClock(),
    )
    return WindowStore(LoggedStore(store, changelog, on_progress=on_progress)).open()
