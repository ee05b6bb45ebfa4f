"""Sends frames by the thousand over many connections, and reads whatever comes back.

Invariant  every answer is to a request that was sent, in order, and is well formed in its version.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from struct import Struct
from typing import Final

from tests.support.hostile_requests import LENGTH, Frame
from tests.support.kafka_server import HOST
from varve.foundation.errors import MalformedMessage
from varve.wire import APIS, ApiKey, ErrorCode, decode, read_request_header, skip_tags
from varve.wire.messages.cluster import ApiVersionsResponse

BURST: Final = 12
"""Frames that are sent in one go; those behind one that ends the connection are sent again."""
_LANES: Final = 12
_QUIET_SECONDS: Final = 0.25
_CORRELATION: Final = Struct(">i")


class Barrage:
    """Counts what became of the frames: answered, refused with an end, or left without either."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.counts: Counter[str] = Counter()
        self.answered: Counter[ApiKey] = Counter()
        self.unanswered: Counter[ApiKey] = Counter()
        self.failed: Counter[ApiKey] = Counter()
        """Answers that tell of an unknown server error."""

    @property
    def tried(self) -> int:
        return self.counts.total()

    def send(self, make: Callable[[], Frame], count: int) -> None:
        """Until so many frames were looked at by the server."""
        asyncio.run(self._send(make, count))

    async def _send(self, make: Callable[[], Frame], count: int) -> None:
        async def lane() -> None:
            waiting: deque[Frame] = deque()
            while self.tried < count:
                while len(waiting) < BURST:
                    waiting.append(make())
                await self._burst(waiting)

        async with asyncio.TaskGroup() as group:
            for _ in range(_LANES):
                group.create_task(lane())

    async def _burst(self, waiting: deque[Frame]) -> None:
        """One connection's life; takes from the front what was tried."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            with suppress(ConnectionError):
                writer.write(b"".join(one.data for one in waiting))
                await writer.drain()
            how = await self._read(reader, waiting)
            if waiting:
                frame = waiting.popleft()
                self.counts[how] += 1
                if how == "unanswered":
                    self.unanswered[frame.api.key] += 1
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, waiting: deque[Frame]) -> str:
        """Answers until the end; how the first frame without one ended."""
        try:
            while waiting:
                async with asyncio.timeout(_QUIET_SECONDS):
                    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                    data = memoryview(await reader.readexactly(length))
                self._take(data, waiting)
        except TimeoutError:
            return "unanswered"
        except (asyncio.IncompleteReadError, ConnectionError):
            return "refused"
        return "answered"

    def _take(self, data: memoryview, waiting: deque[Frame]) -> None:
        (number,) = _CORRELATION.unpack_from(data)
        while waiting:
            frame = waiting.popleft()
            header = read_request_header(memoryview(frame.data)[LENGTH.size :])
            if header.correlation_id == number:
                self.counts["answered"] += 1
                self._check(data, header.api_key, header.version)
                return
            # Only a Produce without acknowledgement has no answer and lets others have theirs.
            assert header.api_key == ApiKey.PRODUCE, f"no answer to {frame}, but to a later one"
            self.counts["unanswered"] += 1
        raise AssertionError(f"an answer to {number}, which nobody asked")

    def _check(self, data: memoryview, key: int, version: int) -> None:
        api = APIS[key]
        at = _CORRELATION.size
        if api.key is ApiKey.API_VERSIONS and version not in api.versions:
            told = decode(ApiVersionsResponse, 0, data, at)
            assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
            return
        if api.is_flexible(version) and api.key is not ApiKey.API_VERSIONS:
            at = skip_tags(data, at)
        try:
            answer = decode(api.response, version, data, at)
        except MalformedMessage as error:
            raise AssertionError(f"a malformed answer to {api.key.name} {version}") from error
        self.answered[api.key] += 1
        if getattr(answer, "error_code", 0) == ErrorCode.UNKNOWN_SERVER_ERROR:
            self.failed[api.key] += 1


def cuts_of(frames: Iterable[Frame]) -> list[bytes]:
    """Every frame cut at every point, the whole one left out."""
    return [one.data[:end] for one in frames for end in range(1, len(one.data))]
