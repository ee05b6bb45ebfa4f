"""What the operating system's errors mean to the owner of a shape."""

import errno

from varve.foundation.errors import DiskFull, StoreError, Unavailable


def storage_failure(error: OSError, directory: str) -> StoreError:
    """The error to raise in its place: the shape takes no more writes and is to be dropped."""
    reason = f"{error.strerror or error} ({error.filename or directory})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"shape in {directory}: {reason}; free some space and drop the shape")
    return Unavailable(f"shape in {directory}: {reason}; mend the disk and drop the shape")
