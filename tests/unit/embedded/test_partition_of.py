"""Keys go where Kafka's own clients put them."""

import random
import warnings

import numpy as np
import pytest

from varve.embedded.topic import partition_of
from varve.kernels.hashes import murmur2


def hash_of(key: bytes) -> int:
    return murmur2(np.frombuffer(key, np.uint8))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_tests(key: bytes, expected: int) -> None:
    assert hash_of(key) == expected & 0xFFFFFFFF


def test_the_hash_equals_another_clients() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client's own imports warn
        from kafka.partitioner.default import murmur2 as reference
    chance = random.Random(1)
    for size in range(70):
        key = chance.randbytes(size)
        assert hash_of(key) == reference(key) & 0xFFFFFFFF


def test_a_partition_lies_within_the_topic() -> None:
    keys = [b"key-%d" % number for number in range(1000)]
    assert {partition_of(key, 7) for key in keys} == set(range(7))
    assert {partition_of(key, 1) for key in keys} == {0}
