"""Two activities interleaved: one stops before its n-th call of disk or object store, while the
other runs, and goes on when the other has ended or waits for a lock.

`Interleaving` runs a pair; `steps` counts the calls of the first, so that a test can stop it before
each of them. The other may be stopped once as well, until the first has ended.

Threads    the two activities; a call on any other thread does not count.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest

from varve.foundation.errors import Corrupt, StoreError
from varve.object_store import ObjectStore
from varve.testing import FaultKind, FaultyObjectStore
from varve.testing.faulty_disk import FaultyFileSystem

_PROGRESS_SECONDS: Final = 0.05
"""An activity that makes no call for so long waits for a lock that the stopped one holds."""
_JOIN_SECONDS: Final = 60.0

_GONE: Final = ("another program removed it", "changed the topic meanwhile, restore again")
"""What a job says whose topic left the tier meanwhile."""

Activity = Callable[[], object]


@dataclass(slots=True)
class Outcome:
    """How an activity ended: with its result, or refused by an error of varve's."""

    result: object = None
    refusal: StoreError | None = None
    failure: BaseException | None = None


class _StoppingLock:
    """The lock of a disk; a thread that takes it first may have to stop."""

    def __init__(self, lock: threading.RLock, stop: Callable[[], None]) -> None:
        self._lock = lock
        self._stop = stop

    def __enter__(self) -> None:
        if not self._lock._is_owned():  # type: ignore[attr-defined]
            self._stop()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class StoppingStore(FaultyObjectStore):
    """No request fails, but the thread of each may have to stop before it."""

    def __init__(self, store: ObjectStore, stop: Callable[[], None]) -> None:
        super().__init__(store)
        self._stop = stop

    def _step(self, operation: str, key: str) -> FaultKind | None:
        self._stop()
        return super()._step(operation, key)


@dataclass
class Interleaving:
    """Runs two activities over a disk and an object store that it may stop."""

    steps: int = 0
    """The calls of the first activity so far."""
    was_blocked: bool = False
    """The second waited for a lock while the first was stopped."""
    _running: dict[int, str] = field(default_factory=dict)
    _calls: dict[str, int] = field(default_factory=dict)
    _stops: dict[str, int] = field(default_factory=dict)
    _second: threading.Thread | None = None
    _ended: dict[str, threading.Event] = field(default_factory=dict)

    def wrap_disk(self, disk: FaultyFileSystem) -> None:
        disk._lock = _StoppingLock(disk._lock, self._stop)  # type: ignore[assignment]

    def wrap_objects(self, objects: ObjectStore) -> StoppingStore:
        return StoppingStore(objects, self._stop)

    @contextmanager
    def stopping(self, *called: tuple[type, Sequence[str]]) -> Iterator[None]:
        """Methods of these classes count as calls, too."""

        def wrap(method: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **named: object) -> object:
                self._stop()
                return method(*arguments, **named)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for owner, names in called:
                for name in names:
                    patch.setattr(owner, name, wrap(getattr(owner, name)))
            yield

    def run(
        self, first: Activity, second: Activity, *, stop_first: int, stop_second: int = 0
    ) -> tuple[Outcome, Outcome]:
        """Both outcomes; the first stops before call `stop_first`, counted from 1.

        Where it makes fewer calls, the second runs after it.
        """
        self._calls = {"first": 0, "second": 0}
        self._stops = {"first": stop_first, "second": stop_second}
        self._ended = {name: threading.Event() for name in self._calls}
        outcomes = Outcome(), Outcome()
        self._second = self._thread("second", second, outcomes[1])
        one = self._thread("first", first, outcomes[0])
        one.start()
        self._join(one)
        if self._second.ident is None:
            self._second.start()
        self._join(self._second)
        self.steps = self._calls["first"]
        for outcome in outcomes:
            if outcome.failure is not None:
                raise outcome.failure
        return outcomes

    def _thread(self, name: str, activity: Activity, outcome: Outcome) -> threading.Thread:
        def run() -> None:
            self._running[threading.get_ident()] = name
            try:
                outcome.result = activity()
            except Corrupt as error:
                if any(text in str(error) for text in _GONE):
                    outcome.refusal = error
                else:
                    outcome.failure = error
            except StoreError as error:
                outcome.refusal = error
            except BaseException as error:
                outcome.failure = error
            finally:
                del self._running[threading.get_ident()]
                self._ended[name].set()

        return threading.Thread(target=run, name=name, daemon=True)

    def _stop(self) -> None:
        name = self._running.get(threading.get_ident())
        if name is None:
            return
        self._calls[name] += 1
        if self._calls[name] != self._stops[name]:
            return
        if name == "first":
            assert self._second is not None
            self._second.start()
            self._wait_for("second")
        else:
            self._wait_for("first", limit=_PROGRESS_SECONDS)

    def _wait_for(self, name: str, limit: float = _JOIN_SECONDS) -> None:
        """Until the other has ended, or makes no call any more."""
        waited = 0.0
        while not self._ended[name].is_set() and waited < limit:
            calls = self._calls[name]
            if not self._ended[name].wait(_PROGRESS_SECONDS) and calls == self._calls[name]:
                self.was_blocked = True
                return
            waited += _PROGRESS_SECONDS

    def _join(self, thread: threading.Thread) -> None:
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            stacks = [
                f"{name}:\n{''.join(traceback.format_stack(sys._current_frames()[ident])[-12:])}"
                for ident, name in self._running.items()
            ]
            raise AssertionError("the activities wait for each other\n" + "\n".join(stacks))
