"""One shape: its definition, its state, and its storage, which is opened when first needed.

Invariant  a shape that has subscribers, or was just created for a client, is not evicted. `latest`
           never decreases, also after the shape was dropped. A shape gets changes above `start`
           only; all up to `start` is in the snapshot.
Crash      a shape without a complete snapshot is dropped at the next start.
Threads    any; `_lock` guards opening, closing and dropping. Readers and writers read the storage
           field once; the storage has locks of its own. A shape is dropped outside the lock.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import Closed, Corrupt, NotFound, StoreError, Unavailable
from varve.shapes.definition import Definition
from varve.shapes.offset import BEFORE_ALL, SNAPSHOT_END, ShapeOffset
from varve.shapes.storage.log_writer import ShapeEntry
from varve.shapes.storage.shape_storage import ChunkEnd, ShapeStorage, flush_storages

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine
    from varve.shapes.topic import ShapeTopic

logger = logging.getLogger(__name__)

UNREAD_MS: Final = 60_000
"""How long a new shape is kept until the client that requested it reads it."""
BETWEEN_POLLS_MS: Final = 5_000
"""How long a shape is kept after a poll, for the next poll of the same client."""


class DropReason(StrEnum):
    """Why a shape was dropped; its clients refetch."""

    DELETED = "deleted"
    TRUNCATED = "truncated"
    SCHEMA_CHANGED = "schema_changed"
    SOURCE_LOST = "source_lost"
    SNAPSHOT_FAILED = "snapshot_failed"
    STORAGE_FAILED = "storage_failed"
    EVICTED = "evicted"
    OUTGROWN = "outgrown"


class Shape:
    """A shape in use. Created by the engine only."""

    def __init__(
        self,
        engine: "ShapeEngine",
        topic: "ShapeTopic",
        handle: str,
        definition: Definition,
        *,
        created_ms: int,
        start: ShapeOffset | None,
    ) -> None:
        """`start` is None for a new shape, which has no snapshot yet."""
        self._engine = engine
        self.topic = topic
        self.handle = handle
        self.definition = definition
        self.encoder = topic.encoder(definition)
        self.created_ms = created_ms
        self.start = BEFORE_ALL if start is None else start
        """The snapshot holds the topic up to here."""
        self.last_read = next(engine.read_numbers) if start is None else 0
        """The number of its latest read, or of its creation; 0 if both were in an earlier run."""
        self.drop_reason: DropReason | None = None
        self.is_snapshot_started = start is not None
        """Whether readers may start."""
        self.is_snapshot_complete = start is not None
        """Whether the snapshot is durable, and in the registry."""
        self.failure: StoreError | None = None
        """Why the snapshot failed; None while it may succeed."""
        self._storage: ShapeStorage | None = None  # guarded by _lock
        self._is_closed = False  # guarded by _lock
        self._is_unread = start is None
        self._users = 0  # guarded by _lock
        self._last_poll_ms = -BETWEEN_POLLS_MS
        self._latest = SNAPSHOT_END
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Shape {self.handle} of {self.definition.topic}>"

    @property
    def is_dropped(self) -> bool:
        return self.drop_reason is not None

    def find_storage(self) -> ShapeStorage | None:
        """The storage if it is open."""
        return self._storage

    @property
    def is_open(self) -> bool:
        """Whether the storage is open, so that its offsets are known without opening a file."""
        return self._storage is not None

    @property
    def latest(self) -> ShapeOffset:
        """The last offset that readers may see, `0_inf` before the log has any; opens the files."""
        storage = self._storage
        if storage is None and not self.is_dropped and self.is_snapshot_started:
            storage = self.open()
        if storage is not None:
            latest = storage.latest
            if not latest.is_virtual and latest > self._latest:
                self._latest = latest
        return self._latest

    @property
    def compacted_to(self) -> ShapeOffset:
        """Where the compacted part of the log ends; its rows are as of that offset."""
        storage = self._storage
        return BEFORE_ALL if storage is None else storage.manifest.boundary

    def chunk_end(self, offset: ShapeOffset) -> ShapeOffset | None:
        """Where the chunk after an offset ends; None if it is open or there is none."""
        with self._reading():
            return self.open().chunk_end(offset)

    def find_cached_chunk_end(self, offset: ShapeOffset) -> ChunkEnd | None:
        """As `chunk_end` without reading a file; None if that takes a file, or it is not open."""
        storage = self._storage
        return None if storage is None else storage.find_cached_chunk_end(offset)

    def read(self, start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        """The messages in (start, end], in pieces joined by commas; raises NotFound if dropped."""
        self.last_read = next(self._engine.read_numbers)
        self._is_unread = False
        with self._reading():
            return self._checked(self.open().read(start, end))

    @contextmanager
    def pin(self) -> Iterator[None]:
        """Keeps the shape from being evicted while a request uses it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    @contextmanager
    def subscribe(self) -> Iterator[None]:
        """Entered while a client waits for new entries of the shape; pins it."""
        with self.pin():
            try:
                yield
            finally:
                # A client that waited for the first rows has yet to read them.
                if not self._is_unread:
                    self._last_poll_ms = self._engine.clock.now_ms()
                self.last_read = next(self._engine.read_numbers)

    def is_evictable(self, now_ms: int) -> bool:
        """Whether no client uses it, or is expected: between two polls, or for its first read."""
        is_expected = self._is_unread and now_ms - self.created_ms < UNREAD_MS
        is_between_polls = 0 <= now_ms - self._last_poll_ms < BETWEEN_POLLS_MS
        return self._users == 0 and not is_expected and not is_between_polls

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        with self._reading():
            yield from pieces

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Drops a shape whose files are damaged, because every later read would fail too.

        Other I/O errors may be temporary, such as missing permissions or too many open files.
        """
        try:
            yield
        except Corrupt as error:
            self._engine.removal.drop_failed({self: error})
            raise NotFound(f"shape {self.handle} is damaged and was dropped: {error}") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> Unavailable:
        return Unavailable(f"shape {self.handle} cannot be read: {error}; fix that and try again")

    def is_in_memory(self, start: ShapeOffset) -> bool:
        """Whether everything after an offset is in memory, so that reading it opens no file."""
        storage = self._storage
        return storage is not None and storage.is_in_memory(start)

    def open(self) -> ShapeStorage:
        """The storage, opened if necessary.

        Raises NotFound if the shape was dropped, perhaps because its files are missing or damaged,
        Unavailable before its snapshot has begun or if they cannot be read now, and Closed after
        the engine was closed.
        """
        storage = self._storage
        if storage is not None and not self.is_dropped:
            return storage
        try:
            with self._lock:
                return self._storage_locked()
        except (NotFound, Corrupt) as error:
            if self.is_dropped:
                raise
            self._engine.removal.drop_failed({self: error})
            raise NotFound(f"shape {self.handle} cannot be opened and was dropped") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _storage_locked(self) -> ShapeStorage:
        if self.is_dropped:
            raise NotFound(f"shape {self.handle} was dropped: {self.drop_reason}")
        if self._storage is None:
            if self._is_closed:
                raise Closed(
                    f"shape {self.handle} is closed with its engine: open the directory again"
                )
            if not self.is_snapshot_started:
                raise Unavailable(f"the snapshot of shape {self.handle} has not begun: try again")
            self._storage = self._open_checked()
        return self._storage

    def _open_checked(self) -> ShapeStorage:
        """Opens the files; raises Corrupt if they hold more or less than when it was closed."""
        storage = self._engine.open_storage(self.handle)
        try:
            self.topic.check_opened(self, storage)
        except Corrupt:
            storage.drop()
            raise
        return storage

    def adopt(self, storage: ShapeStorage) -> None:
        """Takes the storage that was created for a new shape."""
        with self._lock:
            if not self.is_dropped:
                self._storage = storage

    def append(self, entries: Sequence[ShapeEntry]) -> None:
        """Appends whole transactions; raises StoreError or OSError: drop the shape then."""
        storage = self._storage
        if storage is None:
            with self._lock:
                storage = self._storage_locked()
        storage.append(entries)

    def snapshot_complete(self) -> None:
        self.is_snapshot_started = self.is_snapshot_complete = True

    def snapshot_failed(self, error: Exception) -> None:
        """Keeps the reason why there is no snapshot, for clients that wait for it."""
        if not isinstance(error, StoreError):
            error = Unavailable(f"snapshot of shape {self.handle} failed: {error}")
        self.failure = error

    def mark_dropped(self, reason: DropReason) -> bool:
        """Rejects readers and writers from now on; False if it was dropped before."""
        with self._lock:
            if self.is_dropped:
                return False
            self.drop_reason = reason
            return True

    def remove_storage(self) -> bool:
        """Moves the files to the trash; False if the storage is not open. After `mark_dropped`."""
        with self._lock:
            storage, self._storage = self._storage, None
        if storage is None:
            return False
        storage.drop()
        return True

    def close(self) -> None:
        """Makes the log durable and closes it for good."""
        with self._lock:
            storage, self._storage = self._storage, None
            self._is_closed = True
        if storage is not None:
            storage.close()

    def abandon(self) -> None:
        """Closes as a crash would: nothing is made durable."""
        with self._lock:
            self._storage = None
            self._is_closed = True


def flush_shapes(shapes: Iterable[Shape]) -> dict[Shape, StoreError]:
    """Makes the appended entries durable, with few syncs; returns the shapes that failed.

    A shape that is not open is skipped: closing made it durable, or it was dropped.
    """
    opened = {storage: shape for shape in shapes if (storage := shape.find_storage()) is not None}
    failures = flush_storages(list(opened))
    return {opened[storage]: error for storage, error in failures.items()}
