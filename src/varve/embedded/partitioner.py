"""Which partition a keyed record belongs to: Kafka's default, so that other clients agree."""

import numpy as np

from varve.kernels.hashes import murmur2


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key in a topic of so many partitions."""
    return (murmur2(np.frombuffer(key, np.uint8)) & 0x7FFFFFFF) % partition_count
