"""Parts of records as the format has them, by Python's own integers and slices."""


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
