"""Responses of a connection: in the order of their requests, as fast as the client reads them.

Invariant  a response is written when all before it are written. Its size is reserved in the memory
           budget of all connections as soon as it is encoded, and released when the system has
           taken its last byte or the connection is closed: a part of it keeps all of it in memory.
           At most `WRITE_BYTES` are in the transport until the client reads them.
Threads    the event loop's alone.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final

from varve.kafka_server.dispatcher import Request
from varve.kafka_server.frames import MemoryBudget, ReceiveBuffer
from varve.kafka_server.settings import ServerSettings
from varve.wire import Api, ApiKey, Message, encode_parts, write_response_header

Piece = bytes | bytearray | memoryview

WRITE_BYTES: Final = 256 << 10
"""TLS holds so much of a response without counting it."""
_LENGTH: Final = Struct(">i")
_LONG_POLLS: Final = (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


def encode_response(
    api: Api, version: int, correlation_id: int, message: Message
) -> tuple[Sequence[Piece], int]:
    """The frame of a response in pieces, and its size."""
    out = bytearray(_LENGTH.size)
    out += write_response_header(api.key, correlation_id, is_flexible=api.is_flexible(version))
    pieces = encode_parts(message, version, out)
    size = sum(map(len, pieces))
    _LENGTH.pack_into(pieces[0], 0, size - _LENGTH.size)
    return pieces, size


def encode_token(token: bytes) -> tuple[Sequence[Piece], int]:
    """The frame of a SASL token without a response header."""
    return (_LENGTH.pack(len(token)) + token,), _LENGTH.size + len(token)


class ResponseWriter:
    """Responses that wait to be written to one client."""

    def __init__(self, memory: MemoryBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory
        self._loop = loop
        self._pieces: deque[Piece] = deque()
        self._unsent: deque[tuple[int, int]] = deque()
        """The position after each response that is not sent, counted from the first, and its size.
        """
        self._put_bytes = 0
        self._handed_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._transport_bytes = 0
        self.is_stalled = False
        """Whether the transport has bytes that the system does not take yet."""
        self.held_bytes = 0
        """Bytes of responses that are not sent completely, which are reserved in the budget."""
        self.progress_at = 0.0
        """The loop's time when a stalled client last read something."""

    def attach(self, transport: asyncio.Transport) -> None:
        # Stalled as soon as a byte waits: TLS transports of uvloop are paused at the limit itself.
        transport.set_write_buffer_limits(high=1, low=0)
        self._transport = transport

    @property
    def queued_bytes(self) -> int:
        """Bytes that are not handed to the transport yet."""
        return self._put_bytes - self._handed_bytes

    def put(self, pieces: Sequence[Piece], size: int) -> None:
        """Adds a response whose memory is reserved; `write` sends it."""
        self._pieces.extend(pieces)
        self._put_bytes += size
        self._unsent.append((self._put_bytes, size))
        self.held_bytes += size

    def pause(self) -> None:
        self.is_stalled = True
        self.progress_at = self._loop.time()
        self._transport_bytes = 0

    def resume(self) -> None:
        self.is_stalled = False
        self.write()

    def last_progress(self, now: float) -> float:
        """The loop's time when the client last read something."""
        assert self._transport is not None
        transport_bytes = self._transport.get_write_buffer_size()
        if transport_bytes != self._transport_bytes:
            self._transport_bytes = transport_bytes
            self.progress_at = now
        return self.progress_at

    def write(self) -> None:
        """Writes until the client stops reading or nothing is queued."""
        assert self._transport is not None
        while self._pieces and not self.is_stalled:
            pieces, size = self._next_pieces()
            self._handed_bytes += size
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            else:
                self._transport.writelines(pieces)
        self._release_sent(self._handed_bytes - self._transport.get_write_buffer_size())

    def _release_sent(self, sent_bytes: int) -> None:
        released = 0
        while self._unsent and self._unsent[0][0] <= sent_bytes:
            released += self._unsent.popleft()[1]
        if released:
            self.held_bytes -= released
            self._memory.release(released)

    def _next_pieces(self) -> tuple[list[Piece], int]:
        """At most `WRITE_BYTES` of what is queued."""
        pieces: list[Piece] = []
        size = 0
        while self._pieces and size < WRITE_BYTES:
            piece = self._pieces.popleft()
            remaining = WRITE_BYTES - size
            if len(piece) > remaining:
                view = memoryview(piece)
                self._pieces.appendleft(view[remaining:])
                piece = view[:remaining]
            pieces.append(piece)
            size += len(piece)
        return pieces, size

    def discard(self) -> None:
        """Drops what was not written: the connection is closed."""
        self._pieces.clear()
        self._unsent.clear()
        self.is_stalled = True
        held_bytes, self.held_bytes = self.held_bytes, 0
        self._memory.release(held_bytes)


class InFlightRequest:
    """A request in progress, or its response that waits for those before it."""

    __slots__ = (
        "buffer",
        "busy_seconds",
        "is_done",
        "pieces",
        "request",
        "request_bytes",
        "response_bytes",
        "started_at",
    )

    def __init__(self, request_bytes: int, started_at: float) -> None:
        self.request: Request | None = None
        """None for a SASL token without a header."""
        self.request_bytes = request_bytes
        self.started_at = started_at
        self.busy_seconds = 0.0
        """The time until the handler had to wait; 0 for a request that is answered at once."""
        self.buffer: ReceiveBuffer | None = None
        self.is_done = False
        self.pieces: Sequence[Piece] = ()
        self.response_bytes = 0

    @property
    def is_long_poll(self) -> bool:
        return self.request is not None and self.request.api.key in _LONG_POLLS

    def encode(self, request: Request, response: Message) -> None:
        self.pieces, self.response_bytes = encode_response(
            request.api, request.context.version, request.correlation_id, response
        )


class ResponseQueue:
    """Requests in progress and responses that wait for those before them."""

    def __init__(
        self, writer: ResponseWriter, memory: MemoryBudget, settings: ServerSettings
    ) -> None:
        self._writer = writer
        self._memory = memory
        self._queue: deque[InFlightRequest] = deque()
        self._request_bytes = 0
        self._count_max = settings.connection_max_requests
        self._request_bytes_max = settings.connection_max_request_bytes

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether the connection may not start another request."""
        return len(self._queue) >= self._count_max or self._request_bytes >= self._request_bytes_max

    @property
    def has_only_long_polls(self) -> bool:
        return not self._queue or self._queue[0].is_long_poll

    def add(self, in_flight: InFlightRequest) -> None:
        self._queue.append(in_flight)
        self._request_bytes += in_flight.request_bytes

    def complete(self, in_flight: InFlightRequest) -> None:
        """Marks the response as ready; a request may have none."""
        self._memory.reserve(in_flight.response_bytes)
        in_flight.is_done = True

    def write(self) -> None:
        """Writes completed responses in request order, as fast as the client reads them."""
        queue, writer = self._queue, self._writer
        while queue and queue[0].is_done:
            in_flight = queue.popleft()
            self._request_bytes -= in_flight.request_bytes
            if in_flight.response_bytes:
                writer.put(in_flight.pieces, in_flight.response_bytes)
        writer.write()

    def discard(self) -> None:
        """The connection is closed; requests in progress are carried out nevertheless."""
        for in_flight in self._queue:
            if in_flight.is_done:
                self._memory.release(in_flight.response_bytes)
        self._queue.clear()
