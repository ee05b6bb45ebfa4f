"""The process's HTTP server: listens, answers until told to stop, lets requests end.

Crash      requests in flight have a deadline when it stops; held ones are answered at once. Behind
           the deadline a request is 503, and an answer that is being sent is broken off.
Threads    the loop's alone.
"""

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from varve.foundation.errors import Unavailable
from varve.http.app import make_app
from varve.http.connection import Connection
from varve.http.services import Services

_BACKLOG = 4096
_LAST_WORDS_S = 1
"""How long requests whose time is over may take to tell their clients."""


class HttpServer:
    """uvicorn with this application; signals are taken by whoever runs it."""

    def __init__(self, services: Services, *, host: str, port: int) -> None:
        self._services = services
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Listens; raises Unavailable where that is not possible."""
        settings = self._services.settings
        listening = self._listen()
        self._port = listening.getsockname()[1]
        # Declared as a class, and called with named arguments alone.
        connection: Any = functools.partial(
            Connection, settings, self._services.metrics.note_malformed
        )
        config = uvicorn.Config(
            make_app(self._services),
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
            timeout_graceful_shutdown=max(1, settings.stop_ms // 1000),
        )
        self._server = _Server(config)
        self._task = asyncio.ensure_future(self._server.serve([listening]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()
            raise Unavailable(f"cannot serve on {self._host}:{self._port}")

    async def serve_until(self, end: asyncio.Event) -> None:
        """Returns when it is set; raises what ended the server before."""
        assert self._task is not None
        ending = asyncio.ensure_future(end.wait())
        await asyncio.wait((ending, self._task), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if self._task.done():
            self._task.result()
            raise Unavailable("the HTTP server ended by itself")

    async def stop(self) -> None:
        """Answers what waits, lets the rest end in time, closes."""
        self._services.waiters.stop()
        self._services.engine.end_compactions()
        try:
            if self._server is not None and self._task is not None:
                self._server.end()
                await self._task
                cancelled = self._server.server_state.tasks
                if cancelled:
                    await asyncio.wait(cancelled, timeout=_LAST_WORDS_S)
        finally:
            self._services.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # Both loops switch off Nagle's delay only where the protocol is named.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
            listening.setblocking(False)
        except (OSError, UnicodeError) as error:
            listening.close()
            reason = _reason(error)
            raise Unavailable(
                f"cannot listen on {self._host}:{self._port} for shapes: {reason}; choose another "
                "with --listen"
            ) from error
        return listening


def _reason(error: OSError | UnicodeError) -> str:
    """Why an address cannot be bound; that a name is not found is none of the system's errors."""
    if not isinstance(error, OSError) or not error.errno:
        return str(error)
    is_name = isinstance(error, socket.gaierror)
    return str(error.strerror) if is_name else os.strerror(error.errno)


class _Server(uvicorn.Server):
    """Leaves signals alone, and looks once a second or when it is to end."""

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
