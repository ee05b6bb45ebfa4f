"""One shape: its definition, its state, and its storage, which is opened when first needed.

Invariant  a shape that is followed, or was just made for somebody, makes no room for others.
           `latest` never goes back: what was seen before the shape was dropped stays. A shape gets
           changes above `start` only; what is at or below it stands in the snapshot.
Crash      a shape without a complete snapshot is dropped at the next start.
Threads    any; `_lock` guards opening, closing and dropping. Readers and writers take the storage
           once, which has locks of its own. Callbacks run outside the lock.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Corrupt, NotFound, StoreError, Unavailable
from varve.shapes.definition import Definition
from varve.shapes.messages import MessageForm
from varve.shapes.offset import BEFORE_ALL, SNAPSHOT_END, Offset
from varve.shapes.storage.entry import Entry
from varve.shapes.storage.storage import ShapeStorage, flush_storages

logger = logging.getLogger(__name__)

UNREAD_MS: Final = 60_000
"""How long a new shape stays for who asked for it to come and read."""
BETWEEN_POLLS_MS: Final = 5_000
"""How long a shape that was followed stays for who followed it to ask again."""


class DropReason(StrEnum):
    """Why a shape went; its clients begin anew."""

    DELETED = "deleted"
    TRUNCATED = "truncated"
    SCHEMA_CHANGED = "schema_changed"
    SOURCE_LOST = "source_lost"
    SNAPSHOT_FAILED = "snapshot_failed"
    STORAGE_FAILED = "storage_failed"
    EVICTED = "evicted"
    OUTGROWN = "outgrown"


class Shape:
    """A shape in use. Made by the engine alone."""

    __slots__ = (
        "_clock",
        "_failure",
        "_followers",
        "_is_closed",
        "_is_complete",
        "_is_started",
        "_is_unread",
        "_latest",
        "_left_ms",
        "_lock",
        "_open_storage",
        "_reads",
        "_storage",
        "_storage_failed",
        "created_ms",
        "definition",
        "drop_reason",
        "form",
        "handle",
        "last_read",
        "start",
    )

    def __init__(
        self,
        handle: str,
        definition: Definition,
        form: MessageForm,
        *,
        created_ms: int,
        start: Offset | None,
        reads: Iterator[int],
        clock: Clock,
        open_storage: "Callable[[Shape], ShapeStorage]",
        storage_failed: "Callable[[Shape, BaseException], None]",
    ) -> None:
        self.handle = handle
        self.definition = definition
        self.form = form
        self.created_ms = created_ms
        self.start = BEFORE_ALL if start is None else start
        """Up to here the topic is in the snapshot."""
        self.last_read = next(reads) if start is None else 0
        """The number of its newest read, or that of its making; 0 if in an earlier run."""
        self.drop_reason: DropReason | None = None
        self._reads = reads
        self._clock = clock
        self._open_storage = open_storage
        self._storage_failed = storage_failed
        self._storage: ShapeStorage | None = None  # guarded by _lock
        self._is_closed = False  # guarded by _lock
        self._is_started = self._is_complete = start is not None
        self._is_unread = start is None
        self._followers = 0  # guarded by _lock
        self._left_ms = -BETWEEN_POLLS_MS
        self._failure: StoreError | None = None
        self._latest = SNAPSHOT_END
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Shape {self.handle} of {self.definition.topic}>"

    @property
    def is_dropped(self) -> bool:
        return self.drop_reason is not None

    @property
    def is_snapshot_started(self) -> bool:
        return self._is_started

    @property
    def is_snapshot_complete(self) -> bool:
        return self._is_complete

    @property
    def failure(self) -> StoreError | None:
        """Why there is no snapshot; None while there may be one."""
        return self._failure

    def find_storage(self) -> ShapeStorage | None:
        """The storage if it is open."""
        return self._storage

    @property
    def is_open(self) -> bool:
        """Whether the storage is open, so that asking for places needs no file."""
        return self._storage is not None

    @property
    def latest(self) -> Offset:
        """The last place that readers may see, `0_inf` before the log has any."""
        storage = self._storage
        if storage is None and not self.is_dropped and self._is_started:
            storage = self.open()
        if storage is not None:
            found = storage.latest
            if not found.is_virtual and found > self._latest:
                self._latest = found
        return self._latest

    @property
    def compacted_to(self) -> Offset:
        """Where the compacted part of the log ends: within it rows are told as of there."""
        storage = self._storage
        return BEFORE_ALL if storage is None else storage.manifest.boundary

    def chunk_end(self, offset: Offset) -> Offset | None:
        """Where the chunk behind a place ends; None if it is open or there is none."""
        with self._reading():
            return self.open().chunk_end(offset)

    def read(self, start: Offset, end: Offset) -> Iterator[bytes]:
        """The messages in (start, end], in pieces joined by commas; raises NotFound if dropped."""
        self._note_read()
        with self._reading():
            return self._checked(self.open().read(start, end))

    def _note_read(self) -> None:
        self.last_read = next(self._reads)
        self._is_unread = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """To be entered while somebody asks it for something: it is not evicted meanwhile."""
        with self._lock:
            self._followers += 1
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1

    @contextmanager
    def followed(self) -> Iterator[None]:
        """To be entered while somebody waits for news of it."""
        with self.kept():
            try:
                yield
            finally:
                # Who waited for its first rows alone has yet to read them.
                if not self._is_unread:
                    self._left_ms = self._clock.now_ms()
                self.last_read = next(self._reads)

    def is_wanted(self, now_ms: int) -> bool:
        """Whether somebody follows it, or is about to: between two polls, or for the first time."""
        is_expected = self._is_unread and now_ms - self.created_ms < UNREAD_MS
        is_between = 0 <= now_ms - self._left_ms < BETWEEN_POLLS_MS
        return self._followers > 0 or is_expected or is_between

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        with self._reading():
            yield from pieces

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A shape whose files are damaged would fail its readers for ever: they begin anew.

        What else the disk says may heal: a right that is lacking, too many open files.
        """
        try:
            yield
        except Corrupt as error:
            self._storage_failed(self, error)
            raise NotFound(f"shape {self.handle} is damaged and was dropped: {error}") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> Unavailable:
        return Unavailable(f"shape {self.handle} cannot be read: {error}; mend that, and try again")

    def is_in_memory(self, start: Offset) -> bool:
        """Whether everything behind a place is in memory, so that reading it needs no file."""
        storage = self._storage
        return storage is not None and storage.is_in_memory(start)

    def open(self) -> ShapeStorage:
        """The storage, opened if need be.

        Raises NotFound if the shape was dropped, perhaps because its files are gone or damaged,
        Unavailable before its snapshot has begun, or if they cannot be read now, and Closed behind
        the end of the engine.
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
            self._storage_failed(self, error)
            raise NotFound(f"shape {self.handle} cannot be opened and was dropped") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _storage_locked(self) -> ShapeStorage:
        if self.is_dropped:
            raise NotFound(f"shape {self.handle} was dropped: {self.drop_reason}")
        if self._storage is None:
            if self._is_closed:
                raise Closed(f"shape {self.handle} is closed with its engine: open that again")
            if not self._is_started:
                raise Unavailable(f"the snapshot of shape {self.handle} has not begun: try again")
            self._storage = self._open_storage(self)
        return self._storage

    def adopt(self, storage: ShapeStorage) -> None:
        """Takes the storage that was made for a new shape."""
        with self._lock:
            if not self.is_dropped:
                self._storage = storage

    def append(self, entries: Sequence[Entry]) -> bool:
        """Appends whole transactions; False if the shape is gone, perhaps by this very write."""
        storage = self._storage
        try:
            if storage is None:
                with self._lock:
                    storage = self._storage_locked()
            storage.append(entries)
        except (StoreError, OSError) as error:
            self.write_failed(error)
            return False
        return True

    def write_failed(self, error: BaseException) -> None:
        """A write has failed, for which the shape is dropped."""
        if not self.is_dropped:
            self._storage_failed(self, error)

    def snapshot_started(self) -> None:
        """Readers may begin."""
        self._is_started = True

    def snapshot_complete(self) -> None:
        """The snapshot is durable, and in the registry."""
        self._is_started = self._is_complete = True

    def snapshot_failed(self, error: BaseException) -> None:
        """Keeps why there is no snapshot, for those who wait for it."""
        self._failure = (
            error
            if isinstance(error, StoreError)
            else Unavailable(f"snapshot of shape {self.handle} failed: {error}")
        )

    def mark_dropped(self, reason: DropReason) -> bool:
        """Turns readers and writers away; False if it was dropped before."""
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
        """Makes the log durable and lets go of it for good."""
        with self._lock:
            storage, self._storage = self._storage, None
            self._is_closed = True
        if storage is not None:
            storage.close()

    def abandon(self) -> None:
        """Lets go of the log as a crash would."""
        with self._lock:
            self._storage = None
            self._is_closed = True


def flush_shapes(shapes: Iterable[Shape]) -> None:
    """Makes durable what was appended, with few syncs; a shape that fails is dropped by that.

    One that is not open has been closed, which made it durable, or was dropped.
    """
    opened = {storage: shape for shape in shapes if (storage := shape.find_storage()) is not None}
    for storage, error in flush_storages(list(opened)).items():
        opened[storage].write_failed(error)
