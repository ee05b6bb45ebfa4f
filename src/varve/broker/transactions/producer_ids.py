"""Producer ids, allocated from blocks that survive restarts.

Layout     `varve-producer-ids.json` with `next_id`, the first id of the next block.
           docs/formats/directory.md
Invariant  an id is allocated once: a block is on disk before its first id is used. Ids that logs
           know already, such as those of a directory that Kafka wrote, are skipped.
Crash      the remaining ids of a block are lost; there are 2^63.
Threads    the loop's; blocks are written off the loop, one at a time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varve.broker.background import BlockingPool
from varve.broker.security.directory_document import DirectoryDocument
from varve.broker.topics import Topics
from varve.commit_log.health import DirectoryHealth
from varve.disk import FileSystem

PRODUCER_IDS_FILE: Final = "varve-producer-ids.json"
_BLOCK_ID_COUNT: Final = 1_000
"""As in Kafka."""


class ProducerIds:
    """Allocates the ids of one store."""

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[DirectoryHealth],
        topics: Topics,
        blocking: BlockingPool,
    ) -> None:
        self._file = DirectoryDocument(fs, directories, PRODUCER_IDS_FILE)
        self._topics = topics
        self._blocking = blocking
        self._next = 0
        self._end = 0
        self._block_start: int | None = None
        self._floor = 0
        self._reserving: asyncio.Task[None] | None = None

    def note_used(self, producer_id: int) -> None:
        """Skips an id that was allocated elsewhere, and all before it."""
        self._floor = max(self._floor, producer_id + 1)
        self._next = max(self._next, self._floor)

    async def next_id(self) -> int:
        """A new id; raises a StoreError when a block cannot be written."""
        while self._next >= self._end:
            await self._reserve()
        self._next += 1
        return self._next - 1

    async def _reserve(self) -> None:
        """All waiting requests share the write of one block."""
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.ensure_future(self._reserve_block())
        await asyncio.shield(self._reserving)

    async def _reserve_block(self) -> None:
        if self._block_start is None:
            self._block_start = await self._blocking.run(self._find_start)
        start = max(self._block_start, self._floor)
        await self._blocking.run(self._file.write, {"next_id": start + _BLOCK_ID_COUNT})
        self._block_start = start + _BLOCK_ID_COUNT
        self._next, self._end = start, start + _BLOCK_ID_COUNT

    def _find_start(self) -> int:
        next_id = self._file.read_as(_decode_next_id)
        for topic in self._topics:
            for log in topic.logs:
                ids = () if log is None else log.active_producers()
                next_id = max(next_id, 1 + max(ids, default=-1))
        return next_id


def _decode_next_id(content: Mapping[str, Any]) -> int:
    next_id = content.get("next_id", 0)
    if type(next_id) is not int or next_id < 0:
        raise ValueError(f"next_id {next_id!r:.40}")
    return next_id
