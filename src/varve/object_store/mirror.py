"""Two independent object stores as one: writes go to both, reads fail over.

The first store is the truth: it decides who creates, and a write that fails there fails. The second
gets each write after it; where that fails the write stands all the same, and the pending change is
kept, reported by `status`, and applied later by `catch_up` or `repair`. Reads ask the second when
the first is unavailable, denies or has lost its bucket; what the second does not have then is not
known to be missing, and the first one's error is raised. So it is for lists unless the second is
known to lack nothing: a list without the newest objects would be believed.

A store that was unavailable is not asked for a while (`CircuitBreaker`), as each request to it may
wait long for nothing: reads then ask the second store first, and writes leave the second behind.

Invariant  what this process failed to do to the second store is in the backlog until it was done.
Invariant  keys are written by one writer at a time: of two that replace one object at once each
           store may keep another's bytes, which only a deep repair finds.
Crash      the backlog is in memory only; a flag that outlives the process says whether it was
           empty, and else the lists are compared. A write that had not returned may be in the first
           store only; nobody relies on it yet.
Threads    any; no lock is held during requests. `_flag_lock` is taken before `_lock`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import (
    BucketNotFound,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from varve.object_store.mirror_repair import (
    Difference,
    Fault,
    MirrorComparison,
    Progress,
    compare,
    copy,
    no_progress,
    repair_object,
)
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore
from varve.object_store.wrapper import ObjectStoreWrapper

BACKLOG_KEYS_MAX: Final = 100_000
"""More are only counted; they are found again by comparing lists."""


class InSyncFlag(Protocol):
    """Remembers beyond the process that the second store lacks nothing; durable on return."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class PendingChange:
    """What is to be done to an object of the second store; a later change is another one."""

    was_deleted: bool


@dataclass(frozen=True, slots=True)
class BacklogSnapshot:
    """All pending changes of a moment, and how many more there were without their keys."""

    changes: dict[str, PendingChange]
    unlisted_count: int


class MirrorBacklog:
    """What the second store lacks as far as this process knows, and whether it knows at all.

    The flag is set only while the second store is known to lack nothing, and it is cleared before
    the write that leaves the second behind returns: who starts with the flag set may take lists
    from the second store. Without a flag the second store is taken to be in sync at first.
    """

    def __init__(self, flag: InSyncFlag | None) -> None:
        self._flag = flag
        self._flag_lock = threading.Lock()
        self._is_flagged = flag is not None and flag.is_set()  # guarded by _flag_lock
        self._lock = threading.Lock()
        self._is_known = flag is None or self._is_flagged  # guarded by _lock
        self._changes: dict[str, PendingChange] = {}  # guarded by _lock
        self._unlisted_count = 0  # guarded by _lock

    @property
    def is_known(self) -> bool:
        with self._lock:
            return self._is_known

    @property
    def is_complete(self) -> bool:
        """Whether the second store is known to lack nothing."""
        with self._lock:
            return self._is_known and not (self._changes or self._unlisted_count)

    def snapshot(self) -> BacklogSnapshot:
        with self._lock:
            return BacklogSnapshot(dict(self._changes), self._unlisted_count)

    def find(self, key: str) -> PendingChange | None:
        with self._lock:
            return self._changes.get(key)

    def add(self, keys: Sequence[str], *, was_deleted: bool) -> None:
        with self._lock:
            for key in keys:
                if key in self._changes or len(self._changes) < BACKLOG_KEYS_MAX:
                    self._changes[key] = PendingChange(was_deleted)
                else:
                    self._unlisted_count += 1
        with self._flag_lock:
            if self._is_flagged and self._flag is not None and not self.is_complete:
                self._flag.clear()
                self._is_flagged = False

    def drop(self, keys: Sequence[str]) -> None:
        """The objects were written or deleted in both."""
        with self._lock:
            for key in keys:
                self._changes.pop(key, None)

    def resolve(self, key: str, change: PendingChange | None) -> None:
        """The object is as the change wanted it; a later change stays."""
        with self._lock:
            if self._changes.get(key) is change:
                self._changes.pop(key, None)

    def record_comparison(self, before: BacklogSnapshot) -> None:
        """The lists were compared after that moment, and what they lacked is done or noted."""
        with self._lock:
            self._is_known = True
            self._unlisted_count -= before.unlisted_count

    def flag_in_sync(self) -> None:
        """Sets the flag if the second store is known to lack nothing."""
        with self._flag_lock:
            if self._flag is not None and not self._is_flagged and self.is_complete:
                self._flag.set()
                self._is_flagged = True


BREAKER_MS: Final = 30_000
"""How long a store that was unavailable is not asked."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """What the second store lacks as far as this process knows.

    `missing` were written and `undeleted` deleted in the first store only; `unlisted_count` are
    further ones without their keys. `last_error` tells why the second store was last left behind,
    `first_error` why reads do not ask the first one now. `is_known` is False as long as the stores
    were not compared and nobody knew how an earlier process left them.
    """

    missing: tuple[str, ...]
    undeleted: tuple[str, ...]
    unlisted_count: int
    failover_count: int
    last_error: str
    first_error: str = ""
    is_known: bool = True

    @property
    def is_complete(self) -> bool:
        return self.is_known and not self.behind_count

    @property
    def behind_count(self) -> int:
        return len(self.missing) + len(self.undeleted) + self.unlisted_count


def _describe_trouble(status: MirrorStatus, *, first: str, second: str) -> str:
    """What is wrong with the stores of these names; empty if nothing is."""
    sentences = []
    if status.first_error:
        sentences.append(f"reads go to {second}, because {status.first_error}")
    if status.behind_count:
        why = f", because {status.last_error}" if status.last_error else ""
        sentences.append(
            f"{second} is behind by {status.behind_count:,} objects{why}; it is caught up while "
            "the store is open, or by `varve tier mirror --repair`"
        )
    elif not status.is_known:
        sentences.append(
            f"{second} was not compared with {first} since it was new or left behind; that is done "
            "after the next copies"
        )
    return "; ".join(sentences)


class CircuitBreaker:
    """Keeps requests from a store that was unavailable; now and then one request tries it again.

    `error` tells why, also during that request, and is empty when the store answers.
    """

    def __init__(self) -> None:
        self.error = ""
        self._opened_ms = 0

    def open(self, now_ms: int, error: str) -> None:
        self.error, self._opened_ms = error, now_ms

    def close(self) -> None:
        self.error = ""

    def is_open(self, now_ms: int) -> bool:
        if not self.error:
            return False
        if self._opened_ms <= now_ms < self._opened_ms + BREAKER_MS:
            return True
        self._opened_ms = now_ms
        return False


logger = logging.getLogger(__name__)

T = TypeVar("T")

_DOWN: Final = (StoreUnavailable, StoreDenied, BucketNotFound)
"""What makes reads fail over."""


@dataclass(frozen=True, slots=True)
class MirrorRepair:
    """What a repair did: copied to the second store, deleted there, and found there alone."""

    copied: tuple[str, ...]
    deleted: tuple[str, ...]
    extra: tuple[str, ...]


class MirroredObjectStore(ObjectStoreWrapper):
    """An ObjectStore over two others.

    `in_sync` says whether the second store lacked nothing when it was last used; without one it is
    taken to be so.
    """

    def __init__(
        self,
        first: ObjectStore,
        second: ObjectStore,
        *,
        clock: Clock | None = None,
        in_sync: InSyncFlag | None = None,
    ) -> None:
        super().__init__(first)
        self.name = f"mirror of {first.name} and {second.name}"
        self.first_name = first.name
        self.second_name = second.name
        self._first = first
        self._second = second
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._backlog = MirrorBacklog(in_sync)
        self._failover_count = 0  # guarded by _lock
        self._last_error = ""  # guarded by _lock
        self._first_breaker = CircuitBreaker()  # guarded by _lock
        self._second_breaker = CircuitBreaker()  # guarded by _lock

    def status(self) -> MirrorStatus:
        snapshot = self._backlog.snapshot()
        behind = sorted(snapshot.changes.items())
        is_known = self._backlog.is_known
        with self._lock:
            return MirrorStatus(
                missing=tuple(key for key, note in behind if not note.was_deleted),
                undeleted=tuple(key for key, note in behind if note.was_deleted),
                unlisted_count=snapshot.unlisted_count,
                failover_count=self._failover_count,
                last_error=self._last_error,
                first_error=self._first_breaker.error,
                is_known=is_known,
            )

    def trouble(self) -> str:
        """A sentence on what is wrong with either store as far as known; empty if nothing is."""
        return _describe_trouble(self.status(), first=self.first_name, second=self.second_name)

    # Writes

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._write_first(lambda: self._first.put(key, data))
        self._write_second((key,), False, lambda: self._second.put(key, data))
        return info

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        is_one_shot = iter(parts) is parts
        info = self._write_first(lambda: self._first.put_parts(key, parts, size=size))
        if is_one_shot:
            self._write_second((key,), False, lambda: copy(self._first, self._second, key, size))
        else:
            self._write_second((key,), False, lambda: self._second.put_parts(key, parts, size=size))
        return info

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._write_first(lambda: self._first.create(key, data))
        self._write_second((key,), False, lambda: self._second.put(key, data))
        return info

    def delete(self, keys: Sequence[str]) -> None:
        self._write_first(lambda: self._first.delete(keys))
        self._write_second(keys, True, lambda: self._second.delete(keys))

    def _write_first(self, write: Callable[[], T]) -> T:
        """Write to the first store; any answer of it ends its rest, a refusal as well."""
        try:
            result = write()
        except _DOWN as error:
            self._record_first(error)
            raise
        except StoreError:
            self._record_first(None)
            raise
        self._record_first(None)
        return result

    def _write_second(
        self, keys: Sequence[str], was_deleted: bool, call: Callable[[], object]
    ) -> None:
        """Do the same to the second store, or note that it is to be done."""
        now_ms = self._clock.now_ms()
        with self._lock:
            is_skipped = self._second_breaker.is_open(now_ms)
        if is_skipped:
            self._backlog.add(keys, was_deleted=was_deleted)
            return
        try:
            call()
        except StoreError as error:
            self._backlog.add(keys, was_deleted=was_deleted)
            self._record_second(error)
        else:
            self._backlog.drop(keys)
            with self._lock:
                self._second_breaker.close()

    def _record_second(self, error: StoreError) -> None:
        logger.warning(
            "the second object store is left behind",
            extra={"store": self.second_name, "error": str(error)},
        )
        now_ms = self._clock.now_ms()
        with self._lock:
            self._last_error = str(error)
            if isinstance(error, StoreUnavailable):
                self._second_breaker.open(now_ms, str(error))

    def _record_first(self, error: StoreError | None) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            was_on = bool(self._first_breaker.error)
            if error is None:
                self._first_breaker.close()
            else:
                self._first_breaker.open(now_ms, str(error))
        if error is not None and not was_on:
            logger.warning(
                "reads go to the second object store",
                extra={"store": self.first_name, "error": str(error)},
            )

    # Reads

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        """A read; a list of directories needs a second store that is known to lack nothing."""
        return self._read("" if operation == "list directories" else key, call)

    def _read(self, key: str, read: Callable[[ObjectStore], T]) -> T:
        is_behind = self._backlog.find(key) is not None if key else not self._backlog.is_complete
        skips_first = not is_behind and self._skips_first()
        if skips_first:
            try:
                return read(self._second)
            except (ObjectNotFound, *_DOWN):
                pass  # The first one knows, or says why it does not.
        try:
            result = read(self._first)
        except ObjectNotFound:
            self._record_first(None)
            raise
        except _DOWN as error:
            self._record_first(error)
            if is_behind or skips_first:
                raise
            with self._lock:
                self._failover_count += 1
            try:
                return read(self._second)
            except ObjectNotFound:
                raise error from None
        self._record_first(None)
        return result

    def _skips_first(self) -> bool:
        """Whether the first rests, so that the second is to be asked before it."""
        now_ms = self._clock.now_ms()
        with self._lock:
            is_on = self._first_breaker.is_open(now_ms)
            self._failover_count += is_on
            return is_on

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Goes on with the second store where the first breaks off, if that one lacks nothing."""
        is_behind = not self._backlog.is_complete
        skips_first = not is_behind and self._skips_first()
        if skips_first:
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
            self._record_first(error)
            if is_behind or skips_first:
                raise
            with self._lock:
                self._failover_count += 1
        else:
            self._record_first(None)
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
            is_suspect=lambda key: self._backlog.find(key) is not None,
            progress=progress,
        )

    def repair_differences(
        self,
        differences: Sequence[Difference],
        *,
        delete_extra: bool = False,
        progress: Progress = no_progress,
    ) -> MirrorRepair:
        """Make the second store like the first in these objects; raises where either fails.

        What only the second has is deleted when this process deleted it in the first; the rest is
        reported as extra, and deleted only on request: it may be the last copy.
        """
        copied: list[str] = []
        deleted: list[str] = []
        extra: list[str] = []
        done_bytes = 0
        total_bytes = sum(
            difference.size for difference in differences if difference.fault is not Fault.EXTRA
        )

        def show(size: int) -> None:
            nonlocal done_bytes
            progress("copy", done_bytes, total_bytes)
            done_bytes += size

        for difference in differences:
            note = self._backlog.find(difference.key)
            if difference.fault is Fault.EXTRA:
                if not delete_extra and note is None:
                    extra.append(difference.key)
                    continue
                progress("delete", done_bytes, total_bytes)
            if repair_object(self._first, self._second, difference, show):
                (deleted if difference.fault is Fault.EXTRA else copied).append(difference.key)
            self._backlog.resolve(difference.key, note)
        return MirrorRepair(tuple(copied), tuple(deleted), tuple(extra))

    def repair(
        self,
        prefix: str = "",
        *,
        deep: bool = False,
        delete_extra: bool = False,
        progress: Progress = no_progress,
    ) -> MirrorRepair:
        """Bring the second store to what the first has below a prefix: `compare` and
        `repair_differences`."""
        before = self._backlog.snapshot()
        comparison = self.compare(prefix, deep=deep, progress=progress)
        done = self.repair_differences(
            comparison.differences, delete_extra=delete_extra, progress=progress
        )
        if not prefix:
            for key, note in before.changes.items():
                self._backlog.resolve(key, note)
            self._backlog.record_comparison(before)
            self._backlog.flag_in_sync()
            with self._lock:
                self._second_breaker.close()
        return done

    def catch_up(self, *, within_ms: int) -> int:
        """Do what was noted to the second store, for so long; gives to how many objects.

        Where notes are missing the lists are compared, and what the second lacks is noted first. A
        failure of either store ends it: what is left stays noted.
        """
        end_ms = self._clock.now_ms() + within_ms
        if not self._backlog.is_complete and not self._record_differences():
            return 0
        done = 0
        for key, note in self._backlog.snapshot().changes.items():
            if self._clock.now_ms() > end_ms or not self._apply_change(key, note):
                break
            self._backlog.resolve(key, note)
            done += 1
        self._backlog.flag_in_sync()
        return done

    def _record_differences(self) -> bool:
        """Whether all that the second lacks is noted now, or as much as can be."""
        before = self._backlog.snapshot()
        if before.changes or (self._backlog.is_known and not before.unlisted_count):
            return True
        if self._is_any_open():
            return False
        try:
            self._write_first(lambda: next(self._first.list(""), None))
        except StoreError:
            return False
        try:
            comparison = self.compare()
        except StoreError as error:
            self._record_second(error)
            return False
        with self._lock:
            self._second_breaker.close()
        lacking = [
            difference.key
            for difference in comparison.differences
            if difference.fault is not Fault.EXTRA
        ]
        self._backlog.add(lacking, was_deleted=False)
        self._backlog.record_comparison(before)
        return True

    def _is_any_open(self) -> bool:
        now_ms = self._clock.now_ms()
        with self._lock:
            return self._second_breaker.is_open(now_ms) or self._first_breaker.is_open(now_ms)

    def _apply_change(self, key: str, change: PendingChange) -> bool:
        """Whether it was done; a store that rests is not asked."""
        if self._is_any_open():
            return False
        try:
            size = self._write_first(lambda: self._first.head(key).size)
        except ObjectNotFound:
            size = None
        except StoreError:
            return False
        try:
            if size is not None:
                copy(self._first, self._second, key, size)
            elif change.was_deleted:
                self._second.delete([key])
        except StoreError as error:
            self._record_second(error)
            return False
        with self._lock:
            self._second_breaker.close()
        return True

    def close(self) -> None:
        self._first.close()
        self._second.close()
