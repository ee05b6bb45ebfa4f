"""Files that cleaning makes of the log, and what becomes of an I/O error of theirs.

Invariant  such an error stays with its partition: the log does not need these files, it can be
           read and written without them. Errors of the log's own files are the directory's.
"""

import errno
import re
from typing import Final

from varve.commit_log.directory_failure import remedy
from varve.commit_log.log_state import NO_DESCRIPTORS, NO_ROOM
from varve.foundation.errors import DiskFull, Unavailable

# Key indexes, what is written aside for them, and a new segment until it is swapped in.
_DERIVED: Final = re.compile(r".*\.(keys|cleaned)(\.tmp|\.run)?")
_REMEDIES: Final = {
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EISDIR: "move the directory of that name away",
    errno.ENOTDIR: "move away what has the name of its directory",
}


def is_of_derived_file(error: OSError) -> bool:
    """Whether a file failed that the log does not need.

    One that is missing is no failure: it went with its segment.
    """
    if isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return False
    return _DERIVED.fullmatch(error.filename) is not None


def is_partition_failure(error: OSError) -> bool:
    """Whether an error says nothing about the disk that the log lies on."""
    # A limit of the process on file sizes refuses the write and leaves everything as it was.
    return is_of_derived_file(error) or error.errno == errno.EFBIG


def partition_failure(error: OSError, doing: str) -> Unavailable:
    """What the partition has to say of it."""
    at = f"{doing}: {error.filename}: {error.strerror}; "
    if error.errno in NO_ROOM:
        return DiskFull(f"{at}{remedy(error)} and try again, the log is as it was")
    told = _REMEDIES.get(error.errno or 0)
    if told is None:
        told = remedy(error)
        if error.errno not in NO_DESCRIPTORS:
            told += ", or delete the file: it is made again"
    return Unavailable(f"{at}{told} and try again, the log is as it was")
