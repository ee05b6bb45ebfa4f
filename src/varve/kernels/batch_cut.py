"""Finds where a run of batches must end: whole batches, all below a limit offset."""

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import kernel
from varve.kernels.loads import load_i32, load_i64


@kernel
def cut_batches(buffer: npt.NDArray[np.uint8], limit_offset: int) -> tuple[int, int]:
    """End position of the last whole batch whose last offset is below the limit.

    And the offset after it.

    No such batch gives (0, -1); a buffer that does not begin with a batch of magic 2 gives (-1,
    -1).
    """
    size = buffer.size
    position = 0
    next_offset = np.int64(-1)
    while position + 27 <= size:
        length = np.int64(load_i32(buffer, position + 8))
        if length < 49 or buffer[position + 16] != 2:
            if position == 0:
                return -1, np.int64(-1)
            break
        last_offset = load_i64(buffer, position) + load_i32(buffer, position + 23)
        end = position + 12 + length
        if end > size or last_offset >= limit_offset:
            break
        next_offset = last_offset + 1
        position = end
    return position, next_offset
