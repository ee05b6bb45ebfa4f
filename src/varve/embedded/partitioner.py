"""Which partition a keyed record belongs to: Kafka's default, so that other clients agree."""

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's variant of MurmurHash2, as an unsigned number of 32 bits."""
    size = len(data)
    hash = _SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _FACTOR & _MASK
        hash = (hash * _FACTOR & _MASK) ^ ((word ^ word >> 24) * _FACTOR & _MASK)
    if size != whole:
        hash = (hash ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    hash = (hash ^ hash >> 13) * _FACTOR & _MASK
    return hash ^ hash >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key in a topic of so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
