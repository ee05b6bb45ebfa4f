"""An HTTP server: uvicorn with bounds on connections, request heads and idle time.

Invariant  a client that sends nothing, or a head without end, or does not read a response, holds a
           connection for a bounded time and a bounded number of bytes.
Crash      requests in progress have a deadline when it stops; waiting ones are answered at once.
           After the deadline a request gets 503, and a response that is being sent is broken off.
Threads    the event loop only.
"""

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from varve.foundation.errors import Unavailable
from varve.http.endpoint import HttpApi
from varve.http.exchange import NO_STORE, TRANSPORT
from varve.http.origins import OriginRules

_WRITE_BUFFER_BYTES: Final = 64 << 10
"""Unsent bytes of a connection above which its response pauses."""
_JOINED_BYTES_MAX: Final = 64 << 10
"""Pieces up to this size are joined with the head; larger ones are written separately."""
_CONTINUE: Final = b"HTTP/1.1 100 "
_NOT_A_REQUEST: Final = (
    b"this is not an HTTP/1.1 request, or its address holds characters to be written as %XX"
)
_URL_BYTES_MAX: Final = 65_535
"""The limit of the URL parser in httptools."""


class HeadJoiner:
    """A transport that sends the head of a response with its first piece: one call, one packet."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, None
            if len(data) <= _JOINED_BYTES_MAX:
                data = head + data
            else:
                self._transport.write(head)
        elif self._head is not None and not data.startswith(_CONTINUE):
            self._head = data
            return
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = None
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class HttpConnection(HttpToolsProtocol):
    """The connection of one client, created by uvicorn."""

    def __init__(self, api: HttpApi, **options: Any) -> None:
        super().__init__(**options)
        self._api = api
        self._settings = api.settings
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
        # uvicorn informs only the newest request, which may wait for the running one.
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
                self._api.metrics.add_malformed("head")
                self._refuse(
                    b"431 Request Header Fields Too Large", b"the head of the request is too large"
                )
        elif self._timer is None and self.cycle is not None and self.cycle.response_complete:
            # Body data that no handler reads has cancelled uvicorn's own timer.
            self._arm()

    def send_400_response(self, msg: str) -> None:
        if len(self.url) > _URL_BYTES_MAX:
            self._api.metrics.add_malformed("address")
            text = b"the address is longer than %d bytes" % _URL_BYTES_MAX
            self._refuse(b"414 URI Too Long", text)
        else:
            self._api.metrics.add_malformed("bytes")
            self._refuse(b"400 Bad Request", _NOT_A_REQUEST)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        self._arm()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._disarm()
        super().on_headers_complete()
        # The task of the request starts after this.
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
            # It stays open until the client has read everything.
            self._arm()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def _refuse(self, status: bytes, text: bytes) -> None:
        """Responds to bytes that are not a request, so that pages of browsers can read it."""
        fields = [*NO_STORE, *OriginRules().headers(None, self._api.exposed_headers)]
        lines = [
            b"HTTP/1.1 " + status,
            b"content-type: text/plain",
            b"content-length: %d" % len(text),
            b"connection: close",
            *[b"%s: %s" % header for header in fields],
        ]
        self.transport.write(b"\r\n".join((*lines, b"", text)))
        self.transport.close()
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(self._settings.idle_ms / 1000, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_BACKLOG = 4096
_CANCEL_WAIT_S: Final = 1
"""How long requests that were cancelled may take to send their response."""


class HttpServer:
    """uvicorn with one application; the caller handles signals."""

    def __init__(self, api: HttpApi, *, host: str, port: int) -> None:
        self._api = api
        self._host = host
        self._port = port
        self._server: _UvicornServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Listens; raises Unavailable if that is not possible."""
        settings = self._api.settings
        listener = self._listen()
        self._port = listener.getsockname()[1]
        # Declared as a class, and called with named arguments alone.
        connection: Any = functools.partial(HttpConnection, self._api)
        config = uvicorn.Config(
            self._api,
            http=connection,
            loop="none",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=max(1, settings.idle_ms // 1000),
            timeout_graceful_shutdown=max(1, settings.shutdown_ms // 1000),
        )
        self._server = _UvicornServer(config)
        self._task = asyncio.ensure_future(self._server.serve([listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()
            raise Unavailable(f"cannot serve on {self._host}:{self._port}")

    async def serve_until(self, end: asyncio.Event) -> None:
        """Returns when the event is set; raises the error that ended the server before."""
        assert self._task is not None
        ending = asyncio.ensure_future(end.wait())
        await asyncio.wait((ending, self._task), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if self._task.done():
            self._task.result()
            raise Unavailable("the HTTP server ended by itself")

    async def stop(self) -> None:
        """Answers waiting requests, lets the others end in time, closes."""
        self._api.begin_stop()
        try:
            if self._server is not None and self._task is not None:
                self._server.end()
                await self._task
                cancelled = self._server.server_state.tasks
                if cancelled:
                    await asyncio.wait(cancelled, timeout=_CANCEL_WAIT_S)
        finally:
            self._api.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # Both loops switch off Nagle's delay only where the protocol is named.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
            listener.setblocking(False)
        except (OSError, UnicodeError) as error:
            listener.close()
            reason = _reason(error)
            raise Unavailable(
                f"cannot listen on {self._host}:{self._port} for HTTP: {reason}; choose another "
                "with --listen"
            ) from error
        return listener


def _reason(error: OSError | UnicodeError) -> str:
    """Why an address cannot be bound; a name that is not found has no error number."""
    if not isinstance(error, OSError) or not error.errno:
        return str(error)
    is_name = isinstance(error, socket.gaierror)
    return str(error.strerror) if is_name else os.strerror(error.errno)


class _UvicornServer(uvicorn.Server):
    """Handles no signals, and runs its tick once a second or when it ends."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._end = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._end.set()

    async def main_loop(self) -> None:
        # A tick of uvicorn is a tenth of a second; every tenth renews the date in the headers.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), 1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
