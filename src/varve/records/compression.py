"""Compress and decompress the records area of a batch.

Layout     gzip: one member; snappy: xerial's stream; lz4, zstd: one frame.
           docs/formats/record-batch.md
Invariant  decompression never gives out more than its limit, whatever sizes the bytes declare, and
           accepts a payload only if its one stream ends where the payload ends.
"""

import threading
import zlib
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import zstandard

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.kernels.compressed_frames import ZstdStatus, zstd_extent
from varve.records.header import Buffer, Codec
from varve.records.lz4_frame import decode_lz4_frame, encode_lz4_frame
from varve.records.snappy_stream import decode_snappy_stream, encode_snappy_stream

Bytes = npt.NDArray[np.uint8]

# The most that one batch's records may take: what `build_batch` compresses and `decompress` gives.
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

GZIP_LEVEL_DEFAULT = -1
LZ4_LEVEL_DEFAULT = 9
ZSTD_LEVEL_DEFAULT = 3
_LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
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
            return encode_lz4_frame(data, level=None if level == LZ4_LEVEL_DEFAULT else level)
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
) -> bytes:
    """The content of a payload; raises `Corrupt` naming `where` when it is broken or too large."""
    if codec is Codec.NONE:
        _check_size(len(data), where, limit_bytes)
        return bytes(data)
    return decompress_to_array(codec, data, where=where, limit_bytes=limit_bytes).tobytes()


def decompress_to_array(
    codec: Codec,
    data: Buffer,
    *,
    where: str = "payload",
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> Bytes:
    """`decompress` into an array, which saves the copy."""
    match codec:
        case Codec.NONE:
            _check_size(len(data), where, limit_bytes)
            return np.frombuffer(data, np.uint8)
        case Codec.GZIP:
            return _gunzip(data, where, limit_bytes)
        case Codec.SNAPPY:
            return decode_snappy_stream(data, where=where, limit_bytes=limit_bytes)
        case Codec.LZ4:
            return decode_lz4_frame(data, where=where, limit_bytes=limit_bytes)
        case Codec.ZSTD:
            return _unzstd(data, where, limit_bytes)
        case _:
            assert_never(codec)


def _check_level(codec: Codec, level: int | None) -> None:
    if level is None or (codec is Codec.GZIP and level == GZIP_LEVEL_DEFAULT):
        return
    if codec not in _LEVELS:
        raise InvalidRequest(f"codec {codec.name.lower()} has no levels, {level} was asked for")
    lowest, highest = _LEVELS[codec]
    if not lowest <= level <= highest:
        raise InvalidRequest(
            f"level {level} of codec {codec.name.lower()} is outside {lowest} to {highest}"
        )


def _check_size(size: int, where: str, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise Corrupt(f"{where}: content of {size} bytes, the limit is {limit_bytes}")


# cramjam joins any number of gzip members; zlib tells where the first ends, and stops at a limit.
def _gunzip(data: Buffer, where: str, limit_bytes: int) -> Bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    try:
        content = stream.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise Corrupt(f"{where}: gzip payload of {len(data)} bytes is broken: {error}") from error
    if len(content) > limit_bytes:
        raise Corrupt(
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
        # Of no bytes at all the library would think that no size was given.
        room = max(min(bound, limit_bytes), 1)
        content = _ZSTD.decompressor.decompress(data, max_output_size=room)
    except zstandard.ZstdError as error:
        raise Corrupt(
            f"{where}: zstd payload of {len(data)} bytes is broken, or exceeds the limit of"
            f" {limit_bytes} bytes: {error}"
        ) from error
    return np.frombuffer(content, np.uint8)
