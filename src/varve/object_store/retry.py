"""An object store wrapper that retries while the store is unavailable.

A create whose response was lost has happened, and its retry fails with ObjectExists. So on
ObjectExists the stored bytes are compared: equal bytes count as our own create. Competing creators
must therefore write different bytes; manifests contain the name of their writer.

Invariant  the policy bounds the attempts, each wait and the total time of a call.
Threads    any; `_lock` guards the random source. `close` wakes waiting threads, whose calls fail.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from varve.foundation.backoff import Backoff
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import (
    ObjectExists,
    ObjectNotFound,
    StoreThrottled,
    StoreUnavailable,
)
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore, ObjectStoreWrapper

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The bounds of retries; the wait doubles from `first_wait_ms` up to `wait_ms_max`."""

    attempt_count_max: int = 7
    first_wait_ms: int = 100
    wait_ms_max: int = 10_000
    deadline_ms: int = 60_000

    def wait_ms(self, attempt: int, *, is_throttled: bool, source: random.Random) -> int:
        """The wait after this many attempts: a random value from half to all of the full wait."""
        backoff = Backoff(self.first_wait_ms, self.wait_ms_max)
        return backoff.wait_ms(attempt + 2 * is_throttled, source)


class RetryingObjectStore(ObjectStoreWrapper):
    """An ObjectStore that retries; `wait` sleeps for seconds and may return early."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
        source: random.Random | None = None,
    ) -> None:
        super().__init__(store)
        self._policy = policy or RetryPolicy()
        self._clock = clock or SystemClock()
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._lock = threading.Lock()
        self._source = source or random.Random()  # guarded by _lock

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        return self.repeat(lambda: call(self._store))

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        if iter(parts) is parts:
            return self._store.put_parts(key, parts, size=size)
        return super().put_parts(key, parts, size=size)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self.repeat(lambda: self._create(key, data))

    def _create(self, key: str, data: Buffer) -> ObjectInfo:
        try:
            return self._store.create(key, data)
        except ObjectExists:
            own = self._find_own(key, data)
            if own is None:
                raise
            return own

    def _find_own(self, key: str, data: Buffer) -> ObjectInfo | None:
        """The stored object if it has these bytes; None if they differ or it was deleted."""
        try:
            stored = self._store.get_range(key, 0, memoryview(data).nbytes + 1)
            return self._store.head(key) if stored == data else None
        except ObjectNotFound:
            return None

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Resumes after the last key on an error; each key received resets the count of errors."""
        attempt, begin_ms = 0, self._clock.now_ms()
        while True:
            try:
                for info in self._store.list(prefix, start_after=start_after):
                    yield info
                    start_after = info.key
                    attempt, begin_ms = 0, self._clock.now_ms()
                return
            except StoreUnavailable as error:
                attempt += 1
                self._wait_or_raise(error, attempt, begin_ms)

    def close(self) -> None:
        self._closed.set()
        self._store.close()

    def repeat(self, call: Callable[[], T]) -> T:
        """Calls, and retries within the policy; for callers with requests beyond the protocol."""
        attempt, begin_ms = 0, self._clock.now_ms()
        while True:
            try:
                return call()
            except StoreUnavailable as error:
                attempt += 1
                self._wait_or_raise(error, attempt, begin_ms)

    def _wait_or_raise(self, error: StoreUnavailable, attempt: int, begin_ms: int) -> None:
        with self._lock:
            wait_ms = self._policy.wait_ms(
                attempt, is_throttled=isinstance(error, StoreThrottled), source=self._source
            )
        spent_ms = self._clock.now_ms() - begin_ms
        is_last = attempt >= self._policy.attempt_count_max
        if is_last or self._closed.is_set() or spent_ms + wait_ms > self._policy.deadline_ms:
            summary = f"tried {attempt} times in {spent_ms} ms"
            raise type(error)(f"{error} ({summary})") from error
        self._wait(wait_ms / 1000)
