"""GET of a shape: what follows an offset, at once or when it happens.

Invariant  the offset of an answer is never beyond what its body holds, and no answer is up to date
           that ends before the newest place seen when it was asked for.
Threads    the loop's alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from varve.foundation.errors import NotFound, StoreError, Unavailable
from varve.http import headers
from varve.http.answer import Answer, Refusal, invalid, unavailable, up_to_date
from varve.http.event_stream import EventStream
from varve.http.exchange import Exchange, Gone
from varve.http.headers import Header
from varve.http.pieces import Pieces
from varve.http.services import Services
from varve.http.shape_request import ShapeRequest
from varve.shapes.offset import BEFORE_ALL, Offset
from varve.shapes.shape import Shape

_UNHEALTHY_RETRY_S: Final = 10
_REPLAY_RETRY_S: Final = 1
_REPLAY_LOOK_MS: Final = 50
_TROUBLE_LOOK_MS: Final = 1000
"""How often who waits for a snapshot looks whether the topic is in trouble."""


class ShapeReads:
    """Answers regular requests."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._events = EventStream(services, self.find_end)
        self._unchanged_count = 0

    async def answer(self, exchange: Exchange, request: ShapeRequest) -> Answer:
        """Data of the shape asked for; 409 where it went away, or went by being read."""
        shape = await self._services.resolver.resolve(request)
        exchange.handle = shape.handle
        try:
            return await self._answer_from(exchange, request, shape)
        except StoreError as error:
            if shape.is_dropped or isinstance(error, NotFound):
                raise await self._services.resolver.refetch(shape) from error
            raise

    async def _answer_from(self, exchange: Exchange, request: ShapeRequest, shape: Shape) -> Answer:
        if not shape.is_open and shape.is_snapshot_complete:
            await self._services.quick.run_in_engine(shape.open)
        if request.is_now:
            return self._at_once(request, shape)
        if request.offset > shape.latest:
            await self._wait_for_place(exchange, request, shape)
        known = await self._find_unchanged(exchange, request, shape)
        if known is not None:
            return known
        await self.wait_for_snapshot(exchange, shape)
        if request.is_events:
            return self._stream(exchange, request, shape)
        if request.is_live and request.offset >= shape.latest:
            is_new = await self._hold(exchange, request, shape)
            if not is_new:
                return self._unchanged(request, shape)
        if request.offset > shape.latest:
            return self._unchanged(request, shape)
        return await self._data(request, shape)

    async def find_end(self, shape: Shape, offset: Offset, last: Offset) -> Offset:
        """Where an answer that begins at an offset ends: with its chunk, or with the last place."""
        if offset.is_virtual or shape.is_in_memory(offset):
            end = shape.chunk_end(offset)
        else:
            end = await self._services.quick.run_in_engine(shape.chunk_end, offset)
        return last if end is None else end

    async def _data(self, request: ShapeRequest, shape: Shape) -> Answer:
        # Asked for before the shape, so that a shape has all that this counts.
        newest_tx = self._services.engine.newest_tx(shape.definition.topic)
        last = shape.latest
        end = await self.find_end(shape, request.offset, last)
        pieces = await self._read(shape, request.offset, end)
        # A chunk that was ended meanwhile may end within a transaction, of which there is more. So
        # there is of rows, where the log was compacted meanwhile up to behind the last place.
        is_whole = end == last and shape.compacted_to <= end
        is_up_to_date = request.offset != BEFORE_ALL and is_whole
        seen_tx = max(end.tx, 0) if request.is_live else max(end.tx, newest_tx, 0)
        tail = up_to_date(seen_tx) if is_up_to_date else b""
        told = self._headers(request, shape, end)
        if is_up_to_date:
            told.append((headers.UP_TO_DATE, b""))
        told.append((headers.HAS_DATA, b"true"))
        return Answer(200, told, _body(pieces, tail))

    async def _read(self, shape: Shape, start: Offset, end: Offset) -> Pieces:
        with shape.pin():
            pieces = await self._services.reader.read(shape, start, end)
            if not shape.is_dropped:
                return pieces
        await pieces.close()
        raise await self._services.resolver.refetch(shape)

    def _at_once(self, request: ShapeRequest, shape: Shape) -> Answer:
        """The end of what there is now, and none of it."""
        newest_tx = self._services.engine.newest_tx(shape.definition.topic)
        last = shape.latest
        told = self._headers(request, shape, last)
        told += [(headers.UP_TO_DATE, b""), (headers.HAS_DATA, b"false")]
        return Answer(200, told, b"[%s]" % up_to_date(max(last.tx, newest_tx, 0)))

    def _unchanged(self, request: ShapeRequest, shape: Shape) -> Answer:
        """A client that has all, where nothing happened in the time of its request."""
        engine = self._services.engine
        self._check_health(shape)
        self._unchanged_count += 1
        told = self._headers(request, shape, request.offset, unique=self._unchanged_count)
        told += [(headers.UP_TO_DATE, b""), (headers.HAS_DATA, b"false")]
        newest_tx = max(engine.newest_tx(shape.definition.topic), request.offset.tx, 0)
        # A change may have come since: then what is newest is not in this answer.
        seen_tx = newest_tx if shape.latest == request.offset else request.offset.tx
        return Answer(200, told, b"[%s]" % up_to_date(max(seen_tx, 0)))

    def _stream(self, exchange: Exchange, request: ShapeRequest, shape: Shape) -> Answer:
        """Events from the request's own offset on: a client takes the one in the header as read."""
        if not exchange.has_pieces:
            message = "events need HTTP/1.1: ask with that, or without live_sse"
            raise Refusal(505, {"message": message})
        told = self._headers(request, shape, request.offset)
        told.append((headers.HAS_DATA, b"true"))
        return Answer(200, told, self._events.stream(exchange, request, shape))

    async def _find_unchanged(
        self, exchange: Exchange, request: ShapeRequest, shape: Shape
    ) -> Answer | None:
        """304 where a cache has this very answer."""
        sent = exchange.header(b"if-none-match")
        if sent is None or request.is_events or not shape.is_snapshot_started:
            return None
        if request.is_live and request.offset >= shape.latest:
            return None
        end = await self.find_end(shape, request.offset, shape.latest)
        known = [part.strip().removeprefix("W/") for part in sent.split(",")]
        # RFC 9110, 13.1.2: an asterisk means whatever there is.
        if _etag(shape, request, end).decode() not in known and known != ["*"]:
            return None
        told = self._headers(request, shape, end)
        told.append((headers.HAS_DATA, b"true"))
        return Answer(304, [one for one in told if one[0] != headers.CONTENT_TYPE])

    def _headers(
        self, request: ShapeRequest, shape: Shape, end: Offset, *, unique: int | None = None
    ) -> list[Header]:
        settings = self._services.settings
        told = [
            headers.EVENTS if request.is_events else headers.JSON,
            (headers.HANDLE, shape.handle.encode()),
            (headers.OFFSET, str(end).encode()),
            (headers.ETAG, _etag(shape, request, end, unique)),
            headers.cache_of(
                settings,
                is_initial=not request.is_now and request.offset == BEFORE_ALL,
                is_live=request.is_live,
                is_events=request.is_events,
            ),
        ]
        if request.is_live:
            cursor = headers.next_cursor(
                self._services.clock.now_ms(),
                settings.long_poll_ms,
                request.cursor,
                self._services.draws.randint,
            )
            told.append((headers.CURSOR, b"%d" % cursor))
        else:
            told.append(headers.NO_SCHEMA)
        return told

    async def _hold(self, exchange: Exchange, request: ShapeRequest, shape: Shape) -> bool:
        """Waits for more than the request has; False at the end of its time."""
        return await self._wait(
            exchange,
            shape,
            lambda: shape.latest > request.offset,
            self._services.settings.long_poll_ms,
        )

    async def _wait_for_place(
        self, exchange: Exchange, request: ShapeRequest, shape: Shape
    ) -> None:
        """After a crash a client may know more than the shape does, until that was read again.

        What was told of an uncertain row need not be told again: the client has it then.
        """
        has_come = await self._wait(
            exchange,
            shape,
            lambda: shape.latest >= request.offset,
            self._services.settings.long_poll_ms // 2,
        )
        is_replayed = self._services.engine.is_caught_up(shape.definition.topic)
        # What came between the two questions counts as well.
        if has_come or shape.latest >= request.offset:
            return
        if not is_replayed or self._services.waiters.is_stopping:
            raise unavailable(
                f"offset {request.offset} is not read again yet, the shape is at {shape.latest}",
                retry_s=_REPLAY_RETRY_S,
            )
        if request.offset.tx > self._services.engine.newest_tx(shape.definition.topic):
            raise invalid("offset", f"out of bounds for this shape, which is at {shape.latest}")

    async def wait_for_snapshot(self, exchange: Exchange, shape: Shape) -> None:
        """Returns when there are rows to read; refuses when that takes too long, or fails."""
        if shape.is_snapshot_started:
            return
        left_ms = self._services.settings.snapshot_wait_ms
        has_begun = False
        while left_ms > 0 and not has_begun and not self._services.waiters.is_stopping:
            self._check_health(shape, is_opening_fine=True)
            has_begun = await self._wait(
                exchange,
                shape,
                lambda: shape.is_snapshot_started or shape.failure is not None,
                min(left_ms, _TROUBLE_LOOK_MS),
            )
            left_ms -= _TROUBLE_LOOK_MS
        if shape.failure is not None:
            raise _snapshot_refusal(shape.failure)
        if not has_begun:
            raise unavailable("the snapshot of the shape has not begun: come again later")

    async def wait_until_read_again(self, exchange: Exchange, shape: Shape) -> None:
        """Returns when rows are not behind what was told before a restart; refuses in time."""
        engine, topic = self._services.engine, shape.definition.topic
        left_ms = self._services.settings.long_poll_ms // 2
        while not engine.is_read_again(topic):
            if left_ms <= 0 or self._services.waiters.is_stopping:
                raise unavailable(
                    f"topic {topic} is being read again after a restart", retry_s=_REPLAY_RETRY_S
                )
            self._check_health(shape, is_opening_fine=True)
            wait_ms = min(left_ms, _REPLAY_LOOK_MS)
            await self._wait(exchange, shape, lambda: engine.is_read_again(topic), wait_ms)
            left_ms -= wait_ms

    def _check_health(self, shape: Shape, *, is_opening_fine: bool = False) -> None:
        """Refuses where the topic of a shape is not read."""
        topic = shape.definition.topic
        health = self._services.engine.topic_health(topic)
        if health is None or ((health.is_ready or is_opening_fine) and not health.error):
            return
        why = health.error or "it is being opened"
        raise unavailable(f"topic {topic} is not read: {why}", retry_s=_UNHEALTHY_RETRY_S)

    async def _wait(
        self, exchange: Exchange, shape: Shape, is_met: Callable[[], bool], wait_ms: int
    ) -> bool:
        """Whether it came true in time; raises 409 when the shape went away meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        waiters = self._services.waiters
        with waiters.at(shape.handle) as waiter, shape.subscribe():
            exchange.watch(waiter.wake)
            while not is_met():
                if shape.is_dropped:
                    if shape.failure is not None:
                        raise _snapshot_refusal(shape.failure)
                    raise await self._services.resolver.refetch(shape)
                if exchange.is_gone:
                    raise Gone
                if waiters.is_stopping or not await waiter.wait(until):
                    return False
        return True


def _etag(shape: Shape, request: ShapeRequest, end: Offset, unique: int | None = None) -> bytes:
    asked = "now" if request.is_now else str(request.offset)
    more = "" if unique is None else f":{unique}"
    return f'"{shape.handle}:{asked}:{end}{more}"'.encode()


def _body(pieces: Pieces, tail: bytes) -> bytes | AsyncIterator[bytes]:
    if pieces.is_whole:
        between = b"," if pieces.head and tail else b""
        return b"".join((b"[", pieces.head, between, tail, b"]"))
    return _pieces_of_body(pieces, tail)


async def _pieces_of_body(pieces: Pieces, tail: bytes) -> AsyncIterator[bytes]:
    try:
        yield b"["
        yield pieces.take_head()
        async for piece in pieces.follow():
            # By itself: with it the piece would be copied.
            yield b","
            yield piece
            del piece
        yield b",%s]" % tail if tail else b"]"
    finally:
        await pieces.close()


def _snapshot_refusal(failure: Exception) -> Refusal:
    if isinstance(failure, Unavailable):
        return unavailable(str(failure))
    return unavailable("the snapshot of the shape failed: come again later")
