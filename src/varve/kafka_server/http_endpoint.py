"""A small HTTP/1.1 server for monitoring: /metrics, /health and /ready.

Invariant  requests are bounded in size, time and number; every connection is closed after its
           response. A connection too many closes the oldest one: clients that send half a request
           or do not read their response keep nobody out.
Threads    the event loop's alone; pages that take long are made off the loop.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

logger = logging.getLogger(__name__)

_HEADER_BYTES_MAX: Final = 8 << 10
_REQUEST_SECONDS: Final = 10.0
_CONNECTION_COUNT_MAX: Final = 64
_PAGES_AT_ONCE: Final = 4
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """A response."""

    status: int
    body: str
    type: str = "text/plain; charset=utf-8"

    @classmethod
    def of(cls, is_ok: bool, state: dict[str, Any]) -> "Page":
        """A state as JSON, with status 200 or 503."""
        return cls(200 if is_ok else 503, json.dumps(state) + "\n", "application/json")


MakePage = Callable[[], Awaitable[Page]]


class HttpEndpoint:
    """Answers GET and HEAD for some paths."""

    def __init__(self, pages: Mapping[str, MakePage]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}
        """In the order of their arrival."""
        self._making = asyncio.Semaphore(_PAGES_AT_ONCE)

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; raises OSError."""
        server = await asyncio.start_server(self._serve, host, port, limit=_HEADER_BYTES_MAX)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _CONNECTION_COUNT_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            await asyncio.wait_for(self._exchange(reader, writer), _REQUEST_SECONDS)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request for monitoring failed")
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = _parse(head)
        page = await self._find_page(method, path)
        body = page.body.encode()
        writer.write(
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {page.type}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        if method != "HEAD":
            writer.write(body)
        await writer.drain()
        await _drained(writer)

    async def _find_page(self, method: str, path: str) -> Page:
        if not method:
            return Page(400, "not an HTTP request\n")
        if method not in ("GET", "HEAD"):
            return Page(405, "only GET and HEAD\n")
        make = self._pages.get(path)
        if make is None:
            return Page(404, f"known paths: {', '.join(self._pages)}\n")
        try:
            async with self._making:
                return await make()
        except Exception:
            logger.exception("a monitoring page failed", extra={"path": path})
            return Page(503, "internal error; the log has the cause\n")


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Waits until the kernel has taken everything."""
    while writer.transport.get_write_buffer_size():
        await asyncio.sleep(0.01)


def _parse(head: bytes) -> tuple[str, str]:
    """Method and path without its query; empty for an invalid request line."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]
