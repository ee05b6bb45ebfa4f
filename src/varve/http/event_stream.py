"""Server-sent events: one message each, ended by an up-to-date message whenever all is told.

Invariant  the header's offset is the request's own; an up-to-date event carries the transaction of
           the last event before it, since clients go on from there, and none is sent while that
           is 0. A stream that cannot be completed breaks.
Threads    the loop's alone.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from varve.http.answer import up_to_date
from varve.http.exchange import Exchange
from varve.http.services import Services
from varve.http.shape_request import ShapeRequest
from varve.kernels.json_split import split_messages
from varve.shapes.offset import Offset
from varve.shapes.shape import Shape

KEEP_ALIVE: Final = b": keep-alive\n\n"

FindEnd = Callable[[Shape, Offset, Offset], Awaitable[Offset]]


class EventStream:
    """Streams of shapes."""

    def __init__(self, services: Services, find_end: FindEnd) -> None:
        self._services = services
        self._find_end = find_end

    async def stream(
        self, exchange: Exchange, request: ShapeRequest, shape: Shape
    ) -> AsyncIterator[bytes]:
        """Events until the stream's time is over or the shape is gone."""
        services = self._services
        loop = asyncio.get_running_loop()
        until = loop.time() + services.settings.events_ms / 1000
        keep_alive_s = services.settings.keep_alive_ms / 1000
        place = request.offset
        with services.waiters.at(shape.handle) as waiter, shape.subscribe():
            exchange.watch(waiter.wake)
            while not (shape.is_dropped or exchange.is_gone or services.waiters.is_stopping):
                last = shape.latest
                if place < last:
                    async for piece in self._catch_up(shape, place, last):
                        yield piece
                    place = last
                    if shape.compacted_to > place:
                        # It was compacted meanwhile: rows that were told are of up to there.
                        continue
                    if not place.is_virtual:
                        yield encode_events(up_to_date(place.tx))
                    is_silent = False
                else:
                    is_silent = not await waiter.wait(min(until, loop.time() + keep_alive_s))
                if loop.time() >= until:
                    return
                if is_silent:
                    yield KEEP_ALIVE

    async def _catch_up(self, shape: Shape, place: Offset, last: Offset) -> AsyncIterator[bytes]:
        """All in (place, last], over the ends of chunks."""
        while place < last:
            end = min(await self._find_end(shape, place, last), last)
            pieces = await self._services.reader.read(shape, place, end)
            try:
                if pieces.head:
                    yield encode_events(pieces.take_head())
                async for piece in pieces.follow():
                    events = encode_events(piece)
                    del piece
                    yield events
                    del events
            finally:
                await pieces.close()
            place = end


def encode_events(joined: bytes) -> bytes:
    """Messages that commas join, as events."""
    return b"".join([b"data: %s\n\n" % message for message in split_messages(joined)])
