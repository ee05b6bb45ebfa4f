"""The way into a connection: bytes from the socket, cut into frames.

A frame begins in a small buffer. When that is full it moves to one of its own size, which is taken
from the budget of all connections first: who announces much and sends little holds little, and who
has its memory needs no more to come to its end.

Invariant  a frame is a view of a buffer that nobody writes to again while the view lives: behind
           the frame the buffer is filled further, before it never.
Threads    the loop's alone.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from varve.foundation.errors import MalformedMessage
from varve.kafka_server.buffers import BASE_BYTES, BufferPool, ReceiveBuffer, cost_of, round_up
from varve.wire import ApiKey

_LENGTH: Final = Struct(">i")
_START: Final = Struct(">ih")
_SEVERAL_BYTES: Final = 256 << 10
"""A buffer up to this size is made for several frames."""
_KEPT_BYTES: Final = 4 << 20
"""A connection that sent a larger frame than this begins anew with less."""


class Inlet:
    """What was received and not parsed yet; `on_room` is called when memory it waited for came."""

    def __init__(self, pool: BufferPool, on_room: Callable[[], None]) -> None:
        self._pool = pool
        self._on_room = on_room
        self._buffer: ReceiveBuffer | None = None
        self._next_size = BASE_BYTES
        self._wanted_size = 0
        self.awaits_room = False
        self._largest = 0

    @property
    def buffer(self) -> ReceiveBuffer:
        """Where the last frame lies."""
        assert self._buffer is not None
        return self._buffer

    @property
    def unparsed(self) -> int:
        return 0 if self._buffer is None else self._buffer.unparsed

    @property
    def is_full(self) -> bool:
        """Whether nothing can be received before a frame is taken or memory is there."""
        return self._buffer is not None and self._buffer.filled == self._buffer.capacity

    def room(self) -> memoryview:
        """Where to receive to."""
        buffer = self._buffer
        if buffer is None:
            size = self._next_size
            if cost_of(size) and not self._pool.budget.find_room(size):
                size = BASE_BYTES
            buffer = self._buffer = self._pool.make(size)
        return buffer.view[buffer.filled :]

    def received(self, count: int) -> None:
        self.buffer.filled += count

    def next_api_key(self) -> int | None:
        """Of the next frame, as soon as it has begun."""
        buffer = self._buffer
        if buffer is None or buffer.unparsed < _START.size:
            return None
        key: int = _START.unpack_from(buffer.data, buffer.start)[1]
        return key

    def next_frame(self, produce_limit: int, other_limit: int) -> memoryview | None:
        """A whole frame, or None; raises MalformedMessage for a length that none may have."""
        buffer = self._buffer
        if buffer is None or buffer.unparsed < _LENGTH.size:
            return None
        start = buffer.start + _LENGTH.size
        (length,) = _LENGTH.unpack_from(buffer.data, buffer.start)
        limit = other_limit
        if length > other_limit and self.next_api_key() in (None, ApiKey.PRODUCE):
            limit = produce_limit
        if not 0 < length <= limit:
            raise MalformedMessage(
                f"a request of {length} bytes, where at most {limit} are allowed"
            )
        if start + length > buffer.filled:
            return None
        buffer.start = start + length
        self._largest = max(self._largest, length)
        return buffer.view[start : start + length]

    def settle(self) -> None:
        """Makes room for the rest of a frame, or lets an empty buffer go."""
        buffer = self._buffer
        if buffer is None or self.awaits_room:
            return
        if not buffer.unparsed:
            self._leave()
            return
        if buffer.unparsed < _LENGTH.size:
            missing = _LENGTH.size
        else:
            missing = _LENGTH.size + _LENGTH.unpack_from(buffer.data, buffer.start)[0]
        if buffer.start + missing > buffer.capacity:
            self._grow(missing)

    def _grow(self, frame_bytes: int) -> None:
        buffer = self.buffer
        if not buffer.start and not self.is_full:
            return
        self._largest = max(self._largest, frame_bytes - _LENGTH.size)
        self._choose_next_size()
        least = round_up(frame_bytes)
        size = max(least, self._next_size)
        if not cost_of(size) or self._pool.budget.find_room(size):
            self._replace(self._pool.make(size))
            return
        self._replace(self._pool.make_parked(buffer.view[buffer.start : buffer.filled]))
        self.awaits_room = True
        self._wanted_size = least
        self._pool.budget.wait(cost_of(least), self._on_granted)

    def _on_granted(self) -> None:
        self.awaits_room = False
        self._replace(self._pool.make(self._wanted_size))
        self._on_room()

    def _replace(self, new: ReceiveBuffer) -> None:
        """Goes on in another buffer; what is in it already stays as it is."""
        old = self.buffer
        if not new.filled:
            count = old.unparsed
            new.view[:count] = old.view[old.start : old.filled]
            new.filled = count
        self._buffer = new
        self._pool.leave(old)

    def _choose_next_size(self) -> None:
        """The next buffer is as large as the frames of this one ask for."""
        largest, self._largest = self._largest, 0
        several = min(4 * largest, _SEVERAL_BYTES)
        self._next_size = min(round_up(max(largest + _LENGTH.size, several)), _KEPT_BYTES)

    def _leave(self) -> None:
        self._choose_next_size()
        buffer, self._buffer = self.buffer, None
        self._pool.leave(buffer)

    def discard(self) -> None:
        """The connection is gone."""
        if self.awaits_room:
            self.awaits_room = False
            self._pool.budget.forget(self._on_granted)
        if self._buffer is not None:
            self._leave()
