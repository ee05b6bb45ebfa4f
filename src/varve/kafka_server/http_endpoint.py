"""A small HTTP/1.1 door for monitoring: /metrics, /health and /ready.

Invariant  a request is bounded in size and time, and so is the number of those being answered;
           every connection is closed after its answer.
Threads    the loop's alone; figures are put into words off the loop.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

logger = logging.getLogger(__name__)

_HEAD_BYTES: Final = 8 << 10
_SECONDS: Final = 10.0
_AT_ONCE: Final = 16
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
    """An answer."""

    status: int
    body: str
    type: str = "text/plain; charset=utf-8"

    @classmethod
    def of(cls, is_well: bool, told: dict[str, Any]) -> "Page":
        """A state as JSON; 503 where it is not well."""
        return cls(200 if is_well else 503, json.dumps(told) + "\n", "application/json")


MakePage = Callable[[], Awaitable[Page]]


class HttpEndpoint:
    """Answers GET for some paths."""

    def __init__(self, pages: Mapping[str, MakePage]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._busy = 0

    async def start(self, host: str, port: int) -> int:
        """The port that is listened on; raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._busy < _AT_ONCE:
                self._busy += 1
                try:
                    await asyncio.wait_for(self._exchange(reader, writer), _SECONDS)
                finally:
                    self._busy -= 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request for figures was given up")
        finally:
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
            return Page(400, "this is no HTTP request\n")
        if method not in ("GET", "HEAD"):
            return Page(405, "only GET and HEAD\n")
        make = self._pages.get(path)
        if make is None:
            return Page(404, f"there are {', '.join(self._pages)}\n")
        try:
            return await make()
        except Exception:
            logger.exception("a page could not be made", extra={"path": path})
            return Page(503, "this could not be told; the log says why\n")


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Waits until everything is with the system."""
    while writer.transport.get_write_buffer_size():
        await asyncio.sleep(0.01)


def _parse(head: bytes) -> tuple[str, str]:
    """Method and path without its query; empty for what is no request."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]
