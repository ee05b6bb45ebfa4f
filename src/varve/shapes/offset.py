"""Offsets of a shape: before everything, within its snapshot, within its log.

Layout     text `-1`, `0_<n>`, `0_inf`, `<tx>_<op>`; the `now` of a request is not an offset.
Invariant  compared by transaction, then by operation; infinity is above every operation.
"""

import re
from typing import Final, NamedTuple

from varve.foundation.errors import InvalidRequest

INFINITE_OP: Final = 1 << 64
"""Above every operation; written `inf`."""
_TEXT: Final = re.compile(r"([0-9]+)_([0-9]+|inf)", re.ASCII)
_DIGITS_MAX: Final = 20


class ShapeOffset(NamedTuple):
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

    def after(self, count: int = 1) -> "ShapeOffset":
        """The offset `count` operations later; after the snapshot it is in transaction 1."""
        if self == SNAPSHOT_END:
            return ShapeOffset(1, count - 1)
        return ShapeOffset(self.tx, self.op + count)


BEFORE_ALL: Final = ShapeOffset(-1, 0)
SNAPSHOT_END: Final = ShapeOffset(0, INFINITE_OP)
"""All of the snapshot was read, and nothing of the log."""
FIRST_CHUNK: Final = ShapeOffset(0, 0)
LAST: Final = ShapeOffset((1 << 64) - 1, INFINITE_OP)
"""No upper limit."""


def parse_offset(text: str) -> ShapeOffset:
    """The offset that a text names; raises InvalidRequest."""
    if text in ("-1", "-1_0"):
        return BEFORE_ALL
    match = _TEXT.fullmatch(text)
    if match is None or len(text) > 2 * _DIGITS_MAX + 1:
        raise InvalidRequest(
            f"offset {text!r:.60} is not valid: write -1, now, or two numbers joined by "
            "an underscore, of which the second may be inf"
        )
    tx, op = match.groups()
    offset = ShapeOffset(int(tx), INFINITE_OP if op == "inf" else int(op))
    if offset > LAST or (offset.op >= INFINITE_OP and op != "inf"):
        raise InvalidRequest(f"offset {text!r:.60} is above the highest one, {LAST}")
    return offset
