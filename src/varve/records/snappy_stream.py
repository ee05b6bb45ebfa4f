"""Snappy as Kafka writes it: the block stream of xerial's snappy-java.

Layout     16 bytes of header, then blocks, each behind its length (int32). Written in blocks of
           32 KiB. A payload without the header is a single raw block. docs/formats/record-batch.md
Invariant  a decoder never gives out more than its limit, nor allocates more than its input could
           expand to.
"""

import struct

import cramjam
import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt
from varve.records.header import Buffer

Bytes = npt.NDArray[np.uint8]

STREAM_MAGIC = b"\x82SNAPPY\x00"
STREAM_HEADER = STREAM_MAGIC + struct.pack(">ii", 1, 1)
BLOCK_BYTES = 32 * 1024
_LENGTH = struct.Struct(">i")
# The densest element makes 64 bytes out of three.
_RATIO_MAX = 22


def encode_snappy_stream(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [STREAM_HEADER]
    for start in range(0, len(view), BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + BLOCK_BYTES]))
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def decode_snappy_stream(data: Buffer, *, where: str, limit_bytes: int) -> Bytes:
    """The content of a block stream or of a raw block; raises `Corrupt` for anything else."""
    view = memoryview(data)
    blocks = _split(view, where) if view[:8] == STREAM_MAGIC else [view]
    sizes = [_declared_size(block, where) for block in blocks]
    total = sum(sizes)
    if total > limit_bytes:
        raise Corrupt(
            f"{where}: snappy payload of {len(view)} bytes declares {total} bytes of content,"
            f" the limit is {limit_bytes}"
        )
    out = np.empty(total, np.uint8)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        _decode_block(block, out[position : position + size], where)
        position += size
    return out


def _decode_block(block: memoryview, out: Bytes, where: str) -> None:
    try:
        size = cramjam.snappy.decompress_raw_into(block, out.data)
    except cramjam.DecompressionError as error:
        raise Corrupt(f"{where}: snappy block of {len(block)} bytes is broken: {error}") from error
    if size != len(out):
        raise Corrupt(f"{where}: snappy block gives {size} bytes and declares {len(out)}")


def _split(view: memoryview, where: str) -> list[memoryview]:
    if len(view) < len(STREAM_HEADER):
        raise Corrupt(f"{where}: snappy stream header ends after {len(view)} bytes")
    (version,) = _LENGTH.unpack_from(view, len(STREAM_MAGIC))
    if version < 1:
        raise Corrupt(f"{where}: snappy stream has version {version}, the least is 1")
    blocks: list[memoryview] = []
    position = len(STREAM_HEADER)
    while position < len(view):
        if len(view) - position < _LENGTH.size:
            raise Corrupt(f"{where}: {len(view) - position} bytes after the last snappy block")
        (size,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if size < 0 or size > len(view) - position:
            raise Corrupt(
                f"{where}: snappy block at byte {position} has {size} bytes,"
                f" {len(view) - position} remain"
            )
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _declared_size(block: memoryview, where: str) -> int:
    """The size the block declares, believed only as far as its bytes could expand."""
    try:
        size = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise Corrupt(f"{where}: snappy block of {len(block)} bytes is broken: {error}") from error
    if size > len(block) * _RATIO_MAX:
        raise Corrupt(
            f"{where}: snappy block of {len(block)} bytes declares {size} bytes of content,"
            f" {len(block) * _RATIO_MAX} are possible"
        )
    return size
