"""Producer ids, given out of blocks that survive restarts.

Layout     a document with `next_id`, the first id of the next block. docs/formats/directory.md
Invariant  an id is given out once, whatever happens: a block is on disk before its first id is
           told. Ids that logs know already, as those of a directory that Kafka wrote, are passed.
Crash      what is left of a block is lost; there are enough.
Threads    the loop's alone; blocks are written off the loop, one at a time.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from varve.broker.security.table_file import TableFile, corrupt
from varve.broker.topics import Topics

PRODUCER_IDS_FILE: Final = "varve-producer-ids.json"
_BLOCK: Final = 1_000


class ProducerIds:
    """Gives out the ids of one store."""

    def __init__(
        self, file: TableFile, topics: Topics, offload: "Callable[..., asyncio.Future[Any]]"
    ) -> None:
        self._file = file
        self._topics = topics
        self._offload = offload
        self._next = 0
        self._end = 0
        self._block_start: int | None = None
        self._floor = 0
        self._reserving: asyncio.Task[None] | None = None

    def note_used(self, producer_id: int) -> None:
        """Passes over an id that somebody else has given out, and all before it."""
        self._floor = max(self._floor, producer_id + 1)
        self._next = max(self._next, self._floor)

    async def next_id(self) -> int:
        """An id that nobody had; raises a StoreError when a block cannot be written."""
        while self._next >= self._end:
            await self._reserve()
        found = self._next
        self._next += 1
        return found

    async def _reserve(self) -> None:
        """All who wait share one block's writing."""
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.ensure_future(self._reserve_block())
        await asyncio.shield(self._reserving)

    async def _reserve_block(self) -> None:
        if self._block_start is None:
            self._block_start = await self._offload(self._find_start)
        start = max(self._block_start, self._floor)
        await self._offload(self._file.write, {"next_id": start + _BLOCK})
        self._block_start = start + _BLOCK
        self._next, self._end = start, start + _BLOCK

    def _find_start(self) -> int:
        content = self._file.read()
        known = content.get("next_id", 0)
        if type(known) is not int or known < 0:
            raise corrupt(self._file.where, ValueError(f"next_id {known!r:.40}"))
        for topic in self._topics:
            for log in topic.logs:
                ids = () if log is None else log.active_producers()
                known = max(known, 1 + max(ids, default=-1))
        return known
