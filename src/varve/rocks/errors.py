"""Converts errors of RocksDB, and of the disk below it, to `StoreError`."""

from typing import Final

from rocksdict import DbClosedError

from varve.foundation.errors import Closed, Corrupt, DiskFull, Locked, StoreError, Unavailable

MISSING_RESOURCES: Final = (
    "Too many open files",
    "Cannot allocate memory",
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
)
"""Failures of the process or the disk; the database itself is intact."""


def rocks_failure(error: Exception, what: str) -> StoreError:
    """The error to raise instead; only its text says which kind a RocksDB error is."""
    reason = " ".join(str(error).split())
    if isinstance(error, DbClosedError):
        return Closed(f"{what}: {reason}")
    if reason.startswith("Corruption") or _is_lost_file(reason):
        return Corrupt(f"{what}: {reason}")
    if "No space left" in reason or "quota exceeded" in reason:
        return DiskFull(f"{what}: {reason}; free some space and open the store again")
    if "/LOCK:" in reason and not reason.endswith(MISSING_RESOURCES):
        return Locked(f"{what}: {reason}; close the store that has it open")
    return Unavailable(
        f"{what}: {reason}; repair the disk or its permissions and open the store again"
    )


def _is_lost_file(reason: str) -> bool:
    """Whether a data file is missing; writes to a removed directory lack `for random read`."""
    return "No such file" in reason and "for random read" in reason


def open_failure(error: Exception, path: str) -> StoreError:
    """The error for a failed open: `Corrupt`, unless the process lacks a resource."""
    failure = rocks_failure(error, f"open of {path}")
    if isinstance(failure, Unavailable) and not isinstance(failure, DiskFull | Locked):
        if any(resource in str(failure) for resource in MISSING_RESOURCES):
            return failure
        return Corrupt(f"open of {path}: {' '.join(str(error).split())}")
    return failure
