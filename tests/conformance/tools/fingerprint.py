"""Bytes as a manifest names them."""

import hashlib

INLINE_BYTES = 48


def fingerprint(data: bytes | None) -> str | None:
    """Short values in hex, long ones by size and digest."""
    if data is None:
        return None
    if len(data) <= INLINE_BYTES:
        return f"hex:{data.hex()}"
    return f"sha256:{len(data)}:{hashlib.sha256(data).hexdigest()}"
