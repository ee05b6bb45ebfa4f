"""The messages of a range of a shape, read for one answer or once for many.

Invariant  what was read for a range is the same for ever: offsets are never used twice. So a small
           range is read once for all who ask for it, and kept for a while.
Threads    the loop's alone; reading happens in the pool.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Final

from varve.foundation.errors import Closed, StoreError
from varve.http.engine_pool import EnginePool
from varve.shapes.offset import Offset
from varve.shapes.shape import Shape

PIECE_BYTES: Final = 256 << 10
"""A slow client holds one piece of about this size, which is never copied."""

Range = tuple[str, Offset, Offset]
Begun = tuple[bytes, Iterator[bytes] | None]


class Pieces:
    """The beginning of a range, and what follows it if that is not all."""

    __slots__ = ("_closing", "_pool", "_reading", "_rest", "head")

    def __init__(self, head: bytes, rest: Iterator[bytes] | None, pool: EnginePool) -> None:
        self.head = head
        self._rest = rest
        self._pool = pool
        self._reading: asyncio.Future[tuple[bytes, bool]] | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the beginning is all there is."""
        return self._rest is None

    def take_head(self) -> bytes:
        """The beginning, which is let go here: a slow client holds one piece at a time."""
        head, self.head = self.head, b""
        return head

    async def follow(self) -> AsyncIterator[bytes]:
        """What comes behind the beginning, in pieces that commas are to join.

        Nothing is read before it is asked for: a slow client holds one piece.
        """
        while self._rest is not None:
            self._reading = asyncio.ensure_future(self._pool.run_in_engine(_take, self._rest))
            piece, is_last = await asyncio.shield(self._reading)
            self._reading = None
            if is_last:
                self._rest = None
            if piece:
                yield piece
            del piece

    async def close(self) -> None:
        """Lets go of files where not all was read."""
        if self._reading is not None and not self._reading.done():
            # A thread is in it: it is closed when that is out again.
            self._reading.add_done_callback(self._close_later)
            return
        rest, self._rest = self._rest, None
        if rest is not None and hasattr(rest, "close"):
            # Where the server stops the files go with the process.
            with contextlib.suppress(Closed):
                await self._pool.run_in_engine(_close, rest)

    def _close_later(self, reading: "asyncio.Future[tuple[bytes, bool]]") -> None:
        if not reading.cancelled():
            reading.exception()
        self._closing = asyncio.ensure_future(self.close())


class PieceReader:
    """Reads ranges, sharing what is small."""

    def __init__(self, quick: EnginePool, snapshot: EnginePool, shared_bytes: int) -> None:
        self._quick = quick
        self._snapshot = snapshot
        self._shared_bytes = shared_bytes
        self._kept: OrderedDict[Range, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._reading: dict[Range, asyncio.Future[Begun]] = {}
        self.shared_count = 0

    async def read(self, shape: Shape, start: Offset, end: Offset) -> Pieces:
        """What lies in (start, end]; raises what the engine raises before anything is sent."""
        pool = self._quick if shape.is_snapshot_complete else self._snapshot
        wanted = (shape.handle, start, end)
        kept = self._kept.get(wanted)
        if kept is not None:
            self.shared_count += 1
            return Pieces(kept, None, pool)
        if shape.is_in_memory(start):
            head, rest = _begin(shape, start, end)
        else:
            head, rest = await self._read_once(wanted, shape, pool)
        if rest is None:
            self._keep(wanted, head)
        return Pieces(head, rest, pool)

    async def _read_once(self, wanted: Range, shape: Shape, pool: EnginePool) -> Begun:
        """One reads for all; a range too large to be kept is read by each."""
        under_way = self._reading.get(wanted)
        if under_way is not None:
            try:
                head, rest = await asyncio.shield(under_way)
            except StoreError as error:
                raise error.again() from error
            if rest is None:
                self.shared_count += 1
                return head, None
            return await pool.run_in_engine(_begin, shape, *wanted[1:])
        reading = asyncio.ensure_future(pool.run_in_engine(_begin, shape, *wanted[1:]))
        self._reading[wanted] = reading
        reading.add_done_callback(lambda _: self._reading.pop(wanted, None))
        return await asyncio.shield(reading)

    def _keep(self, wanted: Range, head: bytes) -> None:
        if len(head) > self._shared_bytes or wanted in self._kept:
            return
        self._kept[wanted] = head
        self._kept_bytes += len(head) + 200
        while self._kept_bytes > self._shared_bytes:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= len(gone) + 200


def _begin(shape: Shape, start: Offset, end: Offset) -> Begun:
    """The first piece or a little more, and the iterator if there is more."""
    rest = shape.read(start, end)
    head, is_last = _take(rest)
    return head, None if is_last else rest


def _take(rest: Iterator[bytes]) -> tuple[bytes, bool]:
    """Pieces up to about the size of one, joined, and whether they were the last."""
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
