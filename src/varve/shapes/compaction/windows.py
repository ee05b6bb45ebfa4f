"""The entries of log files in order, as blocks of bounded size.

Invariant  a block holds whole entries; one that is larger than a window makes a block of its own.
           Across all files offsets ascend.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.shapes.compaction.block import Block, index_block
from varve.shapes.offset import BEFORE_ALL


class Range(NamedTuple):
    """The first `size` bytes of a log file."""

    file: File
    size: int


def read_blocks(ranges: Sequence[Range], window_bytes: int) -> Iterator[Block]:
    """All entries; raises Corrupt for a broken one, or a range that does not end with one."""
    last = BEFORE_ALL
    for file, size in ranges:
        position, wanted = 0, window_bytes
        while position < size:
            data = np.empty(min(wanted, size - position), np.uint8)
            got = file.read_into(position, memoryview(data))
            if got < data.size:
                raise Corrupt(f"{file.path} ends at {position + got}, {size} bytes were written")
            block = index_block(data, file.path, position, last)
            if block.starts.size:
                yield block
                last, position, wanted = block.last, position + block.data.size, window_bytes
            elif data.size == size - position:
                raise Corrupt(f"{file.path}: the entry at {position} does not end before {size}")
            else:
                wanted *= 2
