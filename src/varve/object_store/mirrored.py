"""Two independent object stores as one: writes go to both, reads fail over.

The first store is the truth: it decides who creates, and a write that fails there fails. The second
follows each write; where that fails the write stands all the same, and what it lacks is noted,
reported by `status`, and done later by `catch_up` or `repair`. Reads ask the second when the first
is unavailable, denies or has lost its bucket; what the second does not have then is not known to be
missing, and the first one's error is raised. So it is for lists unless the second is known to lack
nothing: a list without the newest objects would be believed.

A store that was unavailable rests for a while, as each request to it may wait long for nothing:
reads then ask the second store first, and writes leave the second behind without asking it.

Invariant  what this process failed to do to the second store is noted until it was done.
Invariant  keys are written by one writer at a time: of two that replace one object at once each
           store may keep another's bytes, which only a deep repair finds.
Crash      notes are in memory only; a mark that outlives the process tells whether there were none,
           and else the lists are compared.
Threads    any; `_lock` is not held during requests.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import (
    BucketNotFound,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from varve.object_store.keys import check_prefix
from varve.object_store.mirror_notes import LevelMark, MirrorNotes, Note
from varve.object_store.mirror_repair import (
    Difference,
    Fault,
    MirrorComparison,
    Progress,
    compare,
    copy,
    mend,
    no_progress,
)
from varve.object_store.mirror_status import MirrorStatus, StoreRest, tell_trouble
from varve.object_store.object_store import Buffer, ObjectInfo, ObjectStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NO_KEY: Final = ""
_DOWN: Final = (StoreUnavailable, StoreDenied, BucketNotFound)
"""What makes reads fail over."""


@dataclass(frozen=True, slots=True)
class MirrorRepair:
    """What a repair did: copied to the second store, deleted there, and found there alone."""

    copied: tuple[str, ...]
    deleted: tuple[str, ...]
    extra: tuple[str, ...]


class MirroredObjectStore:
    """An ObjectStore over two others.

    `mark` tells whether the second store lacked nothing when it was last used; without one it is
    taken to be so.
    """

    def __init__(
        self,
        first: ObjectStore,
        second: ObjectStore,
        *,
        clock: Clock | None = None,
        mark: LevelMark | None = None,
    ) -> None:
        self.name = f"mirror of {first.name} and {second.name}"
        self.first_name = first.name
        self.second_name = second.name
        self._first = first
        self._second = second
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._notes = MirrorNotes(mark)
        self._failover_count = 0  # guarded by _lock
        self._last_error = ""  # guarded by _lock
        self._first_rest = StoreRest()  # guarded by _lock
        self._second_rest = StoreRest()  # guarded by _lock

    def status(self) -> MirrorStatus:
        found = self._notes.snapshot()
        behind = sorted(found.notes.items())
        is_known = self._notes.is_known
        with self._lock:
            return MirrorStatus(
                missing=tuple(key for key, note in behind if not note.was_deleted),
                undeleted=tuple(key for key, note in behind if note.was_deleted),
                unnoted_count=found.unnoted_count,
                failover_count=self._failover_count,
                last_error=self._last_error,
                first_error=self._first_rest.error,
                is_known=is_known,
            )

    def trouble(self) -> str:
        """A sentence on what is wrong with either store as far as known; empty if nothing is."""
        return tell_trouble(self.status(), first=self.first_name, second=self.second_name)

    # Writes

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._lead(lambda: self._first.put(key, data))
        self._follow((key,), False, lambda: self._second.put(key, data))
        return info

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        is_one_shot = iter(parts) is parts
        info = self._lead(lambda: self._first.put_parts(key, parts, size=size))
        if is_one_shot:
            self._follow((key,), False, lambda: copy(self._first, self._second, key, size))
        else:
            self._follow((key,), False, lambda: self._second.put_parts(key, parts, size=size))
        return info

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._lead(lambda: self._first.create(key, data))
        self._follow((key,), False, lambda: self._second.put(key, data))
        return info

    def delete(self, keys: Sequence[str]) -> None:
        self._lead(lambda: self._first.delete(keys))
        self._follow(keys, True, lambda: self._second.delete(keys))

    def _lead(self, write: Callable[[], T]) -> T:
        """Write to the first store; any answer of it ends its rest, a refusal as well."""
        try:
            result = write()
        except _DOWN as error:
            self._note_first(error)
            raise
        except StoreError:
            self._note_first(None)
            raise
        self._note_first(None)
        return result

    def _follow(self, keys: Sequence[str], was_deleted: bool, call: Callable[[], object]) -> None:
        """Do the same to the second store, or note that it is to be done."""
        now_ms = self._clock.now_ms()
        with self._lock:
            is_spared = self._second_rest.is_on(now_ms)
        if is_spared:
            self._notes.add(keys, was_deleted=was_deleted)
            return
        try:
            call()
        except StoreError as error:
            self._notes.add(keys, was_deleted=was_deleted)
            self._note_second(error)
        else:
            self._notes.drop(keys)
            with self._lock:
                self._second_rest.end()

    def _note_second(self, error: StoreError) -> None:
        logger.warning(
            "the second object store is left behind",
            extra={"store": self.second_name, "error": str(error)},
        )
        now_ms = self._clock.now_ms()
        with self._lock:
            self._last_error = str(error)
            if isinstance(error, StoreUnavailable):
                self._second_rest.begin(now_ms, str(error))

    def _note_first(self, error: StoreError | None) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            was_on = bool(self._first_rest.error)
            if error is None:
                self._first_rest.end()
            else:
                self._first_rest.begin(now_ms, str(error))
        if error is not None and not was_on:
            logger.warning(
                "reads go to the second object store",
                extra={"store": self.first_name, "error": str(error)},
            )

    # Reads

    def get(self, key: str) -> bytes:
        return self._read(key, lambda store: store.get(key))

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        return self._read(key, lambda store: store.get_range(key, start, end))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._read(key, lambda store: store.get_ranges(key, ranges))

    def head(self, key: str) -> ObjectInfo:
        return self._read(key, lambda store: store.head(key))

    def _read(self, key: str, read: Callable[[ObjectStore], T]) -> T:
        is_behind = self._notes.find(key) is not None if key else not self._notes.is_complete
        spares_first = not is_behind and self._spares_first()
        if spares_first:
            try:
                return read(self._second)
            except (ObjectNotFound, *_DOWN):
                pass  # The first one knows, or says why it does not.
        try:
            result = read(self._first)
        except ObjectNotFound:
            self._note_first(None)
            raise
        except _DOWN as error:
            self._note_first(error)
            if is_behind or spares_first:
                raise
            with self._lock:
                self._failover_count += 1
            try:
                return read(self._second)
            except ObjectNotFound:
                raise error from None
        self._note_first(None)
        return result

    def _spares_first(self) -> bool:
        """Whether the first rests, so that the second is to be asked before it."""
        now_ms = self._clock.now_ms()
        with self._lock:
            is_on = self._first_rest.is_on(now_ms)
            self._failover_count += is_on
            return is_on

    def list_directories(self, prefix: str) -> list[str]:
        """From the second store, if it must be, where that is known to lack nothing."""
        return self._read(_NO_KEY, lambda store: store.list_directories(prefix))

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Goes on with the second store where the first breaks off, if that one lacks nothing."""
        check_prefix(prefix, store=self.name, operation="list")
        return self._mirrored_list(prefix, start_after)

    def _mirrored_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        is_behind = not self._notes.is_complete
        spares_first = not is_behind and self._spares_first()
        if spares_first:
            try:
                for info in self._second.list(prefix, start_after=start_after):
                    yield info
                    start_after = info.key
                return
            except _DOWN:
                pass  # The first one knows, or says why it does not.
        try:
            for info in self._first.list(prefix, start_after=start_after):
                yield info
                start_after = info.key
        except _DOWN as error:
            self._note_first(error)
            if is_behind or spares_first:
                raise
            with self._lock:
                self._failover_count += 1
        else:
            self._note_first(None)
            return
        yield from self._second.list(prefix, start_after=start_after)

    # Repair

    def compare(
        self, prefix: str = "", *, deep: bool = False, progress: Progress = no_progress
    ) -> MirrorComparison:
        """What the second store has otherwise below a prefix; raises where either fails.

        Objects are compared by key and size, if `deep` by their bytes too; those noted as behind
        are different in any case. What is written meanwhile may be seen in one of them only.
        """
        return compare(
            self._first,
            self._second,
            prefix,
            deep=deep,
            is_suspect=lambda key: self._notes.find(key) is not None,
            progress=progress,
        )

    def mend(
        self,
        differences: Sequence[Difference],
        *,
        delete_extra: bool = False,
        progress: Progress = no_progress,
    ) -> MirrorRepair:
        """Make the second store like the first in these objects; raises where either fails.

        What only the second has is deleted when this process deleted it in the first; the rest is
        reported as extra, and deleted only if told so: it may be the last copy.
        """
        copied: list[str] = []
        deleted: list[str] = []
        extra: list[str] = []
        done_bytes = 0
        total_bytes = sum(one.size for one in differences if one.fault is not Fault.EXTRA)

        def show(size: int) -> None:
            nonlocal done_bytes
            progress("copy", done_bytes, total_bytes)
            done_bytes += size

        for one in differences:
            note = self._notes.find(one.key)
            if one.fault is Fault.EXTRA:
                if not delete_extra and note is None:
                    extra.append(one.key)
                    continue
                progress("delete", done_bytes, total_bytes)
            if mend(self._first, self._second, one, show):
                (deleted if one.fault is Fault.EXTRA else copied).append(one.key)
            self._notes.settle(one.key, note)
        return MirrorRepair(tuple(copied), tuple(deleted), tuple(extra))

    def repair(
        self,
        prefix: str = "",
        *,
        deep: bool = False,
        delete_extra: bool = False,
        progress: Progress = no_progress,
    ) -> MirrorRepair:
        """Bring the second store to what the first has below a prefix: `compare` and `mend`."""
        before = self._notes.snapshot()
        found = self.compare(prefix, deep=deep, progress=progress)
        done = self.mend(found.differences, delete_extra=delete_extra, progress=progress)
        if not prefix:
            for key, note in before.notes.items():
                self._notes.settle(key, note)
            self._notes.note_compared(before)
            self._notes.mark_level()
            with self._lock:
                self._second_rest.end()
        return done

    def catch_up(self, *, within_ms: int) -> int:
        """Do what was noted to the second store, for so long; gives to how many objects.

        Where notes are missing the lists are compared, and what the second lacks is noted first. A
        failure of either store ends it: what is left stays noted.
        """
        end_ms = self._clock.now_ms() + within_ms
        if not self._notes.is_complete and not self._note_differences():
            return 0
        done = 0
        for key, note in self._notes.snapshot().notes.items():
            if self._clock.now_ms() > end_ms or not self._do_noted(key, note):
                break
            self._notes.settle(key, note)
            done += 1
        self._notes.mark_level()
        return done

    def _note_differences(self) -> bool:
        """Whether all that the second lacks is noted now, or as much as can be."""
        before = self._notes.snapshot()
        if before.notes or (self._notes.is_known and not before.unnoted_count):
            return True
        if self._rests():
            return False
        try:
            self._lead(lambda: next(self._first.list(""), None))
        except StoreError:
            return False
        try:
            found = self.compare()
        except StoreError as error:
            self._note_second(error)
            return False
        with self._lock:
            self._second_rest.end()
        lacking = [one.key for one in found.differences if one.fault is not Fault.EXTRA]
        self._notes.add(lacking, was_deleted=False)
        self._notes.note_compared(before)
        return True

    def _rests(self) -> bool:
        now_ms = self._clock.now_ms()
        with self._lock:
            return self._second_rest.is_on(now_ms) or self._first_rest.is_on(now_ms)

    def _do_noted(self, key: str, note: Note) -> bool:
        """Whether it was done; a store that rests is not asked."""
        if self._rests():
            return False
        try:
            size = self._lead(lambda: self._first.head(key).size)
        except ObjectNotFound:
            size = None
        except StoreError:
            return False
        try:
            if size is not None:
                copy(self._first, self._second, key, size)
            elif note.was_deleted:
                self._second.delete([key])
        except StoreError as error:
            self._note_second(error)
            return False
        with self._lock:
            self._second_rest.end()
        return True

    def close(self) -> None:
        self._first.close()
        self._second.close()
