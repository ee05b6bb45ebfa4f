"""The partitions of a column of keys, as Kafka's default partitioner chooses them.

Invariant  no cell is read outside the column, whatever starts and sizes say.
"""

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import kernel
from varve.kernels.loads import Bytes
from varve.kernels.murmur2 import murmur2

Integers = npt.NDArray[np.int64]

_POSITIVE = 0x7FFFFFFF


@kernel
def partition_keys(
    data: Bytes, starts: Integers, sizes: Integers, partition_count: int, out: Integers
) -> int:
    """Fill in the partition of every cell that is not null: -1, or the cell at fault."""
    if len(starts) != len(sizes) or len(out) != len(sizes) or partition_count < 1:
        return 0
    for index in range(len(sizes)):
        start, size = starts[index], sizes[index]
        if size < 0:
            continue
        if start < 0 or start > len(data) - size:
            return index
        out[index] = (murmur2(data[start : start + size]) & _POSITIVE) % partition_count
    return -1


def warm() -> None:
    """Compile for the argument types in use."""
    data = np.frombuffer(b"key", np.uint8)
    starts, sizes = np.zeros(1, np.int64), np.full(1, 3, np.int64)
    starts.flags.writeable = sizes.flags.writeable = False
    partition_keys(data, starts, sizes, 2, np.zeros(1, np.int64))
