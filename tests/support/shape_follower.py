"""A client of shapes in a few lines of asyncio: light enough to have thousands of them.

It follows a shape as the npm client does, and is stricter: an offset that goes back, a mark of the
end that is not the last message, or an update for a row that it does not have raises.

Invariant  `rows` is what the server has told up to `offset`, in full only while `is_current`.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode

from tests.support.shape_topic import Rows
from varve.shapes.offset import BEFORE_ALL, parse_offset

_PATIENCE_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.05
_LINES_MAX_BYTES: Final = 1 << 16
_NO_BODY: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a client reads a body: so many bytes, then a rest."""

    piece_bytes: int
    rest_seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection, kept open for one request after the other."""

    def __init__(self, host: str, port: int, pace: Pace | None = None) -> None:
        self._host = host
        self._port = port
        self._pace = pace
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.has_begun = asyncio.Event()
        """Set with the first piece of a body."""

    async def get(self, target: str, headers: Mapping[str, str]) -> Answer:
        """Raises OSError or EOFError where the connection ends first; the next call opens one."""
        try:
            status, told, reader = await self.open(target, headers)
            body = b"" if status in _NO_BODY else b"".join([part async for part in reader])
        except BaseException:
            self.close()
            raise
        if told.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, told, body)

    async def open(
        self, target: str, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
        """The head of the answer, and its body as it comes."""
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"GET {target} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{''.join(lines)}\r\n"
        writer.write(head.encode())
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in rest if line)
        told = {name.lower(): value.strip() for name, _, value in pairs}
        return int(first.split()[1]), told, self._read_body(reader, told)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = socket.socket()
        made.setblocking(False)
        if self._pace is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._pace.piece_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(made, (self._host, self._port))
        except BaseException:
            made.close()
            raise
        limit = _LINES_MAX_BYTES if self._pace is None else self._pace.piece_bytes
        return await asyncio.open_connection(sock=made, limit=limit)

    async def _read_body(
        self, reader: asyncio.StreamReader, told: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        if "content-length" in told:
            async for piece in self._read_exactly(reader, int(told["content-length"])):
                yield piece
            return
        assert told.get("transfer-encoding") == "chunked", f"a body without an end: {told}"
        while size := int(await reader.readuntil(b"\r\n"), 16):
            async for piece in self._read_exactly(reader, size):
                yield piece
            assert await reader.readexactly(2) == b"\r\n"
        await reader.readuntil(b"\r\n")

    async def _read_exactly(self, reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
        if self._pace is None:
            yield await reader.readexactly(size)
            return
        while size:
            piece = await reader.readexactly(min(size, self._pace.piece_bytes))
            size -= len(piece)
            self.has_begun.set()
            yield piece
            await asyncio.sleep(self._pace.rest_seconds)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Follower:
    """Follows one shape while it is entered."""

    def __init__(
        self,
        host: str,
        port: int,
        parameters: Mapping[str, str],
        *,
        is_sse: bool = False,
        pace: Pace | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.rows: Rows = {}
        self.offset = "-1"
        self.handle = ""
        self.is_current = False
        self.request_count = 0
        self.refetch_count = 0
        self.retry_count = 0
        self.received_bytes = 0
        self._parameters = dict(parameters)
        self._headers = dict(headers or {})
        self._is_sse = is_sse
        self._cursor = ""
        self._connection = Connection(host, port, pace)
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._connection.close()
        # A transport is closed by the loop's next round.
        await asyncio.sleep(0)

    async def wait_rows(self, expected: Rows, seconds: float = _PATIENCE_SECONDS) -> None:
        """Returns when the rows are these; raises what ended the following, or TimeoutError."""
        async with asyncio.timeout(seconds):
            while not (self.is_current and self.rows == expected):
                self._moved.clear()
                waiting = asyncio.create_task(self._moved.wait())
                await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._task.done():
                    self._task.result()

    async def wait_begun(self, seconds: float = _PATIENCE_SECONDS) -> None:
        """Returns when a slow client has read a piece of its first answer."""
        async with asyncio.timeout(seconds):
            await self._connection.has_begun.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self._step()
            except (OSError, EOFError):
                self.retry_count += 1
                await asyncio.sleep(_RETRY_SECONDS)
            self._moved.set()

    async def _step(self) -> None:
        self.request_count += 1
        if self._is_sse and self.is_current:
            await self._stream()
            return
        answer = await self._connection.get(self._target(), self._headers)
        self.received_bytes += len(answer.body)
        if answer.status == 200:
            self._take(answer.headers, json.loads(answer.body))
        else:
            await self._take_refusal(answer.status, answer.headers, answer.body)

    def _target(self) -> str:
        asked = {**self._parameters, "offset": self.offset}
        if self.handle:
            asked["handle"] = self.handle
        if self.is_current:
            asked |= {"live": "true", "cursor": self._cursor}
            if self._is_sse:
                asked["live_sse"] = "true"
        return f"/v1/shape?{urlencode(sorted(asked.items()))}"

    async def _take_refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        if status == 409:
            assert headers["electric-handle"] != self.handle, "sent back to the same handle"
            self.refetch_count += 1
            self.handle = headers["electric-handle"]
            self.offset, self.is_current = "-1", False
            self.rows.clear()
        elif status in (429, 503):
            self.retry_count += 1
            await asyncio.sleep(min(float(headers.get("retry-after", "1")), 1.0))
        else:
            raise AssertionError(f"{status} to {self._target()}: {body[:1000]!r}")

    def _take(self, headers: Mapping[str, str], messages: list[Any]) -> None:
        ends = [one["headers"].get("control") == "up-to-date" for one in messages]
        assert not any(ends[:-1]), "the mark of the end is not the last message"
        is_current = bool(ends) and ends[-1]
        assert is_current == ("electric-up-to-date" in headers), f"{messages[-1:]} and {headers}"
        assert self.is_current or "electric-schema" in headers, f"no schema: {headers}"
        assert not self.is_current or "electric-cursor" in headers, f"no cursor: {headers}"
        for message in messages:
            self._apply(message)
        self._move(headers["electric-offset"], headers["electric-handle"])
        self.is_current = self.is_current or is_current
        self._cursor = headers.get("electric-cursor", self._cursor)

    def _move(self, offset: str, handle: str) -> None:
        new, old = parse_offset(offset), parse_offset(self.offset)
        assert new >= old or old == BEFORE_ALL, f"{self.offset} went back to {offset}"
        is_same = self.handle == handle or old == BEFORE_ALL
        assert is_same, f"{self.handle} became {handle} without a refetch"
        self.offset, self.handle = offset, handle

    def _apply(self, message: Mapping[str, Any]) -> None:
        match message["headers"].get("operation"):
            case "insert":
                self.rows[message["key"]] = message["value"]
            case "update":
                assert message["key"] in self.rows, f"update of a row that is not there: {message}"
                self.rows[message["key"]] = {**self.rows[message["key"]], **message["value"]}
            case "delete":
                self.rows.pop(message["key"], None)
            case other:
                assert other is None, f"unknown operation: {message}"

    async def _stream(self) -> None:
        """Events until the server ends them; applied up to each mark of the end, as npm does."""
        try:
            head = {**self._headers, "accept": "text/event-stream"}
            status, told, pieces = await self._connection.open(self._target(), head)
            if status != 200:
                body = b"".join([piece async for piece in pieces])
                await self._take_refusal(status, told, body)
                return
            assert told["content-type"].startswith("text/event-stream"), told
            assert told["electric-offset"] == self.offset, f"{told} to offset {self.offset}"
            self._cursor = told["electric-cursor"]
            held: list[Any] = []
            async for event in _split_events(pieces):
                held.append(json.loads(event))
                if held[-1]["headers"].get("control") == "up-to-date":
                    self._take_events(held)
                    held = []
            assert not held, f"the stream ended within a batch of {len(held)} messages"
        finally:
            self._connection.close()

    def _take_events(self, messages: list[Any]) -> None:
        for message in messages:
            self._apply(message)
        self._move(f"{int(messages[-1]['headers']['global_last_seen_lsn'])}_0", self.handle)
        self._moved.set()


async def _split_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                yield event[5:].strip()
            else:
                assert event.startswith(b":"), f"neither data nor comment: {event!r}"
