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
_ENTRY_BYTES: Final = 200
"""About the memory of a cached range beside its bytes."""

Range = tuple[str, ShapeOffset, ShapeOffset]
FirstPiece = tuple[bytes, Iterator[bytes] | None]


class RangeBody:
    """The first piece of a range, and the remaining ones if there are more."""

    __slots__ = ("_closing", "_pool", "_reading", "_remaining", "first")

    def __init__(self, first: bytes, remaining: Iterator[bytes] | None, pool: WorkerPool) -> None:
        self.first = first
        self._remaining = remaining
        self._pool = pool
        self._reading: asyncio.Future[tuple[bytes, bool]] | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the first piece is all of it."""
        return self._remaining is None

    def pop_first(self) -> bytes:
        """The first piece, which is not kept here: a slow client holds one piece at a time."""
        first, self.first = self.first, b""
        return first

    async def remaining(self) -> AsyncIterator[bytes]:
        """The pieces after the first one, to be separated by commas; each is read when needed."""
        while self._remaining is not None:
            self._reading = asyncio.ensure_future(self._pool.run(_join_next, self._remaining))
            piece, is_last = await asyncio.shield(self._reading)
            self._reading = None
            if is_last:
                self._remaining = None
            if piece:
                yield piece
            del piece

    async def close(self) -> None:
        """Closes files that were not read to their end."""
        if self._reading is not None and not self._reading.done():
            # A thread reads it: it is closed afterwards.
            self._reading.add_done_callback(self._close_later)
            return
        remaining, self._remaining = self._remaining, None
        if remaining is not None and hasattr(remaining, "close"):
            # When the server stops the files are closed with the process.
            with contextlib.suppress(Closed):
                await self._pool.run(_close, remaining)

    def _close_later(self, reading: "asyncio.Future[tuple[bytes, bool]]") -> None:
        if not reading.cancelled():
            reading.exception()
        self._closing = asyncio.ensure_future(self.close())


class RangeReader:
    """Reads ranges, small ones once for all requests."""

    def __init__(self, read_pool: WorkerPool, snapshot: WorkerPool, shared_bytes: int) -> None:
        self._read_pool = read_pool
        self._snapshot = snapshot
        self._shared_bytes = shared_bytes
        self._cache: OrderedDict[Range, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._reading: dict[Range, asyncio.Future[FirstPiece]] = {}
        self.shared_count = 0

    async def read(self, shape: Shape, start: ShapeOffset, end: ShapeOffset) -> RangeBody:
        """The messages in (start, end]; raises errors of the engine before anything is sent."""
        pool = self._read_pool if shape.is_snapshot_complete else self._snapshot
        key = (shape.handle, start, end)
        cached = self._cache.get(key)
        if cached is not None:
            self.shared_count += 1
            return RangeBody(cached, None, pool)
        if shape.is_in_memory(start):
            first, remaining = _read_first(shape, start, end)
        else:
            first, remaining = await self._read_once(key, shape, pool)
        if remaining is None:
            self._add_to_cache(key, first)
        return RangeBody(first, remaining, pool)

    async def _read_once(self, key: Range, shape: Shape, pool: WorkerPool) -> FirstPiece:
        """Shares one read among concurrent requests; each request reads a large range itself."""
        running_read = self._reading.get(key)
        if running_read is not None:
            try:
                first, remaining = await asyncio.shield(running_read)
            except StoreError as error:
                raise error.again() from error
            if remaining is None:
                self.shared_count += 1
                return first, None
            return await pool.run(_read_first, shape, *key[1:])
        reading = asyncio.ensure_future(pool.run(_read_first, shape, *key[1:]))
        self._reading[key] = reading
        reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(reading)

    def _add_to_cache(self, key: Range, first: bytes) -> None:
        if len(first) > self._shared_bytes or key in self._cache:
            return
        self._cache[key] = first
        self._cached_bytes += len(first) + _ENTRY_BYTES
        while self._cached_bytes > self._shared_bytes:
            _, evicted = self._cache.popitem(last=False)
            self._cached_bytes -= len(evicted) + _ENTRY_BYTES


def _read_first(shape: Shape, start: ShapeOffset, end: ShapeOffset) -> FirstPiece:
    """The first piece, and the iterator over the remaining ones; None if there are none."""
    remaining = shape.read(start, end)
    first, is_last = _join_next(remaining)
    return first, None if is_last else remaining


def _join_next(remaining: Iterator[bytes]) -> tuple[bytes, bool]:
    """The next pieces joined, at least half of PIECE_BYTES, and whether they were the last."""
    parts: list[bytes] = []
    size = 0
    for piece in remaining:
        parts.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES // 2:
            return _join(parts), False
    return _join(parts), True


def _join(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b",".join(parts)


def _close(remaining: Iterator[bytes]) -> None:
    remaining.close()  # type: ignore[attr-defined]  # the caller checks that it has one
