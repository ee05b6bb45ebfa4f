"""CRC-32C: published values, and agreement with an independent implementation."""

from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest

from varve.kernels.crc import crc32c, crc32c_by_table, crc32c_of, extend_crc32c
from varve.kernels.memory import Bytes

Checksum = Callable[[Bytes, int, int], int]
both_ways = pytest.mark.parametrize("checksum", [crc32c, crc32c_by_table], ids=["fast", "table"])


@pytest.fixture(scope="module")
def noise() -> Bytes:
    return np.random.default_rng(20).integers(0, 256, 100_000, dtype=np.uint8)


@both_ways
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (b"Some String", 608512271),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(checksum: Checksum, data: bytes, expected: int) -> None:
    assert checksum(np.frombuffer(data, np.uint8), 0, len(data)) == expected


@both_ways
def test_random_slices_agree_with_google_crc32c(checksum: Checksum, noise: Bytes) -> None:
    data = noise.tobytes()
    rng = np.random.default_rng(21)
    for _ in range(2_000):
        start = int(rng.integers(0, 5_000))
        end = start + int(rng.integers(0, 4_000))
        assert checksum(noise, start, end) == google_crc32c.value(data[start:end])


@pytest.mark.parametrize("block", [8, 3 * 128, 3 * 1024, 3 * 8192, 3 * (8192 + 1024 + 128) + 8])
def test_sizes_around_each_block_agree_with_google_crc32c(noise: Bytes, block: int) -> None:
    data = noise.tobytes()
    for start in range(9):
        for size in range(block - 9, block + 10):
            end = start + max(size, 0)
            assert crc32c(noise, start, end) == google_crc32c.value(data[start:end])


def test_extending_gives_the_checksum_of_the_whole(noise: Bytes) -> None:
    for cut in (0, 1, 7, 8, 5_000, 99_999, 100_000):
        first = crc32c(noise, 0, cut)
        assert extend_crc32c(first, noise, cut, noise.size) == crc32c(noise, 0, noise.size)


@both_ways
@pytest.mark.parametrize(("start", "end"), [(-1, 3), (2, 1), (0, 11), (11, 11)])
def test_range_outside_the_buffer_is_refused(checksum: Checksum, start: int, end: int) -> None:
    with pytest.raises(IndexError):
        checksum(np.zeros(10, np.uint8), start, end)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_checksum_of_bytes_goes_on_from_that_of_the_bytes_before(
    kind: Callable[[bytes], bytes], noise: Bytes
) -> None:
    data = noise.tobytes()
    assert crc32c_of(kind(b"")) == 0
    assert crc32c_of(kind(data)) == google_crc32c.value(data)
    assert crc32c_of(kind(data[700:]), crc32c_of(kind(data[:700]))) == google_crc32c.value(data)
