"""What the second store of a mirror lacks as far as a process knows, and whether it knows at all.

Invariant  the mark is set only while the second store is known to lack nothing, and it is cleared
           before the write that leaves the second behind returns: who starts with the mark set may
           take lists from the second store.
Crash      a write that had not returned may be in the first store only; nobody relies on it yet.
Threads    any; `_lock` guards the notes, `_mark_lock` the mark, and is taken first.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

NOTED_KEYS_MAX: Final = 100_000
"""More are only counted; they are found again by comparing lists."""


class LevelMark(Protocol):
    """Remembers beyond the process that the second store lacks nothing; durable on return."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """What is to be done to an object of the second store; a later note is another one."""

    was_deleted: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All notes of a moment, and how many more there were without their keys."""

    notes: dict[str, Note]
    unnoted_count: int


class MirrorNotes:
    """The notes of one mirror; without a mark the second store is taken to be level at first."""

    def __init__(self, mark: LevelMark | None) -> None:
        self._mark = mark
        self._mark_lock = threading.Lock()
        self._is_marked = mark is not None and mark.is_set()  # guarded by _mark_lock
        self._lock = threading.Lock()
        self._is_known = mark is None or self._is_marked  # guarded by _lock
        self._notes: dict[str, Note] = {}  # guarded by _lock
        self._unnoted_count = 0  # guarded by _lock

    @property
    def is_known(self) -> bool:
        with self._lock:
            return self._is_known

    @property
    def is_complete(self) -> bool:
        """Whether the second store is known to lack nothing."""
        with self._lock:
            return self._is_known and not (self._notes or self._unnoted_count)

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(dict(self._notes), self._unnoted_count)

    def find(self, key: str) -> Note | None:
        with self._lock:
            return self._notes.get(key)

    def add(self, keys: Sequence[str], *, was_deleted: bool) -> None:
        with self._lock:
            for key in keys:
                if key in self._notes or len(self._notes) < NOTED_KEYS_MAX:
                    self._notes[key] = Note(was_deleted)
                else:
                    self._unnoted_count += 1
        with self._mark_lock:
            if self._is_marked and self._mark is not None and not self.is_complete:
                self._mark.clear()
                self._is_marked = False

    def drop(self, keys: Sequence[str]) -> None:
        """The objects were written or deleted in both."""
        with self._lock:
            for key in keys:
                self._notes.pop(key, None)

    def settle(self, key: str, note: Note | None) -> None:
        """The object is as the note wanted it; one made since stays."""
        with self._lock:
            if self._notes.get(key) is note:
                self._notes.pop(key, None)

    def note_compared(self, before: Snapshot) -> None:
        """The lists were compared after that moment, and what they lacked is done or noted."""
        with self._lock:
            self._is_known = True
            self._unnoted_count -= before.unnoted_count

    def mark_level(self) -> None:
        """Sets the mark if the second store is known to lack nothing."""
        with self._mark_lock:
            if self._mark is not None and not self._is_marked and self.is_complete:
                self._mark.set()
                self._is_marked = True
