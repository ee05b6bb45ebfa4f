"""Directories for the files of a task, which may hold records, among the temporary ones.

Layout     `varve-scratch-*`, locked by its task as long as it is in use.
Crash      what a killed task leaves is removed by the next one of the same user on that machine,
           and by an erasure before it begins.
Threads    any, and any number of processes.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PREFIX: Final = "varve-scratch-"


@contextmanager
def scratch() -> Iterator[str]:
    """A directory for files that leave with the task."""
    sweep_scratch()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep_scratch() -> None:
    """Removes the directories of tasks that are no more."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [one.path for one in entries if one.name.startswith(_PREFIX)]
    for path in found:
        try:
            lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # It is in use, gone meanwhile, or somebody else's.
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[str, int]:
    """One that is locked; who sweeps may take it away before it is."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            lock = _lock(path, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue
        if os.path.isdir(path):
            return path, lock
        os.close(lock)


def _lock(path: str, how: int) -> int:
    """Locks a directory, as long as what is given is open; raises OSError."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, how)
    except OSError:
        os.close(lock)
        raise
    return lock
