"""FaultyObjectStore, which wraps an object store and fails at chosen requests or at random.

Every request is a step with a number; a list is one step whatever its length. After a planned
crash every call raises PowerLoss, and `after_crash` returns the store that the next start finds.
The same seed and the same requests give the same faults.

Threads    any; `_lock` guards plan, steps and trace and is not held during requests.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from varve.foundation.errors import InvalidRequest, PowerLoss, StoreThrottled, StoreUnavailable
from varve.object_store import Buffer, ObjectInfo, ObjectStore
from varve.object_store.protocol import ObjectStoreWrapper, failure

T = TypeVar("T")


class FaultKind(StrEnum):
    """The ways in which one request can fail."""

    ERROR_BEFORE = "error before"
    """The request does not arrive."""
    ERROR_AFTER = "error after"
    """The request takes effect, but the response is lost; a list ends after its first object."""
    REPEATED = "repeated"
    """The request arrives twice, and the second response is returned."""
    THROTTLED = "throttled"
    """The store refuses the request: too many requests."""
    SLOW = "slow"
    """The request succeeds after `slow_seconds`."""
    PARTIAL = "partial"
    """An upload ends after some of its bytes, a delete after some of its keys; any other request
    fails as with ERROR_BEFORE."""
    CRASH_BEFORE = "crash before"
    """Power is lost before the request is sent."""
    CRASH_AFTER = "crash after"
    """Power is lost after the request took effect."""


class ObjectStep(NamedTuple):
    """One request, for the message of a failed test."""

    number: int
    operation: str
    key: str
    fault: FaultKind | None

    def __str__(self) -> str:
        fault = f" ({self.fault})" if self.fault else ""
        return f"{self.number}: {self.operation} {self.key}{fault}"


class ObjectFaultPlan:
    """Faults at chosen steps, and at random by a seed.

    `rates` has the probability of each kind. After `in_a_row_max` random faults in a row the next
    request succeeds, so that a bounded number of retries is enough.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        rates: Mapping[FaultKind, float] | None = None,
        in_a_row_max: int = 3,
    ) -> None:
        self._source = random.Random(seed)
        self._rates = dict(rates or {})
        self._in_a_row_max = in_a_row_max
        self._in_a_row = 0
        self._chosen: dict[int, FaultKind] = {}
        self._down_from: int | None = None

    def fail_at(self, step: int, kind: FaultKind) -> None:
        """Lets the request of that number fail."""
        self._chosen[step] = kind

    def go_down(self, from_step: int) -> None:
        """Lets every request from this step on fail before it takes effect."""
        self._down_from = from_step

    def come_up(self) -> None:
        """Ends what `go_down` began."""
        self._down_from = None

    def find_fault(self, step: int) -> FaultKind | None:
        """The fault of this request, if any; one set by `fail_at` comes first."""
        chosen = self._chosen.get(step)
        if chosen is not None:
            return chosen
        if self._down_from is not None and step >= self._down_from:
            return FaultKind.ERROR_BEFORE
        return self._draw()

    def share(self) -> float:
        """The share of a partial request that is carried out, drawn at random."""
        return self._source.random()

    def _draw(self) -> FaultKind | None:
        if not self._rates:
            return None
        drawn = self._source.random()
        if self._in_a_row >= self._in_a_row_max:
            self._in_a_row = 0
            return None
        for kind, rate in self._rates.items():
            if drawn < rate:
                self._in_a_row += 1
                return kind
            drawn -= rate
        self._in_a_row = 0
        return None


class FaultyObjectStore(ObjectStoreWrapper):
    """An object store with planned faults; `wait` is called with the seconds of a slow request."""

    def __init__(
        self,
        store: ObjectStore,
        plan: ObjectFaultPlan | None = None,
        *,
        wait: Callable[[float], object] = lambda seconds: None,
        slow_seconds: float = 10.0,
    ) -> None:
        super().__init__(store)
        self.steps = 0  # guarded by _lock
        self.trace: list[ObjectStep] = []  # guarded by _lock
        self._plan = plan or ObjectFaultPlan()  # guarded by _lock
        self._wait = wait
        self._slow_seconds = slow_seconds
        self._lock = threading.Lock()
        self._lost_at: ObjectStep | None = None  # guarded by _lock
        self._watcher: Callable[[ObjectStep], object] | None = None

    # Faults to come

    def fail_at(self, step: int, kind: FaultKind) -> None:
        """Lets the request of that number fail; `steps` is the number of the last request."""
        with self._lock:
            if step <= self.steps:
                raise InvalidRequest(f"step {step} has passed: the store is at step {self.steps}")
            self._plan.fail_at(step, kind)

    def crash_at(self, step: int, *, after: bool = False) -> None:
        """Loses power before, or right after, that request takes effect."""
        self.fail_at(step, FaultKind.CRASH_AFTER if after else FaultKind.CRASH_BEFORE)

    def go_down(self, *, from_step: int | None = None) -> None:
        """Makes the store unavailable from now on, or from that step on, until `come_up`."""
        with self._lock:
            self._plan.go_down(self.steps + 1 if from_step is None else from_step)

    def come_up(self) -> None:
        """Ends what `go_down` began."""
        with self._lock:
            self._plan.come_up()

    def watch(self, watcher: Callable[[ObjectStep], object] | None) -> None:
        """Calls the watcher before every request and after it took effect."""
        self._watcher = watcher

    def after_crash(self) -> ObjectStore:
        """The wrapped store, which the next start finds."""
        return self._store

    # Requests

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        """Writes an object in parts; a fault may break off the upload."""
        fault = self._step("put parts", key)
        if fault is FaultKind.PARTIAL:
            error = self._error(StoreUnavailable, "put parts", key, "the upload broke off")
            with self._lock:
                sent_bytes = int(size * self._plan.share())
            return self._store.put_parts(key, _break_off(parts, sent_bytes, error), size=size)
        if fault is FaultKind.REPEATED:
            parts = list(parts)
        return self._carry_out(
            "put parts", key, fault, lambda: self._store.put_parts(key, parts, size=size)
        )

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """The objects below a prefix; a fault may fail it before or after them."""
        return self._list_with_faults(prefix, self._store.list(prefix, start_after=start_after))

    def _list_with_faults(
        self, prefix: str, object_infos: Iterator[ObjectInfo]
    ) -> Iterator[ObjectInfo]:
        fault = self._step("list", prefix)
        if fault is not FaultKind.ERROR_AFTER:
            self._carry_out("list", prefix, fault, lambda: None)
            yield from object_infos
            return
        first = next(object_infos, None)
        if first is not None:
            yield first
        raise self._error(StoreUnavailable, "list", prefix, "it broke off")

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects; a fault may leave some of them."""
        shown = " ".join(keys)
        fault = self._step("delete", shown)
        if fault is FaultKind.PARTIAL:
            with self._lock:
                count = int(len(keys) * self._plan.share())
            self._store.delete(keys[:count])
        self._carry_out("delete", shown, fault, lambda: self._store.delete(keys))

    # Steps

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        fault = self._step(operation, key)
        return self._carry_out(operation, key, fault, lambda: call(self._store))

    def _step(self, operation: str, key: str) -> FaultKind | None:
        with self._lock:
            if self._lost_at is not None:
                raise PowerLoss(f"power was lost at step {self._lost_at}")
            self.steps += 1
            fault = self._plan.find_fault(self.steps)
            step = ObjectStep(self.steps, operation, key, fault)
            self.trace.append(step)
            if fault in (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER):
                self._lost_at = step
        if self._watcher is not None:
            self._watcher(step)
        return fault

    def _carry_out(
        self, operation: str, key: str, fault: FaultKind | None, call: Callable[[], T]
    ) -> T:
        match fault:
            case FaultKind.ERROR_BEFORE | FaultKind.PARTIAL:
                raise self._error(StoreUnavailable, operation, key, "the request did not arrive")
            case FaultKind.THROTTLED:
                raise self._error(StoreThrottled, operation, key, "too many requests")
            case FaultKind.CRASH_BEFORE:
                raise PowerLoss(f"power lost before {operation} {key}")
            case FaultKind.SLOW:
                self._wait(self._slow_seconds)
            case FaultKind.REPEATED:
                call()
        result = call()
        if self._watcher is not None:
            self._watcher(ObjectStep(self.steps, f"after {operation}", key, fault))
        match fault:
            case FaultKind.ERROR_AFTER:
                raise self._error(StoreUnavailable, operation, key, "the answer was lost")
            case FaultKind.CRASH_AFTER:
                raise PowerLoss(f"power lost after {operation} {key}")
        return result

    def _error(
        self, kind: type[StoreUnavailable], operation: str, key: str, cause: str
    ) -> StoreUnavailable:
        return failure(
            kind,
            store=self.name,
            operation=operation,
            key=key,
            cause=f"planned fault: {cause}",
            remedy="try again",
        )


def _break_off(
    parts: Iterable[Buffer], sent_bytes: int, error: StoreUnavailable
) -> Iterator[Buffer]:
    """Yields the parts up to this many bytes in all, then raises the error."""
    for part in parts:
        view = memoryview(part)
        if view.nbytes >= sent_bytes:
            yield view[:sent_bytes]
            break
        yield view
        sent_bytes -= view.nbytes
    raise error
