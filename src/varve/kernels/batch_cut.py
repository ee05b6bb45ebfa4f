"""Finds where a run of batches must end: whole batches, all below a limit offset."""

from varve.kernels.compile import as_int, byte_buffers, kernel
from varve.kernels.loads import Bytes, load_i32, load_i64


@kernel
def cut_batches(buffer: Bytes, limit_offset: int) -> tuple[int, int]:
    """End of the last whole batch whose last offset is below the limit, and the offset after it.

    No such batch gives (0, -1); a buffer that does not begin with a batch of magic 2, (-1, -1).
    """
    size = buffer.size
    position = 0
    next_offset = as_int(-1)
    while position + 27 <= size:
        length = load_i32(buffer, position + 8)
        if length < 49 or buffer[position + 16] != 2:
            if position == 0:
                return -1, as_int(-1)
            break
        last_offset = load_i64(buffer, position) + load_i32(buffer, position + 23)
        end = position + 12 + length
        if end > size or last_offset >= limit_offset:
            break
        next_offset = last_offset + 1
        position = end
    return position, next_offset


def warm() -> None:
    """Compile for the argument types in use."""
    for buffer in byte_buffers(b""):
        cut_batches(buffer, 0)
