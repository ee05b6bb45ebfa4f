"""Maps the operating system's errors to problems, each with its remedy.

One table classifies full disks, exhausted limits and broken disks for every package.
"""

import errno
from enum import Enum
from typing import Final

from varve.foundation.errors import DiskFull, Unavailable


class DiskProblem(Enum):
    """What an OSError says about the disk; the value is the remedy."""

    FULL = "free some space"
    NO_DESCRIPTORS = "raise the limit on open files (ulimit -n)"
    FILE_TOO_LARGE = "raise the limit on the size of files (ulimit -f)"
    WRONG_KIND = "move away the file or directory that has this name"
    DENIED = "grant the permission to read and write, and mount the disk for writing"
    BROKEN = "repair the disk"

    @property
    def remedy(self) -> str:
        return self.value


_PROBLEMS: Final = {
    errno.ENOSPC: DiskProblem.FULL,
    errno.EDQUOT: DiskProblem.FULL,
    errno.EMFILE: DiskProblem.NO_DESCRIPTORS,
    errno.ENFILE: DiskProblem.NO_DESCRIPTORS,
    errno.EFBIG: DiskProblem.FILE_TOO_LARGE,
    errno.EISDIR: DiskProblem.WRONG_KIND,
    errno.ENOTDIR: DiskProblem.WRONG_KIND,
    errno.EACCES: DiskProblem.DENIED,
    errno.EPERM: DiskProblem.DENIED,
    errno.EROFS: DiskProblem.DENIED,
}


def classify_error(error: OSError) -> DiskProblem:
    """The problem that an OSError indicates; BROKEN for every errno that the table lacks."""
    return _PROBLEMS.get(error.errno or 0, DiskProblem.BROKEN)


def describe_error(error: OSError, path: str | None = None) -> str:
    """The file and the reason: `/data/t-0/0.log: No space left on device`."""
    reason = error.strerror or str(error)
    where = error.filename if isinstance(error.filename, str) else path
    return reason if where is None else f"{where}: {reason}"


def to_store_error(
    error: OSError, what: str, *, path: str | None = None, then: str = "try again"
) -> Unavailable:
    """The error to raise instead: DiskFull for a full disk, else Unavailable.

    `what` names the operation, `path` the file if the error names none, `then` the action after the
    remedy.
    """
    problem = classify_error(error)
    kind = DiskFull if problem is DiskProblem.FULL else Unavailable
    return kind(f"{what}: {describe_error(error, path)}; {problem.remedy} and {then}")
