"""What becomes of an I/O error in a log directory outside its logs."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from varve.commit_log.log_state import NO_DESCRIPTORS, NO_ROOM
from varve.foundation.errors import DirectoryOffline, DiskFull, StoreError, Unavailable


class Failing(Protocol):
    """A log directory, as far as it can fail."""

    path: str

    def take_offline(self, failure: StoreError) -> None: ...


@contextlib.contextmanager
def failures(directory: Failing, doing: str) -> Iterator[None]:
    """Turns an OSError into ours."""
    try:
        yield
    except OSError as error:
        raise failed(directory, error, doing) from error


def failed(directory: Failing, error: OSError, doing: str) -> StoreError:
    """A full disk, or too many open files, refuses what was asked; anything else takes the
    directory offline.
    """
    at = f"{doing}: {error.filename or directory.path}: {error.strerror}; {remedy(error)}"
    if error.errno in NO_ROOM:
        return DiskFull(f"{at} and try again")
    if error.errno in NO_DESCRIPTORS:
        return Unavailable(f"{at} and try again")
    failure = DirectoryOffline(f"{at} and reopen")
    directory.take_offline(failure)
    return failure


def remedy(error: OSError) -> str:
    if error.errno in NO_ROOM:
        return "free some space"
    if error.errno in NO_DESCRIPTORS:
        return "raise the limit on open files (ulimit -n)"
    return "mend the disk or its permissions"
