"""I/O errors of derived files: key indexes and segments that are not yet part of the log.

Invariant  they fail only their partition, because the log works without these files; other I/O
           errors are those of the log (`commit_log/health.py`).
"""

import errno
import re
from typing import Final

from varve.disk import DiskProblem, classify_error, to_store_error
from varve.foundation.errors import Unavailable

# Key indexes, their temporary and spill files, and a new segment until it is swapped in.
_DERIVED: Final = re.compile(r".*\.(keys|cleaned)(\.tmp|\.run)?")


def is_of_derived_file(error: OSError) -> bool:
    """Whether the error is of a file that the log does not need.

    A missing file is not a failure: it was deleted with its segment.
    """
    if isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return False
    return _DERIVED.fullmatch(error.filename) is not None


def is_partition_failure(error: OSError) -> bool:
    """Whether the error fails only the partition, because it says nothing about the log's disk."""
    # A limit of the process on file sizes refuses the write and leaves everything as it was.
    return is_of_derived_file(error) or error.errno == errno.EFBIG


def partition_failure(error: OSError, doing: str) -> Unavailable:
    """The error of the partition for a failed derived file."""
    then = "try again, the log is as it was"
    if classify_error(error) in (DiskProblem.DENIED, DiskProblem.BROKEN):
        then = f"{then}; or delete the file: it is rebuilt"
    return to_store_error(error, doing, then=then)
