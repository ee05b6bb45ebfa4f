"""A window store: values by key and start of window, read by time, with a changelog of its writes.

Invariant  times are inclusive at both ends and mean starts of windows. Results of one key are in
           order of time; those of several are in order of segment, then of key bytes, then of time.
           A write is logged after it succeeded. All of the changelog before the checkpoint's offset
           is on disk, and in the segments.
Crash      writes since the last `commit` may be missing in the changelog, so the owner reads its
           input again from there. Without a changelog the store has the state of the last
           checkpoint or flush, and damage raises `Corrupt`.
Threads    one thread at a time.
"""

import contextlib
from typing import Final, Self

from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.closing import Closing
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
"""Writes that are appended to the changelog together."""
_NO_CHANGELOG_OFFSET: Final = 0
"""The offset in checkpoints of a store without a changelog."""


class WindowStore(Closing):
    """Values by key and time; they expire when stream time has advanced by the retention."""

    def __init__(
        self,
        store: SegmentedStore,
        changelog: Changelog | None = None,
        *,
        on_progress: OnProgress | None = None,
        pending_count_max: int = _PENDING_COUNT_MAX,
    ) -> None:
        self.restored = RestoreProgress()
        """The restore of the last opening."""
        self._store = store
        self._changelog = changelog
        self._on_progress = on_progress
        self._pending_count_max = pending_count_max
        self._pending: list[LoggedWrite] = []
        self._sequence = 0

    def open(self) -> Self:
        """Open the store; with a changelog, restore it to the changelog's end."""
        if self._changelog is None:
            self._store.open()
        else:
            self._pending = []
            self.restored = open_restored(self._store, self._changelog, self._on_progress)
        return self

    def rebuild(self, reason: StoreError) -> None:
        """Wipe an open store and restore it from the start, after a read found it damaged.

        Raises the reason if the store has no changelog.
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
        """The greatest time of any entry; -1 before the first."""
        return self._store.stream_time_ms

    @property
    def expired_count(self) -> int:
        """Puts that were skipped because they had expired."""
        return self._store.expired_puts.count

    @property
    def dead_on_arrival_count(self) -> int:
        """Puts that were written but were too old to be visible."""
        return self._store.dead_on_arrival_count

    @property
    def removal_failure_count(self) -> int:
        """Expired segments whose directories could not be removed; the next opening tries again."""
        return self._store.segments.removal_failure_count

    # Writes

    def put(self, key: bytes, value: bytes | None, time_ms: int) -> bool:
        """Stores a value; None deletes. Returns whether it was written: False when it is expired.

        The last value of a key and time wins, unless the store retains duplicates: then all values
        stay, and a deletion does nothing, because it cannot name one of them.
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
        changelog = self._changelog
        if changelog is None:
            return self._store.put(encoded, value, time_ms)
        self._check_size(changelog, len(encoded) + len(value or b""))
        was_written = self._store.put(encoded, value, time_ms)
        if was_written:
            self._log(changelog, LoggedWrite(encoded, value, time_ms))
        return was_written

    def remove(self, key: bytes, time_ms: int) -> bool:
        """Delete one entry; unlike a put of None it neither creates nor drops a segment."""
        check_key(key, self._store.name)
        encoded = self._encode(key, time_ms)
        was_written = self._store.remove(encoded, time_ms)
        if was_written and self._changelog is not None:
            self._log(self._changelog, LoggedWrite(encoded, None, time_ms))
        return was_written

    def maintain(self, stream_time_ms: int) -> int:
        """Drops segments expired by the task's stream time, for idle inputs; returns how many."""
        return self._store.maintain(stream_time_ms)

    def commit(self) -> int:
        """Append all writes to the changelog and sync it; returns its end offset.

        Afterwards the input may be committed: a restore yields every put.
        """
        if self._changelog is None:
            return _NO_CHANGELOG_OFFSET
        self._append_pending(self._changelog)
        self._changelog.flush()
        return self._changelog.end_offset

    def flush(self) -> None:
        """Sync every put to the disk, in the changelog and in the segments."""
        self.commit()
        self._store.flush()

    def checkpoint(self) -> Checkpoint:
        """Flush and record the changelog offset: the next opening restores from there."""
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

    def _check_size(self, changelog: Changelog, size: int) -> None:
        if size > changelog.write_bytes_max:
            raise RecordTooLarge(
                f"store {self._store.name}: an entry of {size} bytes is too large for the "
                f"changelog, which takes {changelog.write_bytes_max}: raise "
                "max.message.bytes of its topic"
            )

    def _log(self, changelog: Changelog, write: LoggedWrite) -> None:
        self._pending.append(write)
        if len(self._pending) >= self._pending_count_max:
            self._append_pending(changelog)

    def _append_pending(self, changelog: Changelog) -> None:
        if self._pending:
            changelog.append(self._pending)
            self._pending = []

    # Reads

    def get(self, key: bytes, time_ms: int) -> bytes | None:
        """The value of a key and time; None if it is missing or expired."""
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
        """The entries of keys `first` to `last`; None leaves a side unbounded."""
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
    """Opens the store of a directory, created if absent, and restores it from its changelog.

    Stores opened with the same `databases` share one memory budget. Without a changelog a damaged
    directory raises `Corrupt`.
    """
    store = SegmentedStore(
        settings,
        directory=directory,
        databases=databases or RocksDatabases(),
        file_system=file_system or RealFileSystem(),
        clock=clock or SystemClock(),
    )
    return WindowStore(store, changelog, on_progress=on_progress).open()
