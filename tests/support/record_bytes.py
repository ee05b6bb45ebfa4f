"""Records and batches as the format has them, without the code that writes them."""


def varint(value: int) -> bytes:
    rest = 2 * value if value >= 0 else -2 * value - 1
    groups = bytearray()
    while rest >= 128:
        groups.append(rest % 128 + 128)
        rest //= 128
    return bytes([*groups, rest])


def sized(data: bytes | None) -> bytes:
    """A byte string after its size; null has the size -1."""
    return varint(-1) if data is None else varint(len(data)) + data


# Batches of docs/reference/formats/record-batch.md: two records, the second of them with a delete
# horizon, a marker, and an empty batch
TWO_RECORDS = bytes.fromhex(
    "0000000000000000000000490000000002276e9c4100000000000100000000000003e800000000000003edffffffff"
    "ffffffffffffffffffff0000000214000000046b310476310018000a02046b32010202680278"
)
CLEANED = bytes.fromhex(
    "000000000000000000000040000000000212a1146d0040000000010000000000015f9000000000000003edffffffff"
    "ffffffffffffffffffff000000011c00c5ee0a02046b32010202680278"
)
COMMIT = bytes.fromhex(
    "0000000000000002000000420000000002cf3edf1100300000000000000000000007d000000000000007d000000000"
    "000000090001ffffffff000000012000000008000000010c00000000000700"
)
EMPTY = bytes.fromhex(
    "00000000000000030000003100000004025ec2b05d000000000002ffffffffffffffff00000000000004d200000000"
    "0000001700050000000a00000000"
)
