"""A window store: values by key and start of window, read by time, with a changelog of its writes.

Invariant  times are inclusive at both ends and mean starts of windows. Results of one key are in
           order of time; those of several are in order of segment, then of key bytes, then of time.
           Only what was written is logged, and after it was written. The checkpoint has an offset
           up to which the changelog is on disk and in the segments.
Crash      what was written since the last `commit` may be missing in the changelog, so the input
           is read again from there. Without a changelog it has what the last checkpoint or flush
           synced, and damage raises `Corrupt`.
Threads    one thread at a time.
"""

import contextlib
from typing import Final, Self

from varve.disk import FileSystem, RealFileSystem
from varve.disk.file_system import Closing
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, RecordTooLarge, StoreError
from varve.rocks.database import Databases, RocksDatabases
from varve.rocks.state_files import Checkpoint
from varve.windows.changelog import Changelog, LoggedWrite
from varve.windows.restore import OnProgress, RestoreProgress, open_restored, rebuild
from varve.windows.segmented_store import SegmentedStore, WindowIterator, check_key
from varve.windows.settings import WindowSettings
from varve.windows.window_key import (
    SEQUENCE_MAX,
    TIME_MAX_MS,
    check_time,
    encode_window_key,
)

_BEGIN_MS: Final = 0
_PENDING_COUNT_MAX: Final = 1_000
_NO_CHANGELOG_OFFSET: Final = 0


class WindowStore(Closing):
    """Values by key and time, removed when stream time has advanced by the retention."""

    def __init__(
        self,
        store: SegmentedStore,
        changelog: Changelog | None = None,
        *,
        on_progress: OnProgress | None = None,
        pending_count_max: int = _PENDING_COUNT_MAX,
    ) -> None:
        self.restored = RestoreProgress()
        """What the last opening took from the changelog."""
        self._store = store
        self._changelog = changelog
        self._on_progress = on_progress
        self._pending_count_max = pending_count_max
        self._pending: list[LoggedWrite] = []
        self._sequence = 0

    def open(self) -> Self:
        """Open what is there, restoring it where there is a changelog."""
        if self._changelog is None:
            self._store.open()
        else:
            self._pending = []
            self.restored = open_restored(self._store, self._changelog, self._on_progress)
        return self

    def rebuild(self, reason: StoreError) -> None:
        """Wipe an open store and restore it from the start: for damage that a read found.

        Raises the reason where there is no changelog.
        """
        if self._changelog is None:
            raise reason
        self._append_pending(self._changelog)
        self.restored = rebuild(self._store, self._changelog, reason, self._on_progress)

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
        """Stores a value; None deletes. Returns whether it was written: False when it is expired.

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
        encoded = self._encode(key, time_ms)
        self._check_size(len(encoded) + len(value or b""))
        was_written = self._store.put(encoded, value, time_ms)
        if was_written:
            self._log(LoggedWrite(encoded, value, time_ms))
        return was_written

    def remove(self, key: bytes, time_ms: int) -> bool:
        """Delete one entry; unlike a put of None it makes and drops no segment."""
        check_key(key, self._store.name)
        encoded = self._encode(key, time_ms)
        was_written = self._store.remove(encoded, time_ms)
        if was_written:
            self._log(LoggedWrite(encoded, None, time_ms))
        return was_written

    def maintain(self, stream_time_ms: int) -> int:
        """Drops what is expired by the task's stream time, for idle inputs; returns how many."""
        return self._store.maintain(stream_time_ms)

    def commit(self) -> int:
        """Bring all writes to the changelog, and the changelog to the disk; returns its end.

        After this the input may be committed: a restore gives all that was put.
        """
        if self._changelog is None:
            return _NO_CHANGELOG_OFFSET
        self._append_pending(self._changelog)
        self._changelog.flush()
        return self._changelog.end_offset

    def flush(self) -> None:
        """Everything put is on disk after this."""
        self.commit()
        self._store.flush()

    def checkpoint(self) -> Checkpoint:
        """Flush, and note how far: the next opening restores only what came later."""
        return self._store.checkpoint(self.commit())

    def close(self) -> None:
        """Checkpoint and close; the changelog stays open. Closing twice is harmless."""
        if not self._store.segments.is_open:
            return
        try:
            self.checkpoint()
        except BaseException:
            with contextlib.suppress(StoreError):
                self._store.close()
            raise
        self._store.close()

    def _check_size(self, size: int) -> None:
        if self._changelog is not None and size > self._changelog.write_bytes_max:
            raise RecordTooLarge(
                f"store {self._store.name}: an entry of {size} bytes is too large for the "
                f"changelog, which takes {self._changelog.write_bytes_max}: raise "
                "max.message.bytes of its topic"
            )

    def _log(self, write: LoggedWrite) -> None:
        if self._changelog is None:
            return
        self._pending.append(write)
        if len(self._pending) >= self._pending_count_max:
            self._append_pending(self._changelog)

    def _append_pending(self, changelog: Changelog) -> None:
        if self._pending:
            changelog.append(self._pending)
            self._pending = []

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
    on_progress: OnProgress | None = None,
) -> WindowStore:
    """The store in a directory of its own, created if absent, and restored from its changelog.

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
    return WindowStore(store, changelog, on_progress=on_progress).open()
