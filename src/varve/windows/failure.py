"""What the operating system's errors mean to the caller of a window store."""

import errno

from varve.foundation.errors import DiskFull, StoreError, Unavailable


def store_failure(error: OSError, what: str) -> StoreError:
    """The error to raise in its place; `what` says what was being done, and where."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{what}: {reason}; free some space")
    return Unavailable(
        f"{what}: {reason}; mend the disk or its permissions and open the store again"
    )
