"""FaultyFileSystem, a disk in memory that loses power, fails calls or runs full at a chosen step.

A step is a call that changes something: a write, truncate, sync, rename, removal, directory sync,
changed time, or the creation of a file or directory. Steps count from 1, so after a run without
faults `steps` is the last step at which to plan one. A call that raises by itself, such as for a
missing file, is not a step.

Invariant  the same seed, faults and calls write the same bytes.
Crash      strict POSIX: a file's name needs `sync_directory` even when the file itself is synced.
           A failed `sync` loses the file's unsynced bytes for good, though readers still see them.
Threads    one lock per file system around every call; the order of threads is not replayed.
"""

import errno
import os
import random
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, assert_never

from varve.disk import MemoryFileSystem
from varve.disk.tree import Change, DirectoryNode, FileNode, Node, Tree, system_error
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, PowerLoss
from varve.testing.durability import (
    SECTOR_BYTES,
    Copier,
    DiskDirectory,
    DiskFile,
    Journal,
    TreeDescription,
    describe_visible,
    rebuild,
    total_file_bytes,
)


class CrashMode(StrEnum):
    """What a crash leaves on the disk."""

    LOSE_UNSYNCED = "lose unsynced"
    """A power loss at its worst: only synced data survives."""
    KEEP_ALL = "keep all"
    """A killed process: everything survives; unsynced data stays unsynced."""
    RANDOM = "random"
    """A power loss: synced data survives, and a part of the unsynced data, chosen by the seed."""


class Step(NamedTuple):
    """One call that changes the disk, for the message of a failed test."""

    number: int
    operation: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.number}: {self.operation} {self.path} {self.detail}".rstrip()


class DiskFault(NamedTuple):
    """The error of a failing call; a write fails after `after_bytes` bytes."""

    error: OSError
    after_bytes: int


class DiskFaultPlan:
    """The planned faults, by step number or by path."""

    def __init__(self) -> None:
        self.crash_step: int | None = None
        self.once: dict[int, DiskFault] = {}
        self.lasting: tuple[int, DiskFault] | None = None
        self.broken_paths: dict[str, OSError] = {}

    def find_fault(self, step: int) -> DiskFault | None:
        """The fault of this step, if any; one for this step alone comes before a lasting one."""
        fault = self.once.get(step)
        if fault is None and self.lasting is not None and step >= self.lasting[0]:
            return self.lasting[1]
        return fault

    def check_path(self, path: str) -> None:
        for broken, error in self.broken_paths.items():
            if path == broken or path.startswith(broken + "/"):
                raise _copy_error(error, path)


def _copy_error(error: OSError, path: str) -> OSError:
    """A fresh error of the same number, naming the path."""
    code = error.errno or errno.EIO
    return OSError(code, error.strerror or os.strerror(code), path)


def _torn_size(source: random.Random, position: int, size: int) -> int:
    """The bytes written before a power loss: none, all, any prefix or whole sectors."""
    torn = source.randint(0, size)
    sector_end = (position + torn) // SECTOR_BYTES * SECTOR_BYTES
    return source.choice((0, size, torn, max(0, sector_end - position)))


class FaultyFileSystem(MemoryFileSystem):
    """A disk for crash tests: run a store on it, fail it at a step, open what it left."""

    def __init__(self, clock: Clock, *, seed: int = 0) -> None:
        super().__init__(clock)
        self.steps = 0
        self.trace: list[Step] = []
        self._seed = seed
        self._journal = Journal()  # guarded by _lock
        self._lost_at: Step | None = None  # guarded by _lock
        self._plan = DiskFaultPlan()
        self._capacity_bytes: int | None = None
        self._watcher: Callable[[Step, FaultyFileSystem], object] | None = None  # guarded by _lock
        self._earlier: dict[DiskFile, DiskFile] = {}  # guarded by _lock

    # Faults

    def crash_at(self, step: int) -> None:
        """Loses power at this step: a write is torn, any other call does nothing."""
        self._check_future(step)
        self._plan.crash_step = step

    def fail_at(self, step: int, error: OSError, *, after_bytes: int = 0) -> None:
        """Fails this step; a write first writes this many bytes."""
        self._check_future(step)
        self._plan.once[step] = DiskFault(error, after_bytes)

    def fail_from(self, step: int, error: OSError, *, after_bytes: int = 0) -> None:
        """Fails this step and all later ones; reads still succeed."""
        self._plan.lasting = (step, DiskFault(error, after_bytes))

    def fail_under(self, path: str, error: OSError) -> None:
        """Fails every call below this path, reads included: one broken disk among several."""
        self._plan.broken_paths[path.rstrip("/")] = error

    def full_at(self, capacity_bytes: int | None) -> None:
        """Limits the sum of file sizes: a write beyond it writes what fits and fails."""
        self._capacity_bytes = capacity_bytes

    def mend(self) -> None:
        """Cancels every planned fault except the capacity; lost power stays lost."""
        self._plan = DiskFaultPlan()

    def used_bytes(self) -> int:
        """The sum of all file sizes, as `full_at` counts it."""
        with self._lock:
            return total_file_bytes((self._tree.root,))

    def describe_trace(self, last_count: int = 20) -> str:
        """The last steps, one a line."""
        return "\n".join(str(step) for step in self.trace[-last_count:])

    def after_crash(self, mode: CrashMode, seed: int = 0) -> "FaultyFileSystem":
        """A new disk as the next start finds it, without faults and file locks."""
        with self._lock:
            system = FaultyFileSystem(self._clock, seed=seed)
            root = self._tree.root
            assert isinstance(root, DiskDirectory)
            match mode:
                case CrashMode.KEEP_ALL:
                    copier = Copier()
                    system._tree = Tree(copier.copy_directory(root))
                    system._journal = copier.copy_journal(self._journal)
                case CrashMode.LOSE_UNSYNCED:
                    system._tree = Tree(
                        rebuild(root, lambda d: d.durable, lambda f: bytearray(f.durable))
                    )
                case CrashMode.RANDOM:
                    source = random.Random(seed)
                    entries = self._journal.surviving_entries(source)
                    system._tree = Tree(
                        rebuild(
                            root,
                            lambda d: entries.get(d, d.durable),
                            lambda f: f.surviving_content(source),
                        )
                    )
                case _:
                    assert_never(mode)
            return system

    # Images

    def watch(self, watcher: "Callable[[Step, FaultyFileSystem], object] | None") -> None:
        """Calls the watcher before every step with the disk that a crash at this step leaves.

        That disk has lost its power: `after_crash` returns what the next start finds. It equals the
        disk of a run with `crash_at(step)`, as long as both do the same calls before.
        """
        with self._lock:
            self._watcher = watcher
            self._earlier.clear()

    def image(self) -> "FaultyFileSystem":
        """The disk as it is now, without power; it shares its files with other images."""
        with self._lock:
            return self._image_locked(Copier(self._earlier), Step(self.steps, "end", "", ""))

    def _image_locked(self, copier: Copier, step: Step) -> "FaultyFileSystem":
        image = FaultyFileSystem(self._clock, seed=self._seed)
        image._tree = Tree(copier.copy_directory(self._tree.root))
        image._journal = copier.copy_journal(self._journal)
        image.steps, image.trace, image._lost_at = self.steps, self.trace[-20:], step
        return image

    def describe_content(self, *, only_visible: bool = False) -> object:
        """The disk as a value to compare and hash.

        Disks that are equal find the same after any crash; those that are only visibly so, if none
        crashes.
        """
        with self._lock:
            if only_visible:
                return describe_visible(self._tree.root)
            description = TreeDescription()
            return description.describe(self._tree.root), description.describe_journal(
                self._journal
            )

    # Steps

    def _check_future(self, step: int) -> None:
        if step <= self.steps:
            raise InvalidRequest(f"step {step} has passed: the disk is at step {self.steps}")

    def _write_locked(self, path: str, node: FileNode, position: int, data: bytes) -> None:
        assert isinstance(node, DiskFile)
        failure: BaseException | None = None
        size = len(data)
        try:
            self._step_locked("write", path, f"at {position} size {size}", (node, position, data))
        except PowerLoss as loss:
            failure = loss
            size = self._torn_size_locked(position, size)
        except OSError as error:
            failure = error
            fault = self._plan.find_fault(self.steps)
            size = 0 if fault is None else min(size, fault.after_bytes)
        fitting = self._fitting_size_locked(node, position, size)
        if fitting < size:
            size = fitting
            failure = failure or system_error(errno.ENOSPC, path)
        if size:
            node.write(position, data[:size])
            node.modified_ms = self._clock.now_ms()
        if failure is not None:
            raise failure

    def _truncate_locked(self, path: str, node: FileNode, size: int) -> None:
        assert isinstance(node, DiskFile)
        self._step_locked("truncate", path, f"to {size}")
        growth = size - len(node.content)
        if growth > 0 and self._fitting_size_locked(node, len(node.content), growth) < growth:
            raise system_error(errno.ENOSPC, path)
        node.resize(size)
        node.modified_ms = self._clock.now_ms()

    def _sync_locked(self, path: str, node: FileNode) -> None:
        assert isinstance(node, DiskFile)
        try:
            self._check_locked(path)
            self._step_locked("sync", path)
        except OSError:
            node.lose_unsynced()
            raise
        node.sync()

    def _sync_directory_locked(self, path: str, directory: DirectoryNode) -> None:
        """Makes the names durable. After a failure a later sync may still do so."""
        self._step_locked("sync directory", path)
        self._journal.commit(directory)

    def _set_modified_locked(self, path: str, node: Node, modified_ms: int) -> None:
        """Sets the time; for a file it becomes durable with the next sync."""
        self._step_locked("set modified", path, str(modified_ms))
        node.modified_ms = modified_ms

    def _change_locked(self, operation: str, path: str, change: Change, detail: str = "") -> None:
        if change:
            self._step_locked(operation, path, detail)
            super()._change_locked(operation, path, change)
            self._journal.note(change)

    def _new_file(self) -> FileNode:
        now_ms = self._clock.now_ms()
        return DiskFile(now_ms, durable_modified_ms=now_ms)

    def _new_directory(self) -> DirectoryNode:
        return DiskDirectory(self._clock.now_ms())

    def _check_locked(self, path: str) -> None:
        if self._lost_at is not None:
            raise PowerLoss(f"power was lost at step {self._lost_at}")
        self._plan.check_path(path)

    def _step_locked(
        self,
        operation: str,
        path: str,
        detail: str = "",
        write: tuple[DiskFile, int, bytes] | None = None,
    ) -> None:
        """Counts the call that is about to take effect, and raises its planned fault."""
        self.steps += 1
        step = Step(self.steps, operation, path, detail)
        self.trace.append(step)
        if self._watcher is not None:
            copier = Copier(self._earlier)
            if write is not None:
                self._tear_locked(copier, *write)
            self._watcher(step, self._image_locked(copier, step))
        if self.steps == self._plan.crash_step:
            self._lost_at = step
            raise PowerLoss(f"power lost at step {step}")
        fault = self._plan.find_fault(self.steps)
        if fault is not None:
            raise _copy_error(fault.error, path)

    def _torn_size_locked(self, position: int, size: int) -> int:
        return _torn_size(random.Random(self._seed * 1_000_003 + self.steps), position, size)

    def _tear_locked(self, copier: Copier, node: DiskFile, position: int, data: bytes) -> None:
        """The copy has as much of this write as a power loss leaves."""
        size = self._torn_size_locked(position, len(data))
        size = self._fitting_size_locked(node, position, size)
        if size:
            copier.copy_torn(node, position, data[:size], self._clock.now_ms())

    def _fitting_size_locked(self, node: DiskFile, position: int, size: int) -> int:
        """The bytes of a write that fit; growth counts, including gaps, overwriting does not."""
        if self._capacity_bytes is None:
            return size
        growth = position + size - len(node.content)
        free = max(0, self._capacity_bytes - total_file_bytes((self._tree.root,)))
        return size if growth <= free else max(0, size - (growth - free))
