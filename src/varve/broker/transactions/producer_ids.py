"""Producer ids, allocated from blocks that survive restarts.

Layout     `varve-producer-ids.json` with `next_id`, the first id of the next block.
           docs/reference/formats/directory.md
Invariant  an id is allocated once: a block is on disk before its first id is used. A block is
           skipped if logs or transactions know one of its ids, as in a directory that Kafka wrote.
           Which block is next depends on the file alone: a client chooses the ids of its batches,
           and one of 2^63 - 1 must not use up all ids before it.
Crash      the remaining ids of a block are lost; there are 2^63.
Threads    the loop's; blocks are written off the loop, one at a time.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from varve.broker.background import BlockingPool
from varve.broker.security.directory_document import DirectoryDocument
from varve.broker.topics import Topics
from varve.commit_log.health import DirectoryHealth
from varve.disk import FileSystem

PRODUCER_IDS_FILE: Final = "varve-producer-ids.json"
_BLOCK_ID_COUNT: Final = 1_000
"""As in Kafka."""
_NEXT_ID_MAX: Final = 1 << 62
"""More ids than this were never allocated: a larger number in the file is damage."""


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
        self._ids_of_transactions: set[int] = set()
        self._reserving: asyncio.Task[None] | None = None

    def add_used(self, producer_id: int) -> None:
        """Reports the id of a transaction that was loaded, before the first id is allocated."""
        self._ids_of_transactions.add(producer_id)

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
        self._next = await self._blocking.run(self._write_block)
        self._end = self._next + _BLOCK_ID_COUNT

    def _write_block(self) -> int:
        """Reserves the next block without used ids on disk; returns its first id."""
        start = self._file.read_as(_decode_next_id)
        used = {(id - start) // _BLOCK_ID_COUNT for id in self._used_ids() if id >= start}
        block = next(number for number in itertools.count() if number not in used)
        start += block * _BLOCK_ID_COUNT
        self._file.write({"next_id": start + _BLOCK_ID_COUNT})
        return start

    def _used_ids(self) -> Iterator[int]:
        yield from self._ids_of_transactions
        for topic in self._topics:
            for log in topic.logs:
                if log is not None:
                    yield from log.active_producers()


def _decode_next_id(content: Mapping[str, Any]) -> int:
    next_id = content.get("next_id", 0)
    if type(next_id) is not int or not 0 <= next_id < _NEXT_ID_MAX:
        raise ValueError(f"next_id {next_id!r:.40}")
    return next_id
