"""VirtualStore, a store for tests: in memory, with a manual clock and planned power losses.

Invariant  deterministic: no thread runs, the clock stands still, and the same calls with the same
           seed write the same bytes.
Crash      `crash_at` and `crash_now` leave what a real disk may; `reopen` is the next start.
Threads    one; any thread may use the store itself.
"""

import os
import random
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypedDict, Unpack

import varve
from varve.commit_log.check import Finding, Severity, inspect_directory
from varve.commit_log.check.partition import PartitionContext
from varve.disk import FileSystem, PowerLoss, RealFileSystem
from varve.embedded import CleanResult, Store
from varve.foundation.clock import ManualClock
from varve.foundation.closing import Closing
from varve.foundation.errors import Closed, Corrupt, InvalidRequest
from varve.foundation.settings import GivenValue
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

START_MS: Final = 1_700_000_000_000
"""14 November 2023; any fixed time would do."""
_MEMORY_ROOT: Final = "/data"


class Length(TypedDict, total=False):
    """A duration as the sum of its parts."""

    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float


class VirtualStore(Closing):
    """A store whose clock and power the test controls.

    Without a directory it is in memory. `settings` are those of `varve.open`; `seed` determines
    random choices, such as how much of a torn write a crash leaves. `objects` is the object store
    of its remote tier, by default one in memory that survives crashes. `clock` replaces the manual
    clock, which stands still.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, GivenValue] | None = None,
        directory: str | os.PathLike[str] | None = None,
        now_ms: int = START_MS,
        seed: int = 0,
        objects: ObjectStore | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.objects = objects or MemoryObjectStore()
        self.clock = clock or ManualClock(now_ms)
        self._settings = dict(settings or {})
        self._seed = seed
        self._memory = FaultyFileSystem(self.clock, seed=seed) if directory is None else None
        self._path = _MEMORY_ROOT if directory is None else os.fspath(directory)
        self._open_count = 0
        self._store: Store | None = None
        self._is_crashed = False
        self._open()

    @property
    def fs(self) -> FileSystem:
        """The file system of the store, for inspection."""
        return self._memory or RealFileSystem()

    @property
    def path(self) -> str:
        """The log directory."""
        return self._path

    @property
    def store(self) -> Store:
        """The open store; after a crash `reopen` first."""
        if self._store is None:
            raise Closed("the kit's store is closed or lost its power; call reopen() first")
        return self._store

    @property
    def steps(self) -> int:
        """How many changes the disk in memory has seen: writes, syncs, renames and the like."""
        return self._get_memory("steps").steps

    def _open(self) -> None:
        self._open_count += 1
        self._store = varve.open(
            self._path,
            settings=self._settings,
            fs=self.fs,
            clock=self.clock,
            random=random.Random(self._seed * 1_000_003 + self._open_count),
            maintain=False,
            objects=self.objects,
        )

    # Time and background work

    @property
    def now_ms(self) -> int:
        """The time of the clock, in milliseconds since 1970."""
        return self.clock.now_ms()

    def advance(self, **length: Unpack[Length]) -> int:
        """Moves the clock, as by `days=1, hours=2`, and runs nothing; returns the new time in ms.

        The length is a sum of days, hours, minutes, seconds and milliseconds.
        """
        self.clock.advance(to_milliseconds(length))
        return self.now_ms

    def run_background(self) -> None:
        """Does all work that the store's threads would have done by now: flush, roll, compact."""
        self.store.run_once(self.now_ms)

    def clean_now(
        self, topic: str | None = None, partition: int | None = None, *, roll: bool = True
    ) -> list[CleanResult]:
        """Compacts and expires one topic or all, whatever their dirty ratio.

        The active segments are rolled first, because active segments are not cleaned; with
        `roll=False` they stay active.
        """
        return self.store.clean(topic, partition, roll=roll)

    # Crashes

    def crash_at(self, step: int) -> "PlannedCrash":
        """Cuts the power at the n-th change of the disk from now on; 1 is the next.

        Used as a context manager, the result catches the crash, and `happened` says whether there
        was one. Otherwise the call that meets the crash raises PowerLoss.
        """
        if step < 1:
            raise InvalidRequest(f"crash at step {step}: the next change of the disk is step 1")
        memory = self._get_memory("crash_at")
        memory.crash_at(memory.steps + step)
        return PlannedCrash(self)

    def crash_now(self) -> None:
        """Simulates a power loss, or on a real directory a killed process."""
        self.store.abandon()
        self._store = None
        self._is_crashed = True

    def reopen(self, mode: CrashMode = CrashMode.LOSE_UNSYNCED) -> Store:
        """Starts again: after a crash, on what the disk kept according to `mode`; else cleanly.

        A real directory keeps everything, because only a killed process is simulated there.
        """
        if self._store is not None:
            if self._has_lost_power():
                self.crash_now()
            else:
                self._store.close()
        if self._is_crashed and self._memory is not None:
            self._memory = self._memory.after_crash(mode, self._seed + self._open_count)
        self._is_crashed = False
        self._open()
        return self.store

    def _has_lost_power(self) -> bool:
        if self._memory is None:
            return False
        try:
            self._memory.exists(self._path)
        except PowerLoss:
            return True
        return False

    def _get_memory(self, operation: str) -> FaultyFileSystem:
        if self._memory is None:
            raise InvalidRequest(
                f"{operation} needs a disk in memory, and this kit is on {self._path}; leave out "
                "the directory"
            )
        return self._memory

    # The end

    def check(self) -> list[Finding]:
        """Checks every invariant of the closed directory, as `varve check` does."""
        context = PartitionContext(now_ms=self.now_ms, deep=True)
        return inspect_directory(self.fs, self._path, context).findings

    def close(self) -> None:
        """Closes the store; raises Corrupt when its directory breaks an invariant."""
        if self._store is None:
            return
        if self._has_lost_power():
            self.crash_now()
            return
        store, self._store = self._store, None
        store.close()
        for finding in self.check():
            if finding.severity is Severity.ERROR:
                raise Corrupt(f"{finding.path}: {finding.rule}: {finding.message}")


def to_milliseconds(length: Length) -> int:
    """Raises InvalidRequest for a negative duration."""
    duration = timedelta(**length)
    if duration < timedelta(0):
        raise InvalidRequest(f"the clock cannot go back by {-duration}; time only advances")
    return duration // timedelta(milliseconds=1)


class PlannedCrash:
    """A planned crash; `happened` says whether it occurred within the `with` block."""

    def __init__(self, kit: VirtualStore) -> None:
        self._kit = kit
        self.happened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.happened = isinstance(error, PowerLoss)
        if not self.happened:
            self._kit._get_memory("crash_at").mend()
        return self.happened
