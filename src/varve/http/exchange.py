"""One request and the way its answer takes.

Invariant  a body that was begun ends whole or breaks the connection: a client that sees a clean end
           has taken its new place. A client that takes nothing is cut off.
Threads    the loop's alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from varve.http.answer import Answer, Refusal, invalid

TRANSPORT: Final = "varve.transport"
"""The extension of a scope by which a connection can be broken."""
_FIELDS_MAX: Final = 1000
_PART_BYTES: Final = 64 << 10
_END: Final[Message] = {"type": "http.response.body", "body": b""}


class Gone(Exception):
    """Nobody waits for the answer any more."""


class Exchange:
    """A request as it was sent; what follows from it is decided elsewhere."""

    __slots__ = (
        "_gone",
        "_is_body_read",
        "_receive",
        "_releases",
        "_send",
        "_watch",
        "handle",
        "headers",
        "is_gone",
        "method",
        "path_values",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.path_values: dict[str, Any] = scope.get("path_params", {})
        self.handle: str | None = None
        """That of the shape asked for, once it is known."""
        self.is_gone = False
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[None] | None = None
        self._gone: Callable[[], None] | None = None
        self._is_body_read = False
        self._releases: list[Callable[[], None]] = []

    @property
    def has_pieces(self) -> bool:
        """Whether the client can be sent a body whose length is not known."""
        return bool(self.scope.get("http_version") != "1.0")

    def header(self, name: bytes) -> str | None:
        found = self.headers.get(name)
        return None if found is None else found.decode("latin-1")

    def query(self) -> dict[str, str]:
        """The parameters by name; of a name given twice the last one counts."""
        text = self.scope["query_string"].decode("latin-1")
        try:
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX
            )
        except UnicodeDecodeError:
            raise invalid("query", "the query is no text in UTF-8") from None
        except ValueError:
            raise invalid("query", f"there are more than {_FIELDS_MAX} parameters") from None
        return dict(pairs)

    async def read_body(self, bytes_max: int, wait_ms: int) -> bytes:
        """All of the body; refuses one that is too large, or has not come whole in this time."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._join_body(bytes_max)
        except TimeoutError:
            raise Refusal(408, {"message": "the body of the request did not come"}) from None

    async def _join_body(self, bytes_max: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        more = not self._is_body_read
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise Refusal(413, {"error": f"the body is larger than {bytes_max} bytes"})
            parts.append(part)
            more = message.get("more_body", False)
        self._is_body_read = True
        return b"".join(parts)

    def watch(self, on_gone: Callable[[], None] | None = None) -> None:
        """From now on notes when the client leaves."""
        self._gone = on_gone
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_for_end())

    @contextlib.asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """What is awaited within ends, with Gone, when the client leaves."""
        try:
            async with asyncio.timeout(None) as limit:
                self.watch(lambda: limit.reschedule(0))
                try:
                    if self.is_gone:
                        raise Gone
                    yield
                finally:
                    self.watch()
        except TimeoutError:
            if not self.is_gone:
                raise
            raise Gone from None

    async def _watch_for_end(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self.is_gone = True
        if self._gone is not None:
            self._gone()

    async def answer(self, answer: Answer, idle_ms: int) -> int:
        """Sends it; the number of bytes of its body. Raises Gone where that is not possible, also
        when the server stops and waits no longer."""
        if not isinstance(answer.body, bytes) and not self.has_pieces:
            answer = await _collect(answer)
        try:
            if isinstance(answer.body, bytes):
                return await self._send_whole(answer, answer.body, idle_ms)
            return await self._send_pieces(answer, answer.body, idle_ms)
        except (TimeoutError, asyncio.CancelledError) as error:
            await self._break_off()
            raise Gone from error

    async def _send_whole(self, answer: Answer, body: bytes, idle_ms: int) -> int:
        size = (b"content-length", b"%d" % len(body))
        has_size = answer.status not in (204, 304)
        start = _start(answer, [size] if has_size else [])
        if self.method == "HEAD" or len(body) <= _PART_BYTES:
            await self._hand_over(idle_ms, start, {"type": "http.response.body", "body": body})
            return 0 if self.method == "HEAD" else len(body)
        await self._hand_over(idle_ms, start)
        await self._send_piece(body, idle_ms)
        await self._hand_over(idle_ms, _END)
        return len(body)

    async def _send_pieces(self, answer: Answer, body: AsyncIterator[bytes], idle_ms: int) -> int:
        try:
            # Clients of events see that the stream is open before there is one.
            opened = {"type": "http.response.body", "body": b"", "more_body": True}
            await self._hand_over(idle_ms, _start(answer, []), opened)
            if self.method == "HEAD":
                await self._hand_over(idle_ms, _END)
                return 0
            return await self._stream(body, idle_ms)
        finally:
            with contextlib.suppress(RuntimeError):
                await body.aclose()  # type: ignore[attr-defined]  # all of them are generators

    async def _stream(self, body: AsyncIterator[bytes], idle_ms: int) -> int:
        self.watch(self._gone)
        size = 0
        try:
            async for piece in body:
                if self.is_gone:
                    raise Gone
                size += len(piece)
                await self._send_piece(piece, idle_ms)
                del piece
            await self._hand_over(idle_ms, _END)
        except Gone:
            raise
        except Exception as error:
            await self._break_off()
            raise Gone from error
        return size

    async def _send_piece(self, piece: bytes, idle_ms: int) -> None:
        """In parts: what is sent is copied, and a slow client holds the copy as well."""
        whole = memoryview(piece)
        for start in range(0, len(piece), _PART_BYTES):
            body = piece if len(piece) <= _PART_BYTES else whole[start : start + _PART_BYTES]
            part = {"type": "http.response.body", "body": body, "more_body": True}
            await self._hand_over(idle_ms, part)
            if self.is_gone:
                raise Gone

    async def _hand_over(self, idle_ms: int, *messages: Message) -> None:
        """Waits for the client to take what lies before; raises TimeoutError if it does not."""
        async with asyncio.timeout(idle_ms / 1000):
            for message in messages:
                await self._send(message)

    async def _break_off(self) -> None:
        """Ends the connection so that the body is seen to be torn."""
        transport = self.scope.get("extensions", {}).get(TRANSPORT)
        if transport is None:
            raise RuntimeError("the body of an answer cannot be completed")
        transport.abort()
        # The server notes the end of the connection in the loop's next round.
        await asyncio.sleep(0)

    def on_close(self, release: Callable[[], None]) -> None:
        """What is called when the answer is sent, or nobody waits for it."""
        self._releases.append(release)

    def close(self) -> None:
        for release in self._releases:
            release()
        if self._watch is not None:
            # Let go of, for its error holds on to this exchange: garbage is looked for rarely.
            self._watch.cancel()
            self._watch = None


def _start(answer: Answer, more: list[tuple[bytes, bytes]]) -> Message:
    headers = answer.headers + more
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


async def _collect(answer: Answer) -> Answer:
    """The same whole: HTTP/1.0 has no pieces. An answer is no longer than about a chunk."""
    assert not isinstance(answer.body, bytes)
    parts = [piece async for piece in answer.body]
    return Answer(answer.status, answer.headers, b"".join(parts))
