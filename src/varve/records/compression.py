"""Compress and decompress the records area of a batch.

Layout     gzip: one member; snappy: the block stream of xerial's snappy-java, which has 16 bytes of
           header, then blocks of 32 KiB, each behind its length (int32), or a single raw block
           without the header; lz4, zstd: one frame. docs/reference/formats/record-batch.md
Invariant  decompression never gives out more than its limit, whatever sizes the bytes declare,
           allocates no more than its input could expand to, and accepts a payload only if its one
           stream ends where the payload ends.
"""

import struct
import threading
import zlib
from typing import Any, assert_never

import cramjam
import lz4.frame
import numpy as np
import numpy.typing as npt
import zstandard

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.kernels.compressed_frames import ZstdStatus, zstd_extent
from varve.records.batch_format import Buffer, Codec

Bytes = npt.NDArray[np.uint8]


class ContentTooLarge(Corrupt):
    """The content of a compressed payload exceeds the limit of its reader."""


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
        raise ContentTooLarge(
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
    """The size the block declares, limited to what its bytes could expand to."""
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


# Largest size of a batch's uncompressed records, in `build_batch` and in `decompress`.
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

GZIP_LEVEL_DEFAULT = -1
LZ4_LEVEL_DEFAULT = 9
ZSTD_LEVEL_DEFAULT = 3
_LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
_LZ4_MAGIC = bytes.fromhex("04224d18")
_LZ4_INDEPENDENT_BIT, _LZ4_DEPENDENT_MASK = 0x20, 0x21
# The compressor's own levels below 3 are fast ones; any level a user sets means high compression.
_LZ4_HIGH_LEVEL_MIN = 3
# No LZ4 sequence makes more than 255 bytes out of one.
_LZ4_RATIO_MAX = 255
# Content beyond the first part comes in parts of this size, so that it is never in memory twice.
_LZ4_PART_BYTES = 4 << 20
# zlib's number for a deflate window of 32 KiB in a gzip member.
_GZIP_WINDOW = 31


class _ZstdContexts(threading.local):
    """Each thread's own: making one costs more than a small batch, and none may be shared."""

    def __init__(self) -> None:
        self.decompressor: Any = zstandard.ZstdDecompressor()
        self._compressors: dict[int, Any] = {}

    def compressor(self, level: int) -> Any:
        if level not in self._compressors:
            self._compressors[level] = zstandard.ZstdCompressor(level=level)
        return self._compressors[level]


_ZSTD = _ZstdContexts()


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """The payload Kafka would store for `data`; no level means the codec's default."""
    _check_level(codec, level)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            chosen = GZIP_LEVEL_DEFAULT if level is None else level
            return zlib.compress(data, chosen, wbits=_GZIP_WINDOW)
        case Codec.SNAPPY:
            return encode_snappy_stream(data)
        case Codec.LZ4:
            return _lz4(data, level)
        case Codec.ZSTD:
            compressor = _ZSTD.compressor(ZSTD_LEVEL_DEFAULT if level is None else level)
            return bytes(compressor.compress(data))
        case _:
            assert_never(codec)


def decompress(
    codec: Codec,
    data: Buffer,
    *,
    where: str = "payload",
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> Bytes:
    """The content of a payload; raises `Corrupt` naming `where` when it is broken or too large."""
    match codec:
        case Codec.NONE:
            _check_size(len(data), where, limit_bytes)
            return np.frombuffer(data, np.uint8)
        case Codec.GZIP:
            return _gunzip(data, where, limit_bytes)
        case Codec.SNAPPY:
            return decode_snappy_stream(data, where=where, limit_bytes=limit_bytes)
        case Codec.LZ4:
            return _unlz4(data, where, limit_bytes)
        case Codec.ZSTD:
            return _unzstd(data, where, limit_bytes)
        case _:
            assert_never(codec)


def _check_level(codec: Codec, level: int | None) -> None:
    if level is None or (codec is Codec.GZIP and level == GZIP_LEVEL_DEFAULT):
        return
    if codec not in _LEVELS:
        raise InvalidRequest(f"codec {codec.name.lower()} has no levels, but {level} was requested")
    lowest, highest = _LEVELS[codec]
    if not lowest <= level <= highest:
        raise InvalidRequest(
            f"level {level} of codec {codec.name.lower()} is outside {lowest} to {highest}"
        )


def _check_size(size: int, where: str, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise ContentTooLarge(f"{where}: content of {size} bytes, the limit is {limit_bytes}")


# cramjam joins any number of gzip members; zlib reports where the first ends, and stops at a limit.
def _gunzip(data: Buffer, where: str, limit_bytes: int) -> Bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    try:
        content = stream.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise Corrupt(f"{where}: gzip payload of {len(data)} bytes is broken: {error}") from error
    if len(content) > limit_bytes:
        raise ContentTooLarge(
            f"{where}: gzip payload of {len(data)} bytes exceeds the limit of {limit_bytes} bytes"
        )
    if not stream.eof:
        raise Corrupt(f"{where}: gzip payload of {len(data)} bytes ends within its stream")
    if stream.unused_data:
        raise Corrupt(
            f"{where}: gzip stream ends {len(stream.unused_data)} bytes before its payload"
            f" of {len(data)}"
        )
    return np.frombuffer(content, np.uint8)


def _lz4(data: Buffer, level: int | None) -> bytes:
    """One frame; the default level is the fast compressor, any other means high compression."""
    is_fast = level in (None, LZ4_LEVEL_DEFAULT)
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=0 if is_fast else max(level or 0, _LZ4_HIGH_LEVEL_MIN),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return frame


def _unlz4(data: Buffer, where: str, limit_bytes: int) -> Bytes:
    if bytes(data[:4]) != _LZ4_MAGIC or len(data) < 5:
        raise Corrupt(f"{where}: no lz4 frame, it starts {bytes(data[:4]).hex() or 'empty'}")
    if data[4] & _LZ4_DEPENDENT_MASK != _LZ4_INDEPENDENT_BIT:
        raise Corrupt(
            f"{where}: lz4 frame with dependent blocks or a dictionary, Kafka allows independent "
            "blocks only"
        )
    stream = lz4.frame.LZ4FrameDecompressor()
    # The library allocates all that it may give out; most payloads shrink less than fourfold.
    room = 4 * len(data)
    try:
        content = stream.decompress(data, max_length=min(room, limit_bytes + 1))
        if content and not stream.eof:
            room = max(room, min(_LZ4_PART_BYTES, len(data) * _LZ4_RATIO_MAX))
            content = _decompress_rest(stream, bytearray(content), room, limit_bytes)
    except RuntimeError as error:
        raise Corrupt(f"{where}: lz4 payload of {len(data)} bytes is broken: {error}") from error
    if len(content) > limit_bytes:
        raise ContentTooLarge(
            f"{where}: lz4 payload of {len(data)} bytes exceeds the limit of {limit_bytes} bytes"
        )
    if not stream.eof or stream.unused_data:
        left = len(stream.unused_data or b"")
        raise Corrupt(
            f"{where}: lz4 payload of {len(data)} bytes is not one whole frame, {left} bytes follow"
        )
    return np.frombuffer(content, np.uint8)


def _decompress_rest(stream: Any, content: bytearray, room: int, limit_bytes: int) -> bytearray:
    """Appends parts of at most `room` bytes, until the input ends or the limit is exceeded."""
    while not stream.eof and len(content) <= limit_bytes:
        part = stream.decompress(b"", max_length=min(room, limit_bytes + 1 - len(content)))
        if not part:
            break
        content += part
    return content


def _unzstd(data: Buffer, where: str, limit_bytes: int) -> Bytes:
    status, end, content_size, bound = zstd_extent(np.frombuffer(data, np.uint8), 0, len(data))
    if status != ZstdStatus.OK:
        problem = ZstdStatus(status).name.lower().replace("_", " ")
        raise Corrupt(f"{where}: no zstd frame of {len(data)} bytes: {problem} at byte {end}")
    if end != len(data):
        raise Corrupt(f"{where}: zstd frame ends at byte {end}, the payload has {len(data)}")
    if content_size > bound:
        raise Corrupt(
            f"{where}: zstd frame of {len(data)} bytes declares {content_size} bytes of content,"
            f" its blocks hold at most {bound}"
        )
    _check_size(content_size, where, limit_bytes)
    try:
        # The library takes a size of 0 for an unknown size.
        room = max(min(bound, limit_bytes), 1)
        content = _ZSTD.decompressor.decompress(data, max_output_size=room)
    except zstandard.ZstdError as error:
        kind = ContentTooLarge if bound > limit_bytes else Corrupt
        raise kind(
            f"{where}: zstd payload of {len(data)} bytes is broken, or exceeds the limit of"
            f" {limit_bytes} bytes: {error}"
        ) from error
    return np.frombuffer(content, np.uint8)
