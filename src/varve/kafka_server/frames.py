"""Frames of requests: the memory they are received in, and how they are cut from it.

A request begins in a small buffer. When that is full it moves to a buffer of its own size, which is
reserved in the memory budget of all connections first: a client that announces a large request and
sends little of it holds little memory.

Invariant  a frame is a view of a buffer that is only filled further after it. A buffer returns to
           the pool when its last request is answered and no view of it is left. Memory that was
           reserved is released once.
Threads    the event loop's alone.
"""

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import MalformedMessage
from varve.wire import ApiKey

if TYPE_CHECKING:
    from varve.kafka_server.connection import Connection

BASE_BYTES: Final = 16 << 10
"""The size of a first receive buffer; the budget bounds only what is larger."""
_POOLED_BYTES: Final = 16 << 20
_POOLED_COUNT: Final = 256
_SEVERAL_FRAMES_BYTES: Final = 256 << 10
"""A buffer up to this size is made for several frames."""
_KEPT_BYTES: Final = 4 << 20
"""A connection that sent a larger frame than this starts its next one in a smaller buffer."""
_LENGTH: Final = Struct(">i")
_LENGTH_AND_API: Final = Struct(">ih")


class MemoryBudget:
    """A bound on bytes held for all connections together.

    Waiting connections are called in their order from a callback of the loop, one in each turn,
    never by the connection that releases memory: hundreds would call each other recursively.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self.used = 0
        self._loop = loop
        self._waiting: dict[Connection, int] = {}
        self._is_scheduled = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_exceeded(self) -> bool:
        """Whether more is in use than the limit, or connections still wait because it was."""
        return self.used > self.limit or bool(self._waiting)

    def try_reserve(self, size: int) -> bool:
        """Reserves if it fits and no connection waits; a first reservation always fits."""
        if self._waiting or not self._fits(size):
            return False
        self.used += size
        return True

    def reserve(self, size: int) -> None:
        """Reserves memory that is in use already, whether it fits or not."""
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0, "more was released than reserved"
        if self._waiting:
            self._schedule()

    def wait(self, connection: "Connection", size: int) -> None:
        """Calls `memory_granted` of the connection once that much was reserved for it."""
        self._waiting[connection] = size
        self._schedule()

    def cancel(self, connection: "Connection") -> None:
        """Ends the wait of a connection."""
        self._waiting.pop(connection, None)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._waiting and self._fits(self._first()[1]):
            self._is_scheduled = True
            self._loop.call_soon(self._grant_first)

    def _first(self) -> "tuple[Connection, int]":
        return next(iter(self._waiting.items()))

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit

    def _grant_first(self) -> None:
        self._is_scheduled = False
        if not self._waiting:
            return
        connection, size = self._first()
        if not self._fits(size):
            return
        del self._waiting[connection]
        self.used += size
        # Before the call: whatever it raises, the other connections are served.
        self._schedule()
        connection.memory_granted()


class ReceiveBuffer:
    """Bytes of one connection: those from `start` to `filled` are not parsed yet.

    `users` counts the requests that refer to it, and the connection while it fills it.
    """

    __slots__ = ("data", "filled", "reserved", "start", "users", "view")

    def __init__(self, data: bytearray, reserved: int) -> None:
        self.data = data
        self.reserved = reserved
        self.view = memoryview(data)
        self.start = 0
        self.filled = 0
        self.users = 1

    @property
    def capacity(self) -> int:
        return len(self.data)

    @property
    def unparsed(self) -> int:
        return self.filled - self.start


class BufferPool:
    """Receive buffers of a few sizes, reused while they are in the processor's caches."""

    def __init__(self, memory: MemoryBudget) -> None:
        self.memory = memory
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0
        self._free_count = 0

    def make(self, size: int) -> ReceiveBuffer:
        """A buffer of a size from `round_up`; its memory was reserved before."""
        free = self._free.get(size)
        if not free:
            return ReceiveBuffer(bytearray(size), reserved_bytes(size))
        self._free_bytes -= size
        self._free_count -= 1
        return ReceiveBuffer(free.pop(), reserved_bytes(size))

    @staticmethod
    def make_parked(data: memoryview) -> ReceiveBuffer:
        """The start of a frame that waits for memory, in a buffer of exactly its size.

        It reserves nothing: connections that hold memory while waiting for more could wait for
        each other forever.
        """
        parked = ReceiveBuffer(bytearray(data), 0)
        parked.filled = len(data)
        return parked

    def drop_user(self, buffer: ReceiveBuffer) -> None:
        """Releases the buffer with its last user."""
        buffer.users -= 1
        if buffer.users:
            return
        if self._has_no_views(buffer):
            self._keep(buffer.data)
        if buffer.reserved:
            self.memory.release(buffer.reserved)

    @staticmethod
    def _has_no_views(buffer: ReceiveBuffer) -> bool:
        """A bytearray refuses to change its length while a view of it is alive."""
        buffer.view.release()
        try:
            buffer.data.append(buffer.data.pop())
        except BufferError:
            return False
        return True

    def _keep(self, data: bytearray) -> None:
        if len(data) != round_up(len(data)):
            return
        fits = self._free_bytes + len(data) <= _POOLED_BYTES
        if fits and self._free_count < _POOLED_COUNT:
            self._free.setdefault(len(data), []).append(data)
            self._free_bytes += len(data)
            self._free_count += 1


def reserved_bytes(size: int) -> int:
    """What a buffer of a size reserves in the budget."""
    return size if size > BASE_BYTES else 0


def round_up(size: int) -> int:
    """The size of a buffer for this many bytes: a power of two, or three quarters of one."""
    if size <= BASE_BYTES:
        return BASE_BYTES
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


class FrameReader:
    """Bytes received from one client and not parsed yet."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._buffer: ReceiveBuffer | None = None
        self._next_size = BASE_BYTES
        self._largest_frame = 0
        self.wanted_bytes = 0
        """The size of the buffer that the rest of a frame waits for; 0 where none does."""

    @property
    def buffer(self) -> ReceiveBuffer:
        """The buffer of the last frame."""
        assert self._buffer is not None
        return self._buffer

    @property
    def unparsed(self) -> int:
        return 0 if self._buffer is None else self._buffer.unparsed

    @property
    def is_full(self) -> bool:
        """Whether nothing can be received before a frame is taken or memory is granted."""
        return self._buffer is not None and self._buffer.filled == self._buffer.capacity

    def free_space(self) -> memoryview:
        """Where the transport is to write received bytes."""
        buffer = self._buffer
        if buffer is None:
            size = self._next_size
            if reserved_bytes(size) and not self._pool.memory.try_reserve(size):
                size = BASE_BYTES
            buffer = self._buffer = self._pool.make(size)
        return buffer.view[buffer.filled :]

    def received(self, count: int) -> None:
        self.buffer.filled += count

    def next_api_key(self) -> int | None:
        """The API key of the next frame; None where it has not arrived."""
        buffer = self._buffer
        if buffer is None or buffer.unparsed < _LENGTH_AND_API.size:
            return None
        key: int = _LENGTH_AND_API.unpack_from(buffer.data, buffer.start)[1]
        return key

    def next_frame(self, produce_limit: int, other_limit: int) -> memoryview | None:
        """A complete frame or None; raises MalformedMessage for a length that is not allowed."""
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
        self._largest_frame = max(self._largest_frame, length)
        return buffer.view[start : start + length]

    def prepare_space(self) -> None:
        """Moves an incomplete frame to a buffer that it fits in, or drops an empty buffer.

        Where the memory for that is not available, `wanted_bytes` says how much to wait for.
        """
        buffer = self._buffer
        if buffer is None or self.wanted_bytes:
            return
        if not buffer.unparsed:
            self._drop_buffer()
            return
        frame_bytes = _LENGTH.size
        if buffer.unparsed >= _LENGTH.size:
            frame_bytes += _LENGTH.unpack_from(buffer.data, buffer.start)[0]
        if buffer.start + frame_bytes > buffer.capacity and (buffer.start or self.is_full):
            self._move_to_larger(buffer, frame_bytes)

    def _move_to_larger(self, buffer: ReceiveBuffer, frame_bytes: int) -> None:
        self._largest_frame = max(self._largest_frame, frame_bytes - _LENGTH.size)
        self._choose_next_size()
        least = round_up(frame_bytes)
        for size in (max(least, self._next_size), least):
            if not reserved_bytes(size) or self._pool.memory.try_reserve(size):
                self._copy_to(self._pool.make(size))
                return
        self._replace_buffer(self._pool.make_parked(buffer.view[buffer.start : buffer.filled]))
        self.wanted_bytes = least

    def use_granted_memory(self) -> None:
        """Continues in a buffer of the wanted size, whose memory is reserved now."""
        wanted_bytes, self.wanted_bytes = self.wanted_bytes, 0
        self._copy_to(self._pool.make(wanted_bytes))

    def _copy_to(self, new: ReceiveBuffer) -> None:
        old = self.buffer
        new.filled = old.unparsed
        new.view[: new.filled] = old.view[old.start : old.filled]
        self._replace_buffer(new)

    def _replace_buffer(self, new: ReceiveBuffer) -> None:
        old, self._buffer = self.buffer, new
        self._pool.drop_user(old)

    def _choose_next_size(self) -> None:
        """The next buffer is as large as the frames in this one suggest."""
        largest, self._largest_frame = self._largest_frame, 0
        several = min(4 * largest, _SEVERAL_FRAMES_BYTES)
        self._next_size = min(round_up(max(largest + _LENGTH.size, several)), _KEPT_BYTES)

    def _drop_buffer(self) -> None:
        self._choose_next_size()
        buffer, self._buffer = self.buffer, None
        self._pool.drop_user(buffer)

    def discard(self) -> None:
        """The connection is closed."""
        self.wanted_bytes = 0
        if self._buffer is not None:
            self._drop_buffer()
