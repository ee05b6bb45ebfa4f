"""Codecs: Kafka's framing when writing, all of spec §1.9 when reading, bounds against bombs."""

import gzip
import random
import struct
import tracemalloc
from typing import Any

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.records import Codec, compress
from varve.records import decompress as decompress_to_array

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
WORDS = [b"varve", b"sediment", b"lake", b"layer", b"log"]
TEXT = b" ".join(random.Random(1).choices(WORDS, k=40_000))
NOISE = random.Random(2).randbytes(200_000)
CONTENTS = [b"", b"a", TEXT, NOISE, TEXT[:65536], NOISE[:65536], bytes(32768), NOISE + TEXT]


def decompress(codec: Codec, data: bytes | bytearray | memoryview, **named: Any) -> bytes:
    return decompress_to_array(codec, data, **named).tobytes()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_content_comes_back(codec: Codec, content: bytes) -> None:
    payload = compress(codec, content)
    assert decompress(codec, payload, where="here", limit_bytes=len(content)) == content
    assert decompress(codec, memoryview(payload)) == content
    assert compress(codec, memoryview(content)) == payload


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Codec.GZIP, (-1, 1, 9)),
        (Codec.LZ4, (1, 2, 3, 9, 12, 17)),
        (Codec.ZSTD, (-131072, -1, 1, 19)),
    ],
)
def test_levels_of_kafkas_settings_are_taken(codec: Codec, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level)) == TEXT


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.NONE, 1),
        (Codec.SNAPPY, 1),
        (Codec.GZIP, 0),
        (Codec.GZIP, 10),
        (Codec.LZ4, 0),
        (Codec.LZ4, 18),
        (Codec.ZSTD, 23),
        (Codec.ZSTD, -131073),
    ],
)
def test_levels_out_of_range_are_refused(codec: Codec, level: int) -> None:
    with pytest.raises(InvalidRequest, match=str(level)):
        compress(codec, TEXT, level)


def test_a_higher_level_compresses_more() -> None:
    for codec, low, high in [(Codec.GZIP, 1, 9), (Codec.LZ4, 9, 12), (Codec.ZSTD, -50, 19)]:
        assert len(compress(codec, TEXT, high)) < len(compress(codec, TEXT, low))


def test_lz4_frame_starts_as_kafkas_and_is_plain_for_others() -> None:
    for content in CONTENTS:
        frame = compress(Codec.LZ4, content)
        assert frame.startswith(bytes.fromhex("04224d18604082"))
        assert frame.endswith(bytes(4))
        assert lz4.frame.decompress(frame) == content


def test_lz4_stores_blocks_of_64_kib_that_do_not_shrink() -> None:
    frame = compress(Codec.LZ4, NOISE)
    assert struct.unpack_from("<I", frame, 7)[0] == 0x80000000 | 65536


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("flags", range(8))
def test_lz4_frames_with_other_options_are_read(block_size: int, flags: int) -> None:
    content = (TEXT + NOISE) * (8 if block_size == 7 else 1)
    frame = lz4.frame.compress(
        content,
        block_size=block_size,
        block_linked=False,
        store_size=bool(flags & 1),
        block_checksum=bool(flags & 2),
        content_checksum=bool(flags & 4),
    )
    assert decompress(Codec.LZ4, frame) == content


def test_lz4_dependent_blocks_are_refused() -> None:
    frame = lz4.frame.compress(TEXT, block_linked=True)
    with pytest.raises(Corrupt, match="dependent"):
        decompress(Codec.LZ4, frame)


@pytest.mark.parametrize(
    ("checksum", "position"), [("header", 6), ("block_checksum", -6), ("content_checksum", -1)]
)
def test_lz4_wrong_checksum_is_refused(checksum: str, position: int) -> None:
    options = {} if checksum == "header" else {checksum: True}
    frame = bytearray(lz4.frame.compress(NOISE, block_linked=False, store_size=False, **options))
    frame[position] ^= 1
    with pytest.raises(Corrupt, match=r"(?i)checksum"):
        decompress(Codec.LZ4, frame)


def test_lz4_content_that_shrinks_a_hundredfold_comes_back() -> None:
    content = bytes(5 << 20)
    assert decompress(Codec.LZ4, compress(Codec.LZ4, content), limit_bytes=5 << 20) == content


def test_lz4_content_is_never_in_memory_twice() -> None:
    frame = compress(Codec.LZ4, bytes(64 << 20))
    tracemalloc.start()
    try:
        assert len(decompress_to_array(Codec.LZ4, frame)) == 64 << 20
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * (64 << 20)


def test_lz4_wrong_content_size_is_refused() -> None:
    content = NOISE[:1000]
    frame = bytearray(lz4.frame.compress(content, block_linked=False))
    assert struct.unpack_from("<Q", frame, 6)[0] == len(content)
    sizes = struct.pack("<Q", len(content) + 1)
    for checksum in range(256):
        lying = frame[:6] + sizes + bytes([checksum]) + frame[15:]
        with pytest.raises(Corrupt):
            decompress(Codec.LZ4, lying)


def test_snappy_is_xerials_stream_in_blocks_of_32_kib() -> None:
    payload = compress(Codec.SNAPPY, NOISE)
    assert payload.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    size = struct.unpack_from(">i", payload, 16)[0]
    assert snappy.uncompress(payload[20 : 20 + size]) == NOISE[:32768]


def test_snappy_raw_block_is_read() -> None:
    for content in CONTENTS:
        assert decompress(Codec.SNAPPY, snappy.compress(content)) == content


def test_snappy_raw_block_that_starts_like_a_stream_is_read() -> None:
    content = NOISE[:0x102]
    raw = bytes(cramjam.snappy.compress_raw(content))
    assert raw[0] == 0x82
    assert decompress(Codec.SNAPPY, raw) == content


def test_zstd_frames_without_content_size_and_with_checksum_are_read() -> None:
    parameters = zstandard.ZstdCompressionParameters(write_content_size=0, write_checksum=1)
    for content in CONTENTS:
        frame = zstandard.ZstdCompressor(compression_params=parameters).compress(content)
        assert decompress(Codec.ZSTD, frame) == content
        stream = zstandard.ZstdCompressor(level=1).compressobj()
        assert decompress(Codec.ZSTD, stream.compress(content) + stream.flush()) == content


def test_zstd_frame_that_needs_a_dictionary_is_refused() -> None:
    dictionary = zstandard.train_dictionary(
        2000, [TEXT[i : i + 300] for i in range(0, 90_000, 300)]
    )
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT[:500])
    with pytest.raises(Corrupt, match="dictionary"):
        decompress(Codec.ZSTD, frame)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bytes_after_the_stream_are_refused(codec: Codec) -> None:
    payload = compress(codec, TEXT)
    for tail in (b"\0", b"garbage!", payload):
        with pytest.raises(Corrupt, match="place"):
            decompress(codec, payload + tail, where="place")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_cut_is_refused(codec: Codec) -> None:
    payload = compress(codec, TEXT[:2000])
    boundaries = {16} if codec is Codec.SNAPPY else set()  # a stream header alone holds nothing
    for size in set(range(len(payload))) - boundaries:
        with pytest.raises(Corrupt):
            decompress(codec, payload[:size])


@pytest.mark.parametrize("codec", list(Codec))
def test_content_beyond_the_limit_is_refused(codec: Codec) -> None:
    payload = compress(codec, TEXT)
    with pytest.raises(Corrupt, match="limit"):
        decompress(codec, payload, limit_bytes=len(TEXT) - 1)


def _bombs() -> list[tuple[Codec, bytes]]:
    mebibytes = bytes(64 << 20)
    unsized = zstandard.ZstdCompressor(write_content_size=False)
    lying = bytearray(zstandard.ZstdCompressor().compress(bytes(1000)))
    lying[4] = 0xC0 | (lying[4] & 0x3F)
    return [
        (Codec.GZIP, gzip.compress(mebibytes, mtime=0)),
        (Codec.SNAPPY, compress(Codec.SNAPPY, mebibytes)),
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 100),
        (Codec.LZ4, compress(Codec.LZ4, mebibytes)),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(mebibytes)),
        (Codec.ZSTD, unsized.compress(mebibytes)),
        (Codec.ZSTD, bytes(lying)),
    ]


@pytest.mark.parametrize(("codec", "bomb"), _bombs(), ids=lambda part: str(part)[:12])
def test_bombs_are_refused_within_the_limits_memory(codec: Codec, bomb: bytes) -> None:
    limit = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            decompress(codec, bomb, limit_bytes=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit + len(bomb)
