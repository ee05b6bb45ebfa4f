"""The messages of a range of a shape, read for one response or once for many.

Invariant  the messages of a range never change, because offsets are never used twice. So a small
           range is read once for all requests, and cached for a while.
Threads    the event loop only; reading happens in a pool.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Final

from varve.foundation.errors import Closed, StoreError
from varve.http.endpoint import WorkerPool
from varve.shapes.offset import ShapeOffset
from varve.shapes.shape import Shape

PIECE_BYTES: Final = 256 << 10
"""A slow client holds one piece of about this size, which is never copied."""

Range = tuple[str, ShapeOffset, ShapeOffset]
FirstPiece = tuple[bytes, Iterator[bytes] | None]


class RangeBody:
    """The first piece of a range, and the remaining ones if there are more."""

    __slots__ = ("_closing", "_pool", "_reading", "_rest", "first")

    def __init__(self, first: bytes, rest: Iterator[bytes] | None, pool: WorkerPool) -> None:
        self.first = first
        self._rest = rest
        self._pool = pool
        self._reading: asyncio.Future[tuple[bytes, bool]] | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the first piece is all of it."""
        return self._rest is None

    def pop_first(self) -> bytes:
        """The first piece, which is not kept here: a slow client holds one piece at a time."""
        first, self.first = self.first, b""
        return first

    async def remaining(self) -> AsyncIterator[bytes]:
        """The pieces after the first one, to be separated by commas; each is read when needed."""
        while self._rest is not None:
            self._reading = asyncio.ensure_future(self._pool.run(_take, self._rest))
            piece, is_last = await asyncio.shield(self._reading)
            self._reading = None
            if is_last:
                self._rest = None
            if piece:
                yield piece
            del piece

    async def close(self) -> None:
        """Closes files of which not everything was read."""
        if self._reading is not None and not self._reading.done():
            # A thread reads it: it is closed afterwards.
            self._reading.add_done_callback(self._close_later)
            return
        rest, self._rest = self._rest, None
        if rest is not None and hasattr(rest, "close"):
            # When the server stops the files are closed with the process.
            with contextlib.suppress(Closed):
                await self._pool.run(_close, rest)

    def _close_later(self, reading: "asyncio.Future[tuple[bytes, bool]]") -> None:
        if not reading.cancelled():
            reading.exception()
        self._closing = asyncio.ensure_future(self.close())


class RangeReader:
    """Reads ranges, small ones once for all requests."""

    def __init__(self, read_pool: WorkerPool, snapshot: WorkerPool, shared_bytes: int) -> None:
        self._quick = read_pool
        self._snapshot = snapshot
        self._shared_bytes = shared_bytes
        self._kept: OrderedDict[Range, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._reading: dict[Range, asyncio.Future[FirstPiece]] = {}
        self.shared_count = 0

    async def read(self, shape: Shape, start: ShapeOffset, end: ShapeOffset) -> RangeBody:
        """What lies in (start, end]; raises what the engine raises before anything is sent."""
        pool = self._quick if shape.is_snapshot_complete else self._snapshot
        wanted = (shape.handle, start, end)
        kept = self._kept.get(wanted)
        if kept is not None:
            self.shared_count += 1
            return RangeBody(kept, None, pool)
        if shape.is_in_memory(start):
            first, rest = _begin(shape, start, end)
        else:
            first, rest = await self._read_once(wanted, shape, pool)
        if rest is None:
            self._keep(wanted, first)
        return RangeBody(first, rest, pool)

    async def _read_once(self, wanted: Range, shape: Shape, pool: WorkerPool) -> FirstPiece:
        """One reads for all; a range too large to be kept is read by each."""
        under_way = self._reading.get(wanted)
        if under_way is not None:
            try:
                first, rest = await asyncio.shield(under_way)
            except StoreError as error:
                raise error.again() from error
            if rest is None:
                self.shared_count += 1
                return first, None
            return await pool.run(_begin, shape, *wanted[1:])
        reading = asyncio.ensure_future(pool.run(_begin, shape, *wanted[1:]))
        self._reading[wanted] = reading
        reading.add_done_callback(lambda _: self._reading.pop(wanted, None))
        return await asyncio.shield(reading)

    def _keep(self, wanted: Range, first: bytes) -> None:
        if len(first) > self._shared_bytes or wanted in self._kept:
            return
        self._kept[wanted] = first
        self._kept_bytes += len(first) + 200
        while self._kept_bytes > self._shared_bytes:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= len(gone) + 200


def _begin(shape: Shape, start: ShapeOffset, end: ShapeOffset) -> FirstPiece:
    """The first piece or a little more, and the iterator if there is more."""
    rest = shape.read(start, end)
    first, is_last = _take(rest)
    return first, None if is_last else rest


def _take(rest: Iterator[bytes]) -> tuple[bytes, bool]:
    """RangeBody up to about the size of one, joined, and whether they were the last."""
    parts: list[bytes] = []
    size = 0
    for piece in rest:
        parts.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES // 2:
            return _join(parts), False
    return _join(parts), True


def _join(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b",".join(parts)


def _close(rest: Iterator[bytes]) -> None:
    rest.close()  # type: ignore[attr-defined]  # asked for before
