"""One HTTP exchange: reads the request, sends the response, and converts errors to responses.

Invariant  the body of a response arrives whole or the connection breaks: a client that sees a clean
           end may advance its offset. A client that does not read is disconnected. The content type
           is JSON only if the body is.
Threads    the event loop only.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from varve.foundation.errors import (
    Closed,
    Fenced,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    StoreError,
    Unavailable,
)

Header = tuple[bytes, bytes]

RETRY_AFTER: Final = b"retry-after"
ETAG: Final = b"etag"
CACHE: Final = b"cache-control"
CONTENT_TYPE: Final = b"content-type"

JSON: Final = (CONTENT_TYPE, b"application/json")
EVENTS: Final = (CONTENT_TYPE, b"text/event-stream")
NO_CACHE: Final = (CACHE, b"no-cache")
NO_STORE: Final[tuple[Header, ...]] = ((CACHE, b"no-store"), (b"surrogate-control", b"no-store"))

_RETRY_S: Final = 5
"""The default of Retry-After: soon for a person, rare enough for many clients at once."""


class Response:
    """A status, headers, and a body that is complete or comes in pieces."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, headers: list[Header], body: "bytes | AsyncIterator[bytes]" = b""
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @classmethod
    def of_json(cls, status: int, document: Any, *headers: Header) -> "Response":
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        # A lone surrogate, which a request may hold, is sent as \ud800, which is JSON.
        return cls(status, [JSON, *headers], text.encode(errors="backslashreplace"))

    @classmethod
    def of_text(cls, status: int, media_type: str, text: str) -> "Response":
        return cls(status, [(CONTENT_TYPE, media_type.encode()), *NO_STORE], text.encode())


class HttpError(Exception):
    """An error response."""

    def __init__(self, status: int, body: Any, headers: Sequence[Header] = NO_STORE) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.headers = headers

    def response(self) -> Response:
        if isinstance(self.body, bytes):
            return Response(self.status, [JSON, *self.headers], self.body)
        return Response.of_json(self.status, self.body, *self.headers)


def invalid(parameter: str, *texts: str, within: str | None = None) -> HttpError:
    """400: a parameter cannot be used; `within` names the object that it is part of."""
    errors: dict[str, Any] = {parameter: list(texts)}
    if within is not None:
        errors = {within: errors}
    return HttpError(400, {"message": "Invalid request", "errors": errors})


def unavailable(message: str, *, retry_s: int = _RETRY_S, code: str | None = None) -> HttpError:
    """503: clients try again by themselves."""
    body = {"message": message} if code is None else {"code": code, "message": message}
    return HttpError(503, body, (*NO_STORE, (RETRY_AFTER, b"%d" % retry_s)))


STATUSES: Final[tuple[tuple[type[StoreError], int], ...]] = (
    (OffsetOutOfRange, 400),
    (NotFound, 404),
    (Closed, 503),
    (InvalidRequest, 400),
    (Unavailable, 503),
    (Fenced, 503),
    (StoreError, 500),
)
"""HTTP statuses of engine errors; the first class that matches counts."""


def status_of(error: type[StoreError]) -> int:
    return next(status for error_class, status in STATUSES if issubclass(error, error_class))


def to_http_error(error: Exception) -> HttpError:
    """The response for an error; internal ones are sent without details."""
    status = status_of(type(error)) if isinstance(error, StoreError) else 500
    if status == 503:
        return unavailable(str(error))
    if status == 500:
        return HttpError(500, {"error": "Internal error"})
    if status == 404:
        return HttpError(404, {"message": str(error)})
    return invalid(getattr(error, "parameter", None) or "request", str(error))


TRANSPORT: Final = "varve.transport"
"""The scope extension that holds the transport, to abort the connection."""
_FIELDS_MAX: Final = 1000
_PART_BYTES: Final = 64 << 10
_END: Final[Message] = {"type": "http.response.body", "body": b""}


class ClientDisconnected(Exception):
    """The client no longer waits for the response."""


class HttpExchange:
    """A request as it was sent, and the connection for its response."""

    __slots__ = (
        "_is_body_read",
        "_on_disconnect",
        "_receive",
        "_releases",
        "_send",
        "_watch",
        "error_headers",
        "headers",
        "is_disconnected",
        "method",
        "path_values",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.path_values: dict[str, Any] = scope.get("path_params", {})
        self.error_headers: list[Header] = []
        """Headers of an error response, unless it has them."""
        self.is_disconnected = False
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[None] | None = None
        self._on_disconnect: Callable[[], None] | None = None
        self._is_body_read = False
        self._releases: list[Callable[[], None]] = []

    @property
    def can_stream(self) -> bool:
        """Whether the client takes a body of unknown length."""
        return bool(self.scope.get("http_version") != "1.0")

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self) -> dict[str, str]:
        """The parameters by name; of a repeated name the last one counts."""
        text = self.scope["query_string"].decode("latin-1")
        try:
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX
            )
        except UnicodeDecodeError:
            raise invalid("query", "the query is not UTF-8") from None
        except ValueError:
            raise invalid("query", f"there are more than {_FIELDS_MAX} parameters") from None
        return dict(pairs)

    async def read_body(self, bytes_max: int, wait_ms: int) -> bytes:
        """The whole body; raises 413 if it is too large, 408 if it does not arrive in time."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._join_body(bytes_max)
        except TimeoutError:
            raise HttpError(408, {"message": "the body of the request did not arrive"}) from None

    async def _join_body(self, bytes_max: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        has_more = not self._is_body_read
        while has_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise HttpError(413, {"error": f"the body is larger than {bytes_max} bytes"})
            parts.append(part)
            has_more = message.get("more_body", False)
        self._is_body_read = True
        return b"".join(parts)

    def watch(self, on_disconnect: Callable[[], None] | None = None) -> None:
        """Detects from now on when the client disconnects."""
        self._on_disconnect = on_disconnect
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._wait_for_disconnect())

    @contextlib.asynccontextmanager
    async def cancel_on_disconnect(self) -> AsyncIterator[None]:
        """What is awaited within ends with ClientDisconnected when the client disconnects."""
        try:
            async with asyncio.timeout(None) as limit:
                self.watch(lambda: limit.reschedule(0))
                try:
                    if self.is_disconnected:
                        raise ClientDisconnected
                    yield
                finally:
                    self.watch()
        except TimeoutError:
            if not self.is_disconnected:
                raise
            raise ClientDisconnected from None

    async def _wait_for_disconnect(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self.is_disconnected = True
        if self._on_disconnect is not None:
            self._on_disconnect()

    async def send(self, response: Response, idle_ms: int) -> int:
        """Sends the response; returns the bytes of its body.

        Raises ClientDisconnected if that is not possible, also when the server stops meanwhile.
        """
        if not isinstance(response.body, bytes) and not self.can_stream:
            response = await _collect(response)
        try:
            if isinstance(response.body, bytes):
                return await self._send_whole(response, response.body, idle_ms)
            return await self._send_pieces(response, response.body, idle_ms)
        except (TimeoutError, asyncio.CancelledError) as error:
            await self._break_off()
            raise ClientDisconnected from error

    async def _send_whole(self, response: Response, body: bytes, idle_ms: int) -> int:
        size = (b"content-length", b"%d" % len(body))
        has_size = response.status not in (204, 304)
        start = _start(response, [size] if has_size else [])
        if self.method == "HEAD" or len(body) <= _PART_BYTES:
            await self._send_within(idle_ms, start, {"type": "http.response.body", "body": body})
            return 0 if self.method == "HEAD" else len(body)
        await self._send_within(idle_ms, start)
        await self._send_piece(body, idle_ms)
        await self._send_within(idle_ms, _END)
        return len(body)

    async def _send_pieces(
        self, response: Response, body: AsyncIterator[bytes], idle_ms: int
    ) -> int:
        try:
            # Clients of events see that the stream is open before there is one.
            opened = {"type": "http.response.body", "body": b"", "more_body": True}
            await self._send_within(idle_ms, _start(response, []), opened)
            if self.method == "HEAD":
                await self._send_within(idle_ms, _END)
                return 0
            return await self._stream(body, idle_ms)
        finally:
            with contextlib.suppress(RuntimeError):
                await body.aclose()  # type: ignore[attr-defined]  # all of them are generators

    async def _stream(self, body: AsyncIterator[bytes], idle_ms: int) -> int:
        self.watch(self._on_disconnect)
        size = 0
        try:
            async for piece in body:
                if self.is_disconnected:
                    raise ClientDisconnected
                size += len(piece)
                await self._send_piece(piece, idle_ms)
                del piece
            await self._send_within(idle_ms, _END)
        except ClientDisconnected:
            raise
        except Exception as error:
            await self._break_off()
            raise ClientDisconnected from error
        return size

    async def _send_piece(self, piece: bytes, idle_ms: int) -> None:
        """Sends a piece in parts, because uvicorn copies each part until the client has read it."""
        whole = memoryview(piece)
        for start in range(0, len(piece), _PART_BYTES):
            body = piece if len(piece) <= _PART_BYTES else whole[start : start + _PART_BYTES]
            part = {"type": "http.response.body", "body": body, "more_body": True}
            await self._send_within(idle_ms, part)
            if self.is_disconnected:
                raise ClientDisconnected

    async def _send_within(self, idle_ms: int, *messages: Message) -> None:
        """Sends messages once the client has read earlier ones; raises TimeoutError."""
        async with asyncio.timeout(idle_ms / 1000):
            for message in messages:
                await self._send(message)

    async def _break_off(self) -> None:
        """Ends the connection so that the client sees an incomplete body."""
        transport = self.scope.get("extensions", {}).get(TRANSPORT)
        if transport is None:
            raise RuntimeError("the body of a response cannot be completed")
        transport.abort()
        # The server sees the end of the connection in the next iteration of the loop.
        await asyncio.sleep(0)

    def on_close(self, release: Callable[[], None]) -> None:
        """Registers a function to call when the response is sent or the client disconnects."""
        self._releases.append(release)

    def close(self) -> None:
        for release in self._releases:
            release()
        if self._watch is not None:
            # Cleared, because its error refers to this exchange and garbage is collected rarely.
            self._watch.cancel()
            self._watch = None


def _start(response: Response, extra_headers: list[Header]) -> Message:
    headers = response.headers + extra_headers
    return {"type": "http.response.start", "status": response.status, "headers": headers}


async def _collect(response: Response) -> Response:
    """The response with its whole body: HTTP/1.0 has no chunked bodies. About a chunk at most."""
    assert not isinstance(response.body, bytes)
    parts = [piece async for piece in response.body]
    return Response(response.status, response.headers, b"".join(parts))
