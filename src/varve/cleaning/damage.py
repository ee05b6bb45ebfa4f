"""What cleaning says about a data file whose batches cannot be read.

Invariant  names a copy of the file first: a repair cuts the log at the damaged batch, and whoever
           holds a segment back has a log that works all the same.
"""

from typing import Final

from varve.foundation.errors import StoreError, UnsupportedFormat

_LEFT: Final = "the segment is left as it is and everything else goes on"
LEFT_ALONE: Final = (
    f"{_LEFT}; restore this file from a copy if there is one: a repair would cut the log at that "
    "batch and drop what follows (`varve check` shows what)"
)


def hold_reason(error: StoreError) -> str:
    """Why a segment is held, and what to do about it."""
    # What an old format needs its message says itself; a repair leaves it as it is.
    return f"{error}; {_LEFT if isinstance(error, UnsupportedFormat) else LEFT_ALONE}"
