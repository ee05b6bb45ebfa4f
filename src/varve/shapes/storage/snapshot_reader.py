"""The rows of one snapshot chunk, in pieces that are almost the bytes of its file.

Invariant  a piece is whole rows joined by commas, without one at either end; each row comes once.
           The last piece comes only after the checksum of the whole chunk was found right.
Threads    a reader belongs to one thread at a time.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.kernels.crc import extend_crc32c
from varve.shapes.storage.snapshot_chunks import END, SnapshotChunk

PIECE_BYTES: Final = 256 << 10
"""Bytes of a piece, unless a single row is larger."""

Await = Callable[[int], tuple[int, SnapshotChunk | None]]
"""How much of the chunk may be read, once that is more than a position, and the chunk if it is
finished."""


def read_pieces(file: File, await_more: Await) -> Iterator[bytes]:
    """Reads the chunk to its end, as far as its writer has come; the file is closed behind it."""
    with file:
        position, crc, carry = 0, 0, b""
        chunk: SnapshotChunk | None = None
        while chunk is None or position < chunk.size:
            visible, chunk = await_more(position)
            wanted = max(PIECE_BYTES - len(carry), len(carry))
            block = file.read_at(position, min(wanted, visible - position))
            if not block:
                raise Corrupt(f"{file.path} ends at byte {position}, {visible} bytes were written")
            position += len(block)
            crc = extend_crc32c(crc, np.frombuffer(block, np.uint8), 0, len(block))
            rows = carry + block if carry else block
            if chunk is not None and position >= chunk.size:
                rows = _checked(file, rows, crc, chunk)
            end = rows.rfind(b"\n") + 1
            carry = rows[end:]
            piece = _without_comma(file, rows, end) if end else b""
            # A client that does not read holds this generator: it keeps no more than the piece.
            block = rows = b""
            if piece:
                yield piece
        if carry:
            raise Corrupt(f"{file.path} has {len(carry)} bytes behind its last row")


def _checked(file: File, rows: bytes, crc: int, chunk: SnapshotChunk) -> bytes:
    if crc != chunk.crc:
        raise Corrupt(f"{file.path} has CRC-32C {crc:#010x}, {chunk.crc:#010x} was written")
    if not rows.endswith(END):
        raise Corrupt(f"{file.path} does not end with the byte 0x04")
    return rows[:-1]


def _without_comma(file: File, rows: bytes, end: int) -> bytes:
    if end < 3 or rows[end - 2 : end - 1] != b",":
        raise Corrupt(f"{file.path} has a row that does not end with a comma")
    return rows[: end - 2]
