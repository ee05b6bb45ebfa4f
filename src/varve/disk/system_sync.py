"""One sync for all that a file system has not written yet, by whomever.

Since version 5.8 Linux tells of writes that failed on the way; what is older, or another system, is
not asked.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Final

_TELLS_OF_FAILURES: Final = (5, 8)


@cache
def find_system_sync() -> Callable[[int], bool] | None:
    """Syncs the file system that a descriptor is of, and says whether that went well.

    None where the system cannot.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or release is None:
        return None
    if (int(release[1]), int(release[2])) < _TELLS_OF_FAILURES:
        return None
    call = getattr(ctypes.CDLL(None), "syncfs", None)
    if call is None:
        return None

    def sync(descriptor: int) -> bool:
        return int(call(descriptor)) == 0

    return sync
