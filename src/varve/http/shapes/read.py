"""GET of a shape: the messages after an offset, at once, by long poll, or as server-sent events.

Invariant  the offset of a response is never beyond the messages of its body, and a response that
           ends before the newest offset at the time of the request is not up to date. For events
           the header has the offset of the request; an up-to-date event carries the transaction of
           the last event before it, because clients continue from there, and none is sent while
           that is 0. A stream that cannot be completed breaks.
Threads    the event loop only.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import NotFound, StoreError, Unavailable
from varve.http.exchange import (
    CONTENT_TYPE,
    ETAG,
    EVENTS,
    JSON,
    ClientDisconnected,
    Header,
    HttpError,
    HttpExchange,
    Response,
    invalid,
    unavailable,
)
from varve.http.shapes import headers as electric
from varve.http.shapes.parameters import ShapeRequest
from varve.http.shapes.ranges import RangeBody
from varve.shapes.kernels.json_text import split_messages
from varve.shapes.offset import BEFORE_ALL, ShapeOffset
from varve.shapes.shape import Shape

if TYPE_CHECKING:
    from varve.http.shapes.api import ShapeApi

KEEP_ALIVE: Final = b": keep-alive\n\n"


def up_to_date(seen_tx: int) -> bytes:
    """The control message at the end; clients have everything up to that transaction."""
    return b'{"headers":{"control":"up-to-date","global_last_seen_lsn":"%d"}}' % seen_tx


def encode_events(joined: bytes) -> bytes:
    """Messages separated by commas, as events."""
    return b"".join([b"data: %s\n\n" % message for message in split_messages(joined)])


_UNHEALTHY_RETRY_S: Final = 10
_REPLAY_RETRY_S: Final = 1
_REPLAY_CHECK_MS: Final = 50
_HEALTH_CHECK_MS: Final = 1000
"""How often a request that waits for a snapshot checks the health of the topic."""


class ShapeReads:
    """Responds to regular requests."""

    def __init__(self, api: "ShapeApi") -> None:
        self._api = api
        self._unchanged_count = 0

    async def respond(self, exchange: HttpExchange, request: ShapeRequest) -> Response:
        """Data of the requested shape; 409 if it was dropped, perhaps by being read."""
        shape = await self._api.resolver.resolve(request)
        exchange.error_headers.append((electric.HANDLE, shape.handle.encode()))
        try:
            return await self._respond_from(exchange, request, shape)
        except StoreError as error:
            if shape.is_dropped or isinstance(error, NotFound):
                raise await self._api.resolver.refetch(shape) from error
            raise

    async def _respond_from(
        self, exchange: HttpExchange, request: ShapeRequest, shape: Shape
    ) -> Response:
        if not shape.is_open and shape.is_snapshot_complete:
            await self._api.read_pool.run(shape.open)
        if request.is_now:
            return self._respond_now(request, shape)
        if request.offset > shape.latest:
            await self._wait_for_offset(exchange, request, shape)
        not_modified = await self._find_not_modified(exchange, request, shape)
        if not_modified is not None:
            return not_modified
        await self.wait_for_snapshot(exchange, shape)
        if request.is_events:
            return self._stream(exchange, request, shape)
        if request.is_live and request.offset >= shape.latest:
            is_new = await self._hold(exchange, request, shape)
            if not is_new:
                return self._respond_unchanged(request, shape)
        if request.offset > shape.latest:
            return self._respond_unchanged(request, shape)
        return await self._respond_with_data(request, shape)

    async def _respond_with_data(self, request: ShapeRequest, shape: Shape) -> Response:
        # Read before the shape, so that the shape has everything up to it.
        newest_tx = self._api.engine.newest_tx(shape.definition.topic)
        last = shape.latest
        end = await self._find_end(shape, request.offset, last)
        body = await self._read(shape, request.offset, end)
        # A chunk that was closed meanwhile may end within a transaction, so more follows. More
        # rows follow too if the log was compacted meanwhile beyond the latest offset.
        is_whole = end == last and shape.compacted_to <= end
        is_up_to_date = request.offset != BEFORE_ALL and is_whole
        seen_tx = max(end.tx, 0) if request.is_live else max(end.tx, newest_tx, 0)
        tail = up_to_date(seen_tx) if is_up_to_date else b""
        fields = self._headers(request, shape, end)
        if is_up_to_date:
            fields.append((electric.UP_TO_DATE, b""))
        fields.append((electric.HAS_DATA, b"true"))
        return Response(200, fields, _body(body, tail))

    async def _read(self, shape: Shape, start: ShapeOffset, end: ShapeOffset) -> RangeBody:
        with shape.pin():
            body = await self._api.reader.read(shape, start, end)
            if not shape.is_dropped:
                return body
        await body.close()
        raise await self._api.resolver.refetch(shape)

    def _respond_now(self, request: ShapeRequest, shape: Shape) -> Response:
        """The present end of the shape, without data."""
        newest_tx = self._api.engine.newest_tx(shape.definition.topic)
        last = shape.latest
        fields = self._headers(request, shape, last)
        fields += [(electric.UP_TO_DATE, b""), (electric.HAS_DATA, b"false")]
        return Response(200, fields, b"[%s]" % up_to_date(max(last.tx, newest_tx, 0)))

    def _respond_unchanged(self, request: ShapeRequest, shape: Shape) -> Response:
        """The client has everything, and nothing happened during its request."""
        engine = self._api.engine
        self._check_health(shape)
        self._unchanged_count += 1
        fields = self._headers(request, shape, request.offset, unique=self._unchanged_count)
        fields += [(electric.UP_TO_DATE, b""), (electric.HAS_DATA, b"false")]
        newest_tx = max(engine.newest_tx(shape.definition.topic), request.offset.tx, 0)
        # A change that came since is not in this response.
        seen_tx = newest_tx if shape.latest == request.offset else request.offset.tx
        return Response(200, fields, b"[%s]" % up_to_date(max(seen_tx, 0)))

    def _stream(self, exchange: HttpExchange, request: ShapeRequest, shape: Shape) -> Response:
        """Events after the offset of the request, which the header repeats."""
        if not exchange.can_stream:
            message = "events need HTTP/1.1: use that, or leave out live_sse"
            raise HttpError(505, {"message": message})
        fields = self._headers(request, shape, request.offset)
        fields.append((electric.HAS_DATA, b"true"))
        return Response(200, fields, self._stream_events(exchange, request, shape))

    async def _stream_events(
        self, exchange: HttpExchange, request: ShapeRequest, shape: Shape
    ) -> AsyncIterator[bytes]:
        """Events until the time of the stream is over or the shape is dropped."""
        api = self._api
        loop = asyncio.get_running_loop()
        until = loop.time() + api.settings.events_ms / 1000
        keep_alive_s = api.settings.keep_alive_ms / 1000
        offset = request.offset
        with api.waiters.waiting(shape.handle) as waiter, shape.subscribe():
            exchange.watch(waiter.wake)
            while not (shape.is_dropped or exchange.is_disconnected or api.waiters.is_stopping):
                last = shape.latest
                if offset < last:
                    async for piece in self._catch_up(shape, offset, last):
                        yield piece
                    offset = last
                    if shape.compacted_to > offset:
                        # It was compacted meanwhile: the rows that were sent may be newer.
                        continue
                    if not offset.is_virtual:
                        yield encode_events(up_to_date(offset.tx))
                    is_silent = False
                else:
                    is_silent = not await waiter.wait(min(until, loop.time() + keep_alive_s))
                if loop.time() >= until:
                    return
                if is_silent:
                    yield KEEP_ALIVE

    async def _catch_up(
        self, shape: Shape, offset: ShapeOffset, last: ShapeOffset
    ) -> AsyncIterator[bytes]:
        """Everything in (offset, last], across chunks."""
        while offset < last:
            end = min(await self._find_end(shape, offset, last), last)
            body = await self._api.reader.read(shape, offset, end)
            try:
                if body.first:
                    yield encode_events(body.pop_first())
                async for piece in body.remaining():
                    events = encode_events(piece)
                    del piece
                    yield events
                    del events
            finally:
                await body.close()
            offset = end

    async def _find_end(self, shape: Shape, offset: ShapeOffset, last: ShapeOffset) -> ShapeOffset:
        """Where a response from an offset ends: with its chunk, or with the latest offset."""
        cached = shape.find_cached_chunk_end(offset)
        if cached is not None:
            end = cached.offset
        else:
            end = await self._api.read_pool.run(shape.chunk_end, offset)
        return last if end is None else end

    async def _find_not_modified(
        self, exchange: HttpExchange, request: ShapeRequest, shape: Shape
    ) -> Response | None:
        """304 if the client has this response in its cache."""
        sent = exchange.header(b"if-none-match")
        if sent is None or request.is_events or not shape.is_snapshot_started:
            return None
        if request.is_live and request.offset >= shape.latest:
            return None
        end = await self._find_end(shape, request.offset, shape.latest)
        etags = [part.strip().removeprefix("W/") for part in sent.split(",")]
        # RFC 9110, 13.1.2: an asterisk matches any response.
        if _etag(shape, request, end).decode() not in etags and etags != ["*"]:
            return None
        fields = self._headers(request, shape, end)
        fields.append((electric.HAS_DATA, b"true"))
        return Response(304, [header for header in fields if header[0] != CONTENT_TYPE])

    def _headers(
        self, request: ShapeRequest, shape: Shape, end: ShapeOffset, *, unique: int | None = None
    ) -> list[Header]:
        settings = self._api.settings
        fields = [
            EVENTS if request.is_events else JSON,
            (electric.HANDLE, shape.handle.encode()),
            (electric.OFFSET, str(end).encode()),
            (ETAG, _etag(shape, request, end, unique)),
            electric.cache_of(
                settings,
                is_initial=not request.is_now and request.offset == BEFORE_ALL,
                is_live=request.is_live,
                is_events=request.is_events,
            ),
        ]
        if request.is_live:
            cursor = electric.next_cursor(
                self._api.clock.now_ms(),
                settings.long_poll_ms,
                request.cursor,
                self._api.random,
            )
            fields.append((electric.CURSOR, b"%d" % cursor))
        else:
            fields.append(electric.NO_SCHEMA)
        return fields

    async def _hold(self, exchange: HttpExchange, request: ShapeRequest, shape: Shape) -> bool:
        """Waits for entries that the client does not have; False after the long-poll time."""
        return await self._wait(
            exchange,
            shape,
            lambda: shape.latest > request.offset,
            self._api.settings.long_poll_ms,
        )

    async def _wait_for_offset(
        self, exchange: HttpExchange, request: ShapeRequest, shape: Shape
    ) -> None:
        """Waits until the shape has the offset of the request.

        After a crash a client may be ahead of the shape until the topic is read again. A change of
        an uncertain row may not be repeated, because the client has it already.
        """
        has_offset = await self._wait(
            exchange,
            shape,
            lambda: shape.latest >= request.offset,
            self._api.settings.long_poll_ms // 2,
        )
        is_replayed = self._api.engine.is_caught_up(shape.definition.topic)
        # The offset may have been appended between the two checks.
        if has_offset or shape.latest >= request.offset:
            return
        if not is_replayed or self._api.waiters.is_stopping:
            raise unavailable(
                f"offset {request.offset} is not read again yet, the shape is at {shape.latest}",
                retry_s=_REPLAY_RETRY_S,
            )
        if request.offset.tx > self._api.engine.newest_tx(shape.definition.topic):
            raise invalid("offset", f"out of bounds for this shape, which is at {shape.latest}")

    async def wait_for_snapshot(self, exchange: HttpExchange, shape: Shape) -> None:
        """Returns when there are rows to read; raises 503 if that takes too long or fails."""
        if shape.is_snapshot_started:
            return
        remaining_ms = self._api.settings.snapshot_wait_ms
        has_begun = False
        while remaining_ms > 0 and not has_begun and not self._api.waiters.is_stopping:
            self._check_health(shape, is_opening_fine=True)
            has_begun = await self._wait(
                exchange,
                shape,
                lambda: shape.is_snapshot_started or shape.failure is not None,
                min(remaining_ms, _HEALTH_CHECK_MS),
            )
            remaining_ms -= _HEALTH_CHECK_MS
        if shape.failure is not None:
            raise _snapshot_error(shape.failure)
        if not has_begun:
            raise unavailable("the snapshot of the shape has not begun: try again later")

    async def wait_until_read_again(self, exchange: HttpExchange, shape: Shape) -> None:
        """Returns when rows include all that clients got before a restart; raises 503."""
        engine, topic = self._api.engine, shape.definition.topic
        remaining_ms = self._api.settings.long_poll_ms // 2
        while not engine.is_read_again(topic):
            if remaining_ms <= 0 or self._api.waiters.is_stopping:
                raise unavailable(
                    f"topic {topic} is being read again after a restart", retry_s=_REPLAY_RETRY_S
                )
            self._check_health(shape, is_opening_fine=True)
            wait_ms = min(remaining_ms, _REPLAY_CHECK_MS)
            await self._wait(exchange, shape, lambda: engine.is_read_again(topic), wait_ms)
            remaining_ms -= wait_ms

    def _check_health(self, shape: Shape, *, is_opening_fine: bool = False) -> None:
        """Raises 503 if the topic of a shape is not read."""
        topic = shape.definition.topic
        health = self._api.engine.topic_health(topic)
        if health is None or ((health.is_ready or is_opening_fine) and not health.error):
            return
        reason = health.error or "it is being opened"
        raise unavailable(f"topic {topic} is not read: {reason}", retry_s=_UNHEALTHY_RETRY_S)

    async def _wait(
        self, exchange: HttpExchange, shape: Shape, is_met: Callable[[], bool], wait_ms: int
    ) -> bool:
        """Whether the condition is met in time; raises 409 if the shape is dropped meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        waiters = self._api.waiters
        with waiters.waiting(shape.handle) as waiter, shape.subscribe():
            exchange.watch(waiter.wake)
            while not is_met():
                if shape.is_dropped:
                    if shape.failure is not None:
                        raise _snapshot_error(shape.failure)
                    raise await self._api.resolver.refetch(shape)
                if exchange.is_disconnected:
                    raise ClientDisconnected
                if waiters.is_stopping or not await waiter.wait(until):
                    return False
        return True


def _etag(
    shape: Shape, request: ShapeRequest, end: ShapeOffset, unique: int | None = None
) -> bytes:
    offset = "now" if request.is_now else str(request.offset)
    suffix = "" if unique is None else f":{unique}"
    return f'"{shape.handle}:{offset}:{end}{suffix}"'.encode()


def _body(body: RangeBody, tail: bytes) -> bytes | AsyncIterator[bytes]:
    if body.is_whole:
        between = b"," if body.first and tail else b""
        return b"".join((b"[", body.first, between, tail, b"]"))
    return _stream_body(body, tail)


async def _stream_body(body: RangeBody, tail: bytes) -> AsyncIterator[bytes]:
    try:
        yield b"["
        yield body.pop_first()
        async for piece in body.remaining():
            # Separately: joined with it, the piece would be copied.
            yield b","
            yield piece
            del piece
        yield b",%s]" % tail if tail else b"]"
    finally:
        await body.close()


def _snapshot_error(failure: Exception) -> HttpError:
    if isinstance(failure, Unavailable):
        return unavailable(str(failure))
    return unavailable("the snapshot of the shape failed: try again later")
