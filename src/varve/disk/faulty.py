"""A disk in memory that loses power, fails calls or runs full at a chosen step.

A step is a call that changes something: a write, truncate, sync, rename, removal, directory sync,
changed time, or the creation of a file or directory. Steps count from 1, so `steps` after a run
that went well is the last step worth a fault. Calls refused by the rules (no such file) are no
steps.

Invariant  equal seeds, faults and calls give equal bytes.
Crash      strict POSIX: a file's name needs `sync_directory` even when the file itself is synced.
           A failed `sync` loses the file's unsynced bytes for good, though readers still see them.
Threads    one lock per file system around every call; the order of threads is not replayed.
"""

import errno
import random
import threading
from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

from varve.disk.durability import (
    Copier,
    DiskDirectory,
    DiskFile,
    Journal,
    rebuild,
    total_file_bytes,
)
from varve.disk.faults import Fault, FaultPlan, Step, copy_error, torn_size
from varve.disk.file_system import Buffer, Closing, File, FileInfo, sync_each
from varve.disk.memory import HeldLocks, MemoryLock
from varve.disk.tree import Change, Tree, system_error
from varve.foundation.clock import Clock
from varve.foundation.errors import PowerLoss


class CrashMode(StrEnum):
    """What a crash leaves behind."""

    LOSE_UNSYNCED = "lose unsynced"
    """Power loss at its worst: only what was synced."""
    KEEP_ALL = "keep all"
    """The process is killed: all is there, and what was unsynced still is."""
    RANDOM = "random"
    """Power loss: some of what was unsynced, chosen by the seed."""


class FaultyFile(Closing):
    """A handle on a file of the faulty disk."""

    __slots__ = ("_node", "_system", "_writable", "path")

    def __init__(
        self, path: str, node: DiskFile, system: "FaultyFileSystem", *, writable: bool
    ) -> None:
        self.path = path
        self._node: DiskFile | None = node
        self._system = system
        self._writable = writable

    def write_at(self, position: int, *buffers: Buffer) -> None:
        with self._system._lock:
            node = self._get_node()
            if not self._writable:
                raise system_error(errno.EBADF, self.path)
            if position < 0:
                raise system_error(errno.EINVAL, self.path)
            self._system._write_locked(self.path, node, position, b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        with self._system._lock:
            node = self._get_node()
            if position < 0 or size < 0:
                raise system_error(errno.EINVAL, self.path)
            return bytes(memoryview(node.content)[position : position + size])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def size(self) -> int:
        with self._system._lock:
            return len(self._get_node().content)

    def truncate(self, size: int) -> None:
        with self._system._lock:
            node = self._get_node()
            if size < 0 or not self._writable:
                raise system_error(errno.EINVAL, self.path)
            self._system._truncate_locked(self.path, node, size)

    def sync(self) -> None:
        with self._system._lock:
            if self._node is None:
                raise system_error(errno.EBADF, self.path)
            self._system._sync_locked(self.path, self._node)

    def close(self) -> None:
        """Harmless even after the power is gone, so that `finally` and `with` stay quiet."""
        self._node = None

    def _get_node(self) -> DiskFile:
        self._system._check_locked(self.path)
        if self._node is None:
            raise system_error(errno.EBADF, self.path)
        return self._node


class FaultyFileSystem:
    """A disk for crash tests: run a store on it, break it at a step, open what it left."""

    def __init__(self, clock: Clock, *, seed: int = 0) -> None:
        self.steps = 0
        self.trace: list[Step] = []
        self._clock = clock
        self._seed = seed
        self._lock = threading.RLock()
        self._tree = Tree(DiskDirectory(clock.now_ms()))  # guarded by _lock
        self._journal = Journal()  # guarded by _lock
        self._held = HeldLocks()  # guarded by _lock
        self._lost_at: Step | None = None  # guarded by _lock
        self._plan = FaultPlan()
        self._capacity_bytes: int | None = None

    # Faults

    def crash_at(self, step: int) -> None:
        """Lose power at this step: a write is torn, any other call does nothing."""
        self._check_ahead(step)
        self._plan.crash_step = step

    def fail_at(self, step: int, error: OSError, *, after_bytes: int = 0) -> None:
        """Fail this step; a write first writes so many bytes."""
        self._check_ahead(step)
        self._plan.once[step] = Fault(error, after_bytes)

    def fail_from(self, step: int, error: OSError, *, after_bytes: int = 0) -> None:
        """Fail this step and all later ones; reads go on."""
        self._plan.lasting = (step, Fault(error, after_bytes))

    def fail_under(self, path: str, error: OSError) -> None:
        """Fail every call below this path, reads too: a broken disk among whole ones."""
        self._plan.broken_paths[path.rstrip("/")] = error

    def full_at(self, capacity_bytes: int | None) -> None:
        """Refuse growth beyond this sum of file sizes, after writing what fits; None: no limit."""
        self._capacity_bytes = capacity_bytes

    def mend(self) -> None:
        """Take back every planned fault but the capacity; lost power stays lost."""
        self._plan = FaultPlan()

    def used_bytes(self) -> int:
        """The sum of all file sizes, as `full_at` counts it."""
        with self._lock:
            return total_file_bytes((self._tree.root,))

    def describe_trace(self, last_count: int = 20) -> str:
        """The last steps, one a line."""
        return "\n".join(str(step) for step in self.trace[-last_count:])

    def after_crash(self, mode: CrashMode, seed: int = 0) -> "FaultyFileSystem":
        """The disk as the next start finds it, without faults and locks; this one stays."""
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

    # Files and directories

    def open(self, path: str) -> FaultyFile:
        with self._lock:
            self._check_locked(path)
            return FaultyFile(path, self._get_file_locked(path), self, writable=False)

    def open_writable(self, path: str) -> FaultyFile:
        with self._lock:
            return FaultyFile(path, self._find_or_create_locked(path), self, writable=True)

    def open_private(self, path: str) -> FaultyFile:
        return self.open_writable(path)  # nobody else is there

    def scan(self, path: str) -> list[FileInfo]:
        with self._lock:
            self._check_locked(path)
            return self._tree.scan(path)

    def names(self, path: str) -> list[str]:
        with self._lock:
            self._check_locked(path)
            return self._tree.names(path)

    def info(self, path: str) -> FileInfo:
        with self._lock:
            self._check_locked(path)
            return self._tree.info(path)

    def exists(self, path: str) -> bool:
        with self._lock:
            self._check_locked(path)
            return self._tree.exists(path)

    def read(self, path: str) -> bytes:
        with self._lock:
            self._check_locked(path)
            return bytes(self._tree.get_file(path).content)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._check_locked(source)
            self._check_locked(target)
            change = self._tree.plan_rename(source, target)
            self._change_locked("rename", source, change, f"to {target}")

    def remove(self, path: str) -> None:
        with self._lock:
            self._check_locked(path)
            self._change_locked("remove", path, self._tree.plan_remove(path))

    def remove_tree(self, path: str) -> None:
        with self._lock:
            self._check_locked(path)
            for info in self._tree.scan(path):
                child = f"{path}/{info.name}"
                if info.is_directory:
                    self.remove_tree(child)
                else:
                    self.remove(child)
            change = self._tree.plan_remove_directory(path)
            self._change_locked("remove directory", path, change)

    def make_directory(self, path: str) -> None:
        with self._lock:
            self._check_locked(path)
            for missing in self._tree.missing_directories(path):
                change = self._tree.plan_link(missing, DiskDirectory(self._clock.now_ms()))
                self._change_locked("make directory", missing, change)

    def sync_directory(self, path: str) -> None:
        """Make the names durable. After a failure a later sync may still do so."""
        with self._lock:
            self._check_locked(path)
            directory = self._tree.get_directory(path)
            self._step_locked("sync directory", path)
            self._journal.commit(directory)

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        """Each is a step of its own: power may go when some are durable and others are not."""
        return sync_each(files)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Durable, for a file, with its next sync."""
        with self._lock:
            self._check_locked(path)
            node = self._tree.get(path)
            self._step_locked("set modified", path, str(modified_ms))
            node.modified_ms = modified_ms

    def lock(self, path: str) -> MemoryLock:
        with self._lock:
            return self._held.take(path, self._find_or_create_locked(path))

    # Steps

    def _check_ahead(self, step: int) -> None:
        if step <= self.steps:
            raise ValueError(f"step {step} has passed: the disk is at step {self.steps}")

    def _write_locked(self, path: str, node: DiskFile, position: int, data: bytes) -> None:
        failure: BaseException | None = None
        size = len(data)
        try:
            self._step_locked("write", path, f"at {position} size {size}")
        except PowerLoss as loss:
            failure = loss
            size = torn_size(random.Random(self._seed * 1_000_003 + self.steps), position, size)
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

    def _truncate_locked(self, path: str, node: DiskFile, size: int) -> None:
        self._step_locked("truncate", path, f"to {size}")
        growth = size - len(node.content)
        if growth > 0 and self._fitting_size_locked(node, len(node.content), growth) < growth:
            raise system_error(errno.ENOSPC, path)
        node.resize(size)
        node.modified_ms = self._clock.now_ms()

    def _sync_locked(self, path: str, node: DiskFile) -> None:
        try:
            self._check_locked(path)
            self._step_locked("sync", path)
        except OSError:
            node.lose_unsynced()
            raise
        node.sync()

    def _change_locked(self, operation: str, path: str, change: Change, detail: str = "") -> None:
        if change:
            self._step_locked(operation, path, detail)
            self._tree.apply(change, self._clock.now_ms())
            self._journal.note(change)

    def _find_or_create_locked(self, path: str) -> DiskFile:
        self._check_locked(path)
        node = self._tree.find_file(path)
        if node is None:
            now_ms = self._clock.now_ms()
            node = DiskFile(now_ms, durable_modified_ms=now_ms)
            self._change_locked("create", path, self._tree.plan_link(path, node))
        assert isinstance(node, DiskFile)
        return node

    def _get_file_locked(self, path: str) -> DiskFile:
        node = self._tree.get_file(path)
        assert isinstance(node, DiskFile)
        return node

    def _check_locked(self, path: str) -> None:
        if self._lost_at is not None:
            raise PowerLoss(f"power was lost at step {self._lost_at}")
        self._plan.check_path(path)

    def _step_locked(self, operation: str, path: str, detail: str = "") -> None:
        """Count the call that is about to take effect, and raise what is planned for it."""
        self.steps += 1
        step = Step(self.steps, operation, path, detail)
        self.trace.append(step)
        if self.steps == self._plan.crash_step:
            self._lost_at = step
            raise PowerLoss(f"power lost at step {step}")
        fault = self._plan.find_fault(self.steps)
        if fault is not None:
            raise copy_error(fault.error, path)

    def _fitting_size_locked(self, node: DiskFile, position: int, size: int) -> int:
        """How much of a write fits; growth counts, gaps included, overwriting does not."""
        if self._capacity_bytes is None:
            return size
        growth = position + size - len(node.content)
        free = max(0, self._capacity_bytes - total_file_bytes((self._tree.root,)))
        return size if growth <= free else max(0, size - (growth - free))
