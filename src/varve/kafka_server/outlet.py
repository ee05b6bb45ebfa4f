"""The way out of a connection: answers as pieces, as fast as the client takes them.

Invariant  pieces leave in the order they were put; little more than `PIECE_BYTES` is handed to the
           transport before the client has taken it. Many records are not copied on their way
           unless the client is slower than they come.
Threads    the loop's alone.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final

from varve.kafka_server.buffers import ByteBudget
from varve.wire import Api, Message, encode_parts, write_response_header

Piece = bytes | bytearray | memoryview

PIECE_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 16 << 10
_JOINED_BYTES: Final = 128 << 10
"""Up to here copying costs less than more calls of the system, and than waking the client twice."""
_HAS_VECTORS: Final = sys.version_info >= (3, 12)
"""Older transports copy what they are given as a list into one."""
_LENGTH: Final = Struct(">i")


def encode_answer(
    api: Api, version: int, correlation_id: int, message: Message
) -> tuple[Sequence[Piece], int]:
    """The frame of an answer in pieces, and its size."""
    out = bytearray(_LENGTH.size)
    out += write_response_header(api.key, correlation_id, is_flexible=api.is_flexible(version))
    pieces = encode_parts(message, version, out)
    size = sum(map(len, pieces))
    _LENGTH.pack_into(out, 0, size - _LENGTH.size)
    return pieces, size


def encode_bare(token: bytes) -> tuple[Sequence[Piece], int]:
    """The frame of an answer without a header."""
    return (_LENGTH.pack(len(token)) + token,), _LENGTH.size + len(token)


class Outlet:
    """What waits to be written to one connection."""

    def __init__(self, budget: ByteBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._loop = loop
        self._queue: deque[Piece] = deque()
        self._transport: asyncio.Transport | None = None
        self._can_write = True
        self._left = 0
        self.queued = 0
        """Bytes that are not handed to the transport yet; taken from the budget."""
        self.moved_at = 0.0
        """By the loop's time, when the client last took something."""

    def attach(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=PIECE_BYTES, low=PIECE_BYTES // 4)
        self._transport = transport

    @property
    def is_stalled(self) -> bool:
        return not self._can_write

    def put(self, pieces: Sequence[Piece], size: int) -> None:
        """Adds an answer whose size was taken from the budget; `pump` writes it."""
        self._queue.extend(pieces)
        self.queued += size

    def pause(self) -> None:
        self._can_write = False
        self.moved_at = self._loop.time()
        self._left = 0

    def resume(self) -> None:
        self._can_write = True
        self.pump()

    def note_progress(self, now: float) -> float:
        """Since when the client has taken nothing."""
        assert self._transport is not None
        left = self._transport.get_write_buffer_size()
        if left != self._left:
            self._left = left
            self.moved_at = now
        return self.moved_at

    def pump(self) -> None:
        """Writes until the client is behind, or nothing is left."""
        while self._queue and self._can_write:
            batch, size = self._take_batch()
            self.queued -= size
            self._write(batch)
            self._budget.give_back(size)

    def _take_batch(self) -> tuple[list[Piece], int]:
        batch: list[Piece] = []
        size = 0
        while self._queue and size < PIECE_BYTES:
            piece = self._queue.popleft()
            room = PIECE_BYTES - size
            if len(piece) > room:
                view = memoryview(piece)
                self._queue.appendleft(view[room:])
                piece = view[:room]
            batch.append(piece)
            size += len(piece)
        return batch, size

    def _write(self, batch: list[Piece]) -> None:
        assert self._transport is not None
        if len(batch) == 1:
            self._transport.write(batch[0])
        elif _HAS_VECTORS:
            self._transport.writelines(batch)
        elif sum(map(len, batch)) <= _JOINED_BYTES:
            self._transport.write(b"".join(batch))
        else:
            for piece in _join_small(batch):
                self._transport.write(piece)

    def discard(self) -> None:
        """Forgets what was not written: the client is gone."""
        self._queue.clear()
        self._can_write = False
        queued, self.queued = self.queued, 0
        self._budget.give_back(queued)


def _join_small(batch: list[Piece]) -> list[Piece]:
    """Neighbours that are small become one, so that they are one call of the system."""
    joined: list[Piece] = []
    small: list[Piece] = []
    for piece in batch:
        if len(piece) < _SMALL_BYTES:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined
