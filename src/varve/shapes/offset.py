"""Places in a shape: before everything, within its snapshot, within its log.

Layout     text `-1`, `0_<n>`, `0_inf`, `<tx>_<op>`; a request may say `now`, which is no place.
Invariant  compared by transaction, then by operation; infinity is above every operation.
"""

import re
from typing import Final, NamedTuple

from varve.foundation.errors import InvalidRequest

INFINITE_OP: Final = 1 << 64
"""Above every operation; written `inf`."""
_TEXT: Final = re.compile(r"([0-9]+)_([0-9]+|inf)", re.ASCII)
_DIGITS_MAX: Final = 20


class Offset(NamedTuple):
    """A transaction and an operation in it; transaction 0 is the snapshot."""

    tx: int
    op: int

    @property
    def is_virtual(self) -> bool:
        """Whether it lies before every entry of the log."""
        return self.tx <= 0

    def __str__(self) -> str:
        if self.tx < 0:
            return "-1"
        return f"{self.tx}_{'inf' if self.op == INFINITE_OP else self.op}"

    def after(self, count: int = 1) -> "Offset":
        """The place so many operations on; behind the snapshot that is transaction 1."""
        if self == SNAPSHOT_END:
            return Offset(1, count - 1)
        return Offset(self.tx, self.op + count)


BEFORE_ALL: Final = Offset(-1, 0)
SNAPSHOT_END: Final = Offset(0, INFINITE_OP)
"""All of the snapshot was read, and nothing of the log."""
FIRST_CHUNK: Final = Offset(0, 0)
LAST: Final = Offset((1 << 64) - 1, INFINITE_OP)
"""No upper limit."""


def parse_offset(text: str) -> Offset:
    """The place that a text names; raises InvalidRequest."""
    if text in ("-1", "-1_0"):
        return BEFORE_ALL
    match = _TEXT.fullmatch(text)
    if match is None or len(text) > 2 * _DIGITS_MAX + 1:
        raise InvalidRequest(
            f"offset {text!r:.60} is no place in a shape: it is -1, now, or two numbers joined by "
            "an underscore, of which the second may be inf"
        )
    tx, op = match.groups()
    place = Offset(int(tx), INFINITE_OP if op == "inf" else int(op))
    if place > LAST or (place.op >= INFINITE_OP and op != "inf"):
        raise InvalidRequest(f"offset {text!r:.60} lies beyond the last place there can be, {LAST}")
    return place
