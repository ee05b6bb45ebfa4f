"""A connection of uvicorn with bounds: on its head, on its idle time, on how many there are.

Invariant  a client that sends nothing, or a head without end, or does not take an answer, holds a
           connection for a bounded time and a bounded number of bytes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from varve.http.exchange import TRANSPORT
from varve.http.headers import NO_STORE, cross_origin
from varve.http.settings import HttpSettings

_WRITE_BUFFER_BYTES: Final = 64 << 10
_JOINED_BYTES_MAX: Final = 64 << 10
_CONTINUE: Final = b"HTTP/1.1 100 "
_URL_BYTES_MAX: Final = 65_535
"""What the parser of addresses takes."""


def _refuse(status: bytes, why: bytes) -> bytes:
    """An answer to what is no request; pages may read it, so that clients do not try for ever."""
    told = [*NO_STORE, *cross_origin(None)]
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: text/plain",
        b"content-length: %d" % len(why),
        b"connection: close",
        *[b"%s: %s" % header for header in told],
    ]
    return b"\r\n".join((*lines, b"", why))


_TOO_LARGE: Final = _refuse(
    b"431 Request Header Fields Too Large", b"the head of the request is too large"
)
_TOO_LONG: Final = _refuse(
    b"414 URI Too Long", b"the address is longer than %d bytes" % _URL_BYTES_MAX
)
_NO_REQUEST: Final = _refuse(
    b"400 Bad Request",
    b"this is no request of HTTP/1.1, or its address holds characters to be written as %XX",
)


class HeadJoiner:
    """A transport that sends the head of an answer with its first piece: one call, one packet."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._transport.write(data)
        elif not self._head:
            if data.startswith(_CONTINUE):
                self._transport.write(data)
            else:
                self._head = data
        else:
            head, self._head = self._head, None
            self._transport.write(head + data if len(data) <= _JOINED_BYTES_MAX else head)
            if len(data) > _JOINED_BYTES_MAX:
                self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = None
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Connection(HttpToolsProtocol):
    """What uvicorn makes for each client.

    `note_refused` is told what was wrong with bytes that are no request: head, address, bytes.
    """

    def __init__(
        self, settings: HttpSettings, note_refused: Callable[[str], None], **given: Any
    ) -> None:
        super().__init__(**given)
        self._settings = settings
        self._note_refused = note_refused
        self._timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._is_in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._settings.connections_max:
            transport.close()
            return
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        # uvicorn tells it to the newest request alone, which may wait behind the running one.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._settings.head_bytes_max:
                self._note_refused("head")
                self._end_with(_TOO_LARGE)
        elif self._timer is None and self.cycle is not None and self.cycle.response_complete:
            # The rest of a body that nobody waits for has ended uvicorn's own timer.
            self._arm()

    def send_400_response(self, msg: str) -> None:
        is_long = len(self.url) > _URL_BYTES_MAX
        self._note_refused("address" if is_long else "bytes")
        self._end_with(_TOO_LONG if is_long else _NO_REQUEST)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        self._arm()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._disarm()
        super().on_headers_complete()
        # The task of the request begins after this, and finds it.
        extensions: Any = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions
        if self.scope["method"] != "HEAD":
            joined: Any = HeadJoiner(self.transport)
            self.cycle.transport = joined

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            # It stays open until all is taken.
            self._arm()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def _end_with(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.transport.close()
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(self._settings.idle_ms / 1000, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
