"""Which step of a faulty disk breaks, and how.

Invariant  a plan only says what happens; the file system that asks it makes it happen.
"""

import errno
import os
import random
from typing import NamedTuple

from varve.disk.durability import SECTOR_BYTES


class Step(NamedTuple):
    """One changing call, for the message of a failed test."""

    number: int
    operation: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.number}: {self.operation} {self.path} {self.detail}".rstrip()


class Fault(NamedTuple):
    """A call that fails, a write after so many bytes."""

    error: OSError
    after_bytes: int


class FaultPlan:
    """The faults to come, by step number or by path."""

    def __init__(self) -> None:
        self.crash_step: int | None = None
        self.once: dict[int, Fault] = {}
        self.lasting: tuple[int, Fault] | None = None
        self.broken_paths: dict[str, OSError] = {}

    def find_fault(self, step: int) -> Fault | None:
        """What fails at this step; a fault of its own goes before the lasting one."""
        fault = self.once.get(step)
        if fault is None and self.lasting is not None and step >= self.lasting[0]:
            return self.lasting[1]
        return fault

    def check_path(self, path: str) -> None:
        for broken, error in self.broken_paths.items():
            if path == broken or path.startswith(broken + "/"):
                raise copy_error(error, path)


def copy_error(error: OSError, path: str) -> OSError:
    """A fresh error of the same number, naming the path."""
    code = error.errno or errno.EIO
    return OSError(code, error.strerror or os.strerror(code), path)


def torn_size(source: random.Random, position: int, size: int) -> int:
    """How much of a write was made when the power went: none, all, any prefix or whole sectors."""
    torn = source.randint(0, size)
    sector_end = (position + torn) // SECTOR_BYTES * SECTOR_BYTES
    return source.choice((0, size, torn, max(0, sector_end - position)))
