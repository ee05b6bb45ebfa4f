"""Two independent object stores as one: writes go to both, reads fail over.

The first store is authoritative: it decides conditional creates, and a write that fails there
fails. Each write then goes to the second store. If that fails the write still succeeds, and the
pending change is kept, reported by `status`, and applied later by `catch_up` or a repair. Reads
fail over to the second store when the first is unavailable, denies access or has lost its bucket.
An object that the second store does not have may still exist in the first, so the error of the
first is raised. Lists fail over only while the second store is known to be complete: a list without
the newest objects would be wrong.

After an error no request is sent to an unavailable store for a while (`CircuitBreaker`), as each
may wait for its timeout: reads go to the second store first, and writes to it become pending.

Invariant  a change that failed in the second store is in the backlog until it is applied.
Invariant  keys are written by one writer at a time: when two replace an object concurrently, the
           stores may keep different bytes, which only a deep repair finds.
Crash      the backlog is in memory only; a durable flag says whether it was empty, else the lists
           are compared. A write that did not return may be in the first store only.
Threads    any; no lock is held during requests. The backlog's `_flag_lock` is taken before its
           `_lock`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

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
    no_bytes,
    no_progress,
)
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore, ObjectStoreWrapper

logger = logging.getLogger(__name__)

T = TypeVar("T")

BACKLOG_KEYS_MAX: Final = 100_000
"""Further pending keys are only counted; comparing the lists finds them again."""

BREAKER_MS: Final = 30_000
"""How long no request is sent to a store that was unavailable."""

_DOWN: Final = (StoreUnavailable, StoreDenied, BucketNotFound)
"""Errors on which reads fail over."""


class InSyncFlag(Protocol):
    """A durable flag that the second store is complete; changes are durable on return."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class PendingChange:
    """A change to apply to an object of the second store; compared by identity."""

    was_deleted: bool


class BacklogSnapshot(NamedTuple):
    """The pending changes at one moment, and the number of further ones without their keys.

    `is_known` is False while it is unknown what an earlier process left pending.
    """

    changes: dict[str, PendingChange]
    unlisted_count: int
    is_known: bool


class MirrorBacklog:
    """The pending changes of the second store, as far as this process knows them.

    The flag is set only while the second store is known to be complete, and it is cleared before
    the write that leaves it behind returns: a process that starts with the flag set may use lists
    of the second store. Without a flag the second store is assumed to be in sync at the start.
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
    def is_complete(self) -> bool:
        """Whether the second store is known to be complete."""
        with self._lock:
            return self._is_known and not (self._changes or self._unlisted_count)

    def snapshot(self) -> BacklogSnapshot:
        with self._lock:
            return BacklogSnapshot(dict(self._changes), self._unlisted_count, self._is_known)

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
        """Removes keys that were written or deleted in both stores."""
        with self._lock:
            for key in keys:
                self._changes.pop(key, None)

    def resolve(self, key: str, change: PendingChange | None) -> None:
        """Removes a change that was applied; a later change of the key stays."""
        with self._lock:
            if self._changes.get(key) is change:
                self._changes.pop(key, None)

    def record_comparison(self, before: BacklogSnapshot) -> None:
        """Notes that the lists were compared after the snapshot: all differences are known now."""
        with self._lock:
            self._is_known = True
            self._unlisted_count -= before.unlisted_count

    def flag_in_sync(self) -> None:
        """Sets the flag if the second store is known to be complete."""
        with self._flag_lock:
            if self._flag is not None and not self._is_flagged and self.is_complete:
                self._flag.set()
                self._is_flagged = True


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The state of the second store as far as this process knows.

    `missing` keys were written and `undeleted` keys deleted in the first store only;
    `unlisted_count` counts further ones. `last_error` is why the second store last fell behind,
    `first_error` why reads skip the first one now. `is_known` is False until the stores were
    compared, unless an earlier process left them in sync.
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


class CircuitBreaker:
    """Blocks requests to a store that was unavailable, except for one probe per `BREAKER_MS`.

    `error` is the last failure, also during the probe, and is empty when the store answers.
    """

    def __init__(self, clock: Clock) -> None:
        self.error = ""
        self._clock = clock
        self._lock = threading.Lock()
        self._opened_ms = 0  # guarded by _lock, and so are the changes of `error`

    def open(self, error: str) -> bool:
        """Notes a failure; returns whether the breaker was closed before."""
        with self._lock:
            was_closed = not self.error
            self.error, self._opened_ms = error, self._clock.now_ms()
            return was_closed

    def close(self) -> None:
        with self._lock:
            self.error = ""

    def is_open(self) -> bool:
        now_ms = self._clock.now_ms()
        with self._lock:
            if not self.error:
                return False
            if self._opened_ms <= now_ms < self._opened_ms + BREAKER_MS:
                return True
            self._opened_ms = now_ms
            return False


@dataclass(frozen=True, slots=True)
class MirrorRepair:
    """The keys that a repair copied and deleted, and those that only the second store has."""

    copied: tuple[str, ...]
    deleted: tuple[str, ...]
    extra: tuple[str, ...]


class MirroredObjectStore(ObjectStoreWrapper):
    """An ObjectStore over two others.

    `in_sync` says whether the second store was complete when it was last used; without it the
    store is assumed to be.
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
        self._backlog = MirrorBacklog(in_sync)
        self._first_breaker = CircuitBreaker(self._clock)
        self._second_breaker = CircuitBreaker(self._clock)
        self._last_error = ""
        self._lock = threading.Lock()
        self._failover_count = 0  # guarded by _lock

    def status(self) -> MirrorStatus:
        changes, unlisted_count, is_known = self._backlog.snapshot()
        with self._lock:
            failover_count = self._failover_count
        return MirrorStatus(
            missing=tuple(sorted(key for key in changes if not changes[key].was_deleted)),
            undeleted=tuple(sorted(key for key in changes if changes[key].was_deleted)),
            unlisted_count=unlisted_count,
            failover_count=failover_count,
            last_error=self._last_error,
            first_error=self._first_breaker.error,
            is_known=is_known,
        )

    def trouble(self) -> str:
        """Describes known problems of either store; empty without any."""
        status, second = self.status(), self.second_name
        sentences = []
        if status.first_error:
            sentences.append(f"reads go to {second}, because {status.first_error}")
        if status.behind_count:
            why = f", because {status.last_error}" if status.last_error else ""
            sentences.append(
                f"{second} is behind by {status.behind_count:,} objects{why}; it is caught up "
                "while the store is open, or by `varve tier mirror --repair`"
            )
        elif not status.is_known:
            sentences.append(
                f"{second} was not compared with {self.first_name} since it was new or left "
                "behind; that is done after the next copies"
            )
        return "; ".join(sentences)

    # Writes

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._request_first(lambda: self._first.put(key, data))
        self._write_second((key,), False, lambda: self._second.put(key, data))
        return info

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        is_one_shot = iter(parts) is parts
        info = self._request_first(lambda: self._first.put_parts(key, parts, size=size))
        if is_one_shot:
            self._write_second((key,), False, lambda: copy(self._first, self._second, key, size))
        else:
            self._write_second((key,), False, lambda: self._second.put_parts(key, parts, size=size))
        return info

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        info = self._request_first(lambda: self._first.create(key, data))
        self._write_second((key,), False, lambda: self._second.put(key, data))
        return info

    def delete(self, keys: Sequence[str]) -> None:
        self._request_first(lambda: self._first.delete(keys))
        self._write_second(keys, True, lambda: self._second.delete(keys))

    def _request_first(self, call: Callable[[], T]) -> T:
        """Sends a request to the first store; any answer, even a refusal, closes its breaker."""
        try:
            result = call()
        except _DOWN as error:
            self._record_first_down(error)
            raise
        except StoreError:
            self._first_breaker.close()
            raise
        self._first_breaker.close()
        return result

    def _record_first_down(self, error: StoreError) -> None:
        if self._first_breaker.open(str(error)):
            logger.warning(
                "reads go to the second object store",
                extra={"store": self.first_name, "error": str(error)},
            )

    def _write_second(
        self, keys: Sequence[str], was_deleted: bool, call: Callable[[], object]
    ) -> None:
        """Apply the change to the second store, or add it to the backlog."""
        try:
            if not self._second_breaker.is_open():
                self._request_second(call)
                self._backlog.drop(keys)
                return
        except StoreError:
            pass
        self._backlog.add(keys, was_deleted=was_deleted)

    def _request_second(self, call: Callable[[], object]) -> None:
        try:
            call()
        except StoreError as error:
            logger.warning(
                "the second object store failed and is behind the first",
                extra={"store": self.second_name, "error": str(error)},
            )
            self._last_error = str(error)
            if isinstance(error, StoreUnavailable):
                self._second_breaker.open(str(error))
            raise
        self._second_breaker.close()

    # Reads

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        """A read; a list of directories fails over only if the second store is complete."""
        if operation == "list directories":
            is_behind = not self._backlog.is_complete
        else:
            is_behind = self._backlog.find(key) is not None
        down: StoreError | None = None
        for store in self._stores(is_behind):
            try:
                if store is self._first:
                    return self._request_first(lambda: call(self._first))
                return call(store)
            except ObjectNotFound:
                if store is self._first:
                    raise
            except _DOWN as error:
                down = error
        assert down is not None
        raise down

    def _stores(self, is_behind: bool) -> Iterator[ObjectStore]:
        """The stores to read from, in order; the second only if it is not behind."""
        if is_behind:
            yield self._first
            return
        stores = (self._first, self._second)
        for store in reversed(stores) if self._first_breaker.is_open() else stores:
            if store is self._second:
                with self._lock:
                    self._failover_count += 1
            yield store

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Continues with the second store where the first fails, if the second is complete."""
        down: StoreError | None = None
        for store in self._stores(not self._backlog.is_complete):
            try:
                for info in store.list(prefix, start_after=start_after):
                    yield info
                    start_after = info.key
            except _DOWN as error:
                down = error
                if store is self._first:
                    self._record_first_down(error)
                continue
            if store is self._first:
                self._first_breaker.close()
            return
        assert down is not None
        raise down

    # Repair

    def compare(self, *, deep: bool = False, progress: Progress = no_progress) -> MirrorComparison:
        """Compares both stores; raises StoreError when either fails.

        Objects are compared by key and size, with `deep` also by their bytes; those with a pending
        change always differ. A concurrent write may appear in one store only.
        """
        suspects = self._backlog.snapshot().changes.keys()
        return compare(self._first, self._second, deep=deep, suspects=suspects, progress=progress)

    def repair_differences(
        self,
        differences: Sequence[Difference],
        *,
        delete_extra: bool = False,
        progress: Progress = no_progress,
    ) -> MirrorRepair:
        """Make the second store like the first in these objects; raises StoreError.

        Objects that only the second store has are deleted if this process deleted them in the
        first. Others are reported as extra and deleted only on request: they may be the last copy.
        """
        done: dict[Fault | None, list[str]] = {Fault.DIFFERENT: [], Fault.EXTRA: [], None: []}
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
            key, is_extra = difference.key, difference.fault is Fault.EXTRA
            change = self._backlog.find(key)
            if is_extra and not delete_extra and change is None:
                extra.append(key)
                continue
            if is_extra:
                progress("delete", done_bytes, total_bytes)
            fault = self._repair_object(
                key, may_copy=not is_extra, may_delete=is_extra, progress=show
            )
            done[fault].append(key)
            self._backlog.resolve(key, change)
        return MirrorRepair(tuple(done[Fault.DIFFERENT]), tuple(done[Fault.EXTRA]), tuple(extra))

    def _repair_object(
        self,
        key: str,
        *,
        may_copy: bool,
        may_delete: bool,
        progress: Callable[[int], None] = no_bytes,
    ) -> Fault | None:
        """Make the second store like the first in one object; returns the fault that was fixed.

        The first store is read again, as the object may have changed since it was listed.
        """
        try:
            size = self._request_first(lambda: self._first.head(key).size)
        except ObjectNotFound:
            if not may_delete:
                return None
            self._request_second(lambda: self._second.delete([key]))
            return Fault.EXTRA
        if not may_copy:
            return None
        try:
            self._request_second(lambda: copy(self._first, self._second, key, size, progress))
        except ObjectNotFound:
            return None
        return Fault.DIFFERENT

    def catch_up(self, *, within_ms: int) -> int:
        """Apply pending changes to the second store within a time limit; returns how many.

        If the pending changes are not known, the lists are compared first. A failure of either
        store ends the run; the remaining changes stay pending.
        """
        end_ms = self._clock.now_ms() + within_ms
        done = 0
        try:
            if not self._backlog.is_complete and not self._record_differences():
                return 0
            for key, change in self._backlog.snapshot().changes.items():
                if self._clock.now_ms() > end_ms or self._is_any_open():
                    break
                self._repair_object(key, may_copy=True, may_delete=change.was_deleted)
                self._backlog.resolve(key, change)
                done += 1
        except StoreError:
            pass  # The error is recorded, and the breaker of the store delays the next attempt.
        self._backlog.flag_in_sync()
        return done

    def _record_differences(self) -> bool:
        """Adds missing objects to the backlog if they are unknown; False while a store is down."""
        before = self._backlog.snapshot()
        if before.changes or (before.is_known and not before.unlisted_count):
            return True
        if self._is_any_open():
            return False
        self._request_first(lambda: next(self._first.list(""), None))
        missing: list[str] = []

        def find_missing() -> None:
            differences = self.compare().differences
            missing.extend(
                difference.key for difference in differences if difference.fault is not Fault.EXTRA
            )

        self._request_second(find_missing)
        self._backlog.add(missing, was_deleted=False)
        self._backlog.record_comparison(before)
        return True

    def _is_any_open(self) -> bool:
        return self._second_breaker.is_open() or self._first_breaker.is_open()

    def close(self) -> None:
        self._first.close()
        self._second.close()
