"""LZ4 frames as Kafka writes and reads them.

Layout     magic, FLG, BD, header checksum; blocks, each with its length (high bit: stored as is);
           a zero length. Written with independent blocks of 64 KiB and no checksums.
           docs/formats/record-batch.md
Invariant  a decoder never gives out more than its limit, nor allocates more than the blocks at hand
           could expand to.
"""

import struct
from typing import NamedTuple

import cramjam
import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt
from varve.kernels.compressed_frames import xxhash32
from varve.records.batch_format import Buffer

Bytes = npt.NDArray[np.uint8]

FRAME_START = bytes.fromhex("04224d18604082")
_MAGIC = 0x184D2204
_WORD = struct.Struct("<I")
_STORED_BIT = 0x80000000
_CHECKSUM_BYTES = 4
_FAST_LEVEL = 0
# The compressor's own levels below 3 are fast ones; any level a user sets means high compression.
_HIGH_LEVELS = (3, 12)
# No LZ4 sequence makes more than 255 bytes out of one.
_RATIO_MAX = 255


class _Descriptor(NamedTuple):
    block_bytes_max: int
    has_block_checksums: bool
    has_content_checksum: bool
    end: int


class _Block(NamedTuple):
    start: int
    size: int
    is_stored: bool


def encode_lz4_frame(data: Buffer, *, level: int | None) -> bytes:
    """One frame; no level means the fast compressor, any level the high-compression one."""
    compressor_level = _FAST_LEVEL
    if level is not None:
        compressor_level = min(max(level, _HIGH_LEVELS[0]), _HIGH_LEVELS[1])
    compressor = cramjam.lz4.Compressor(
        level=compressor_level, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))
    foreign = bytes(compressor.finish())
    # The compressor always adds block checksums, which Kafka's writer does not: leave them out.
    descriptor = _decode_descriptor(foreign, "lz4 compressor")
    blocks, _ = _walk_blocks(foreign, descriptor, "lz4 compressor")
    parts = [FRAME_START]
    parts.extend(foreign[block.start - _WORD.size : block.start + block.size] for block in blocks)
    parts.append(bytes(_WORD.size))
    return b"".join(parts)


def decode_lz4_frame(data: Buffer, *, where: str, limit_bytes: int) -> Bytes:
    """The content of the one frame that `data` is; raises `Corrupt` for anything else."""
    descriptor = _decode_descriptor(data, where)
    blocks, end = _walk_blocks(data, descriptor, where)
    if descriptor.has_content_checksum:
        end += _CHECKSUM_BYTES
    if end != len(data):
        raise Corrupt(f"{where}: lz4 frame ends at byte {end}, the payload has {len(data)}")
    if descriptor.has_block_checksums:
        _verify_checksums(data, blocks, where)
    bound = sum(_bound(block, descriptor) for block in blocks)
    out = np.empty(min(bound, limit_bytes), np.uint8)
    size = 0
    for block in blocks:
        size += _decode_block(data, block, descriptor, out[size:], where, limit_bytes)
    return out[:size]


def _bound(block: _Block, descriptor: _Descriptor) -> int:
    if block.is_stored:
        return block.size
    return min(descriptor.block_bytes_max, block.size * _RATIO_MAX)


def _decode_block(
    data: Buffer,
    block: _Block,
    descriptor: _Descriptor,
    out: Bytes,
    where: str,
    limit_bytes: int,
) -> int:
    source = memoryview(data)[block.start : block.start + block.size]
    if block.is_stored:
        if block.size > len(out):
            raise Corrupt(f"{where}: lz4 frame exceeds the limit of {limit_bytes} bytes")
        out[: block.size] = np.frombuffer(source, np.uint8)
        return block.size
    room = min(descriptor.block_bytes_max, len(out))
    try:
        return int(cramjam.lz4.decompress_block_into(source, out[:room].data, output_len=room))
    except cramjam.DecompressionError as error:
        if room < _bound(block, descriptor):
            raise Corrupt(
                f"{where}: lz4 frame exceeds the limit of {limit_bytes} bytes, or the block at byte"
                f" {block.start} is broken: {error}"
            ) from error
        raise Corrupt(f"{where}: lz4 block at byte {block.start} is broken: {error}") from error


def _verify_checksums(data: Buffer, blocks: list[_Block], where: str) -> None:
    array = np.frombuffer(data, np.uint8)
    for block in blocks:
        end = block.start + block.size
        (stored,) = _WORD.unpack_from(data, end)
        computed = xxhash32(array, block.start, end)
        if stored != computed:
            raise Corrupt(
                f"{where}: lz4 block at byte {block.start} has checksum {computed:#010x},"
                f" stored is {stored:#010x}"
            )


def _walk_blocks(data: Buffer, descriptor: _Descriptor, where: str) -> tuple[list[_Block], int]:
    """All blocks, and the position after the end mark."""
    blocks: list[_Block] = []
    position = descriptor.end
    trailer = _CHECKSUM_BYTES if descriptor.has_block_checksums else 0
    while True:
        if len(data) - position < _WORD.size:
            raise Corrupt(f"{where}: lz4 frame of {len(data)} bytes has no end mark")
        (word,) = _WORD.unpack_from(data, position)
        position += _WORD.size
        if word == 0:
            return blocks, position
        size = word & ~_STORED_BIT
        if size > descriptor.block_bytes_max:
            raise Corrupt(
                f"{where}: lz4 block at byte {position} has {size} bytes,"
                f" the frame's limit is {descriptor.block_bytes_max}"
            )
        if size + trailer > len(data) - position:
            raise Corrupt(
                f"{where}: lz4 block at byte {position} of {size} bytes ends outside the payload"
                f" of {len(data)}"
            )
        blocks.append(_Block(position, size, bool(word & _STORED_BIT)))
        position += size + trailer


def _decode_descriptor(data: Buffer, where: str) -> _Descriptor:
    if len(data) < len(FRAME_START) or _WORD.unpack_from(data)[0] != _MAGIC:
        raise Corrupt(f"{where}: no lz4 frame, it starts {bytes(data[:4]).hex() or 'empty'}")
    flags, block_descriptor = data[4], data[5]
    if flags >> 6 != 1 or flags & 0x03 or block_descriptor & 0x8F:
        raise Corrupt(
            f"{where}: lz4 frame with flags {flags:#04x} {block_descriptor:#04x} is of another"
            " version or uses reserved bits or a dictionary"
        )
    if not flags & 0x20:
        raise Corrupt(
            f"{where}: lz4 frame with dependent blocks, Kafka allows independent ones only"
        )
    block_size_code = block_descriptor >> 4
    if block_size_code < 4:
        raise Corrupt(
            f"{where}: lz4 frame with block size code {block_size_code}, known are 4 to 7"
        )
    checksum_at = 6 + (8 if flags & 0x08 else 0)
    if len(data) <= checksum_at:
        raise Corrupt(f"{where}: lz4 frame header ends after {len(data)} bytes")
    computed = xxhash32(np.frombuffer(data, np.uint8), 4, checksum_at) >> 8 & 0xFF
    if data[checksum_at] != computed:
        raise Corrupt(
            f"{where}: lz4 frame header has checksum {computed:#04x},"
            f" stored is {data[checksum_at]:#04x}"
        )
    return _Descriptor(
        block_bytes_max=1 << (8 + 2 * block_size_code),
        has_block_checksums=bool(flags & 0x10),
        has_content_checksum=bool(flags & 0x04),
        end=checksum_at + 1,
    )
