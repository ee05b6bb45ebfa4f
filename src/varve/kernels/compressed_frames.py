"""Finds the end and the content size of a zstd frame from its headers, without decompressing it.

Layout     RFC 8878, sections 3.1.1.1 (frame header) and 3.1.1.2 (blocks).
Invariant  nothing outside `buffer[start:end]` is read, whatever the bytes are.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import byte_buffers, inlined, kernel

Bytes = npt.NDArray[np.uint8]


class ZstdStatus(IntEnum):
    OK = 0
    TRUNCATED = 1
    BAD_MAGIC = 2
    RESERVED = 3  # a reserved bit or block type is in use
    DICTIONARY = 4


_MAGIC = 0xFD2FB528
_BLOCK_BYTES_MAX = 128 * 1024
"""The format's limit for the content of a block."""
_BLOCK_RLE, _BLOCK_COMPRESSED, _BLOCK_RESERVED = 1, 2, 3


@inlined
def _little(buffer: Bytes, position: int, size: int) -> Any:
    value = np.int64(0)
    for index in range(size):
        value |= np.int64(buffer[position + index]) << np.int64(8 * index)
    return value


@kernel
def zstd_extent(buffer: Bytes, start: int, end: int) -> tuple[int, int, Any, Any]:
    """Walks the blocks of one frame: (status, end position, declared content size or -1, bound).

    The bound is the largest size that the frame can expand to, from its block headers alone.
    """
    if start < 0 or end > len(buffer) or end - start < 6:
        return ZstdStatus.TRUNCATED, start, -1, 0
    if _little(buffer, start, 4) != _MAGIC:
        return ZstdStatus.BAD_MAGIC, start, -1, 0
    # Bits of the frame header descriptor: 7-6 content size flag, 5 single segment, 3 reserved,
    # 2 checksum, 1-0 dictionary id flag.
    descriptor: Any = np.int64(buffer[start + 4])
    single_segment = (descriptor >> 5) & 1
    content_size_bytes = (0, 2, 4, 8)[descriptor >> 6]
    if descriptor >> 6 == 0 and single_segment:
        content_size_bytes = 1
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    if descriptor & 8:  # the reserved bit
        return ZstdStatus.RESERVED, start, -1, 0
    position = start + 5
    header_end = position + (1 - single_segment) + dictionary_bytes + content_size_bytes
    if header_end > end:
        return ZstdStatus.TRUNCATED, position, -1, 0
    window: Any = np.int64(0)
    if not single_segment:
        exponent = np.int64(buffer[position]) >> 3
        window = np.int64(1) << (10 + exponent)
        window += (window >> 3) * (np.int64(buffer[position]) & 7)
        position += 1
    if _little(buffer, position, dictionary_bytes) != 0:
        return ZstdStatus.DICTIONARY, position, -1, 0
    position += dictionary_bytes
    content_size: Any = np.int64(-1)
    if content_size_bytes > 0:
        content_size = _little(buffer, position, content_size_bytes)
        if content_size_bytes == 2:
            content_size += 256
        if content_size < 0:  # above 2^63 - 1
            content_size = np.int64(0x7FFFFFFFFFFFFFFF)
        if single_segment:
            window = content_size
    position = header_end
    block_bytes_max: Any = min(window, _BLOCK_BYTES_MAX)
    bound: Any = np.int64(0)
    while True:
        if end - position < 3:
            return ZstdStatus.TRUNCATED, position, content_size, bound
        block = _little(buffer, position, 3)
        position += 3
        kind = (block >> 1) & 3
        size = block >> 3
        if kind == _BLOCK_RESERVED:
            return ZstdStatus.RESERVED, position, content_size, bound
        stored = 1 if kind == _BLOCK_RLE else size
        if stored > end - position:
            return ZstdStatus.TRUNCATED, position, content_size, bound
        position += stored
        bound += block_bytes_max if kind == _BLOCK_COMPRESSED else size
        if block & 1:  # the last block
            break
    if descriptor & 4:  # a checksum follows
        position += 4
        if position > end:
            return ZstdStatus.TRUNCATED, end, content_size, bound
    return ZstdStatus.OK, position, content_size, bound


def warm() -> None:
    """Compile the kernels for the buffers that `varve.records` passes."""
    for buffer in byte_buffers(bytes(16)):
        zstd_extent(buffer, 0, 16)
