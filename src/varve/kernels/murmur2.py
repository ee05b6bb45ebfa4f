"""Kafka's variant of MurmurHash2, by which clients choose a record's partition."""

from varve.kernels.compile import as_int, byte_buffers, kernel
from varve.kernels.loads import Bytes, load_u8

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


@kernel
def murmur2(key: Bytes) -> int:
    """The hash of a whole buffer, as an unsigned number of 32 bits."""
    size = key.size
    value = _SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        word = (
            load_u8(key, start)
            | load_u8(key, start + 1) << 8
            | load_u8(key, start + 2) << 16
            | load_u8(key, start + 3) << 24
        )
        word = word * _FACTOR & _MASK
        value = (value * _FACTOR & _MASK) ^ ((word ^ word >> 24) * _FACTOR & _MASK)
    if size != whole:
        for at in range(whole, size):
            value ^= load_u8(key, at) << 8 * (at - whole)
        value = value * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return as_int(value ^ value >> 15)


def warm() -> None:
    """Compile for the argument types in use."""
    for buffer in byte_buffers(b"key"):
        murmur2(buffer)
