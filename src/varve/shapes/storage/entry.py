"""One entry of a shape's log, as the kernels that encode it take it.

Layout     a tuple of four fields, in the order that `kernels.log_entries` expects.
           docs/reference/formats/shape-log.md
"""

from typing import Final, NamedTuple

import numpy as np

from varve.kernels.crc import crc32c
from varve.shapes.kernels.log_entries import NUMBER_MAX
from varve.shapes.offset import INFINITE_OP, ShapeOffset

INSERT, UPDATE, DELETE, CONTROL = b"iudc"
TRANSACTION_END: Final = b'"last":true}}'
"""The end of the JSON of a transaction's last entry; a compaction removes it."""


class ShapeEntry(NamedTuple):
    """A message at its offset; `operation` is the code of i, u, d or c; c has an empty key."""

    offset: ShapeOffset
    key: bytes
    operation: int
    json: bytes


def checksum(data: bytes | memoryview) -> int:
    """CRC-32C."""
    return crc32c(np.frombuffer(data, np.uint8), 0, len(data))


def kernel_offset(offset: ShapeOffset) -> tuple[int, int]:
    """An offset as the two numbers of kernels, in which NUMBER_MAX is infinity."""
    if offset.tx > NUMBER_MAX:
        return NUMBER_MAX, NUMBER_MAX
    return offset.tx, min(offset.op, NUMBER_MAX)


def from_kernel_offset(tx: int, op: int) -> ShapeOffset:
    return ShapeOffset(tx, INFINITE_OP if op == NUMBER_MAX else op)
