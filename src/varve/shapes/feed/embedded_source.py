"""A topic of an open store as the source of a feed.

Threads    see `source`; the store's logs have locks of their own.
"""

from collections.abc import Mapping
from typing import Final

from varve.commit_log import Isolation, Log
from varve.commit_log.partition_metadata import encode_topic_id
from varve.embedded import Store
from varve.foundation.errors import NotFound, Unavailable
from varve.shapes.feed.committed import read_committed
from varve.shapes.feed.source import SourceRead, Wait

_LOOK_MS: Final = 5
_READ_BYTES: Final = 1 << 20


class EmbeddedSource:
    """Reads a topic where its store is open; the store stays the caller's."""

    def __init__(self, store: Store, topic: str, *, wait: Wait) -> None:
        self.topic = topic
        self._store = store
        self._wait = wait

    @property
    def place(self) -> str:
        return ", ".join(one.path for one in self._store.directories)

    def topic_id(self) -> str:
        found = self._store.topic(self.topic).id
        return "" if found is None else encode_topic_id(found)

    def partition_count(self) -> int:
        return self._store.topic(self.topic).partition_count

    def bounds(self, partition: int) -> tuple[int, int]:
        log = self._log(partition)
        return log.log_start_offset, max(log.log_start_offset, log.last_stable_offset)

    def read(
        self, positions: Mapping[int, int], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, SourceRead]:
        waited_ms = 0
        while True:
            found = {}
            for partition, start in positions.items():
                read = self._read(partition, start, max_bytes)
                if read.next_offset > start:
                    found[partition] = read
            if found or waited_ms >= wait_ms:
                return found
            pause_ms = min(_LOOK_MS, wait_ms - waited_ms)
            self._wait(pause_ms / 1000)
            waited_ms += pause_ms

    def tombstone_retention_ms(self) -> int | None:
        settings = self._store.topic(self.topic).settings
        return settings.delete_retention_ms if settings.is_compacted else None

    def close(self) -> None:
        """Nothing is held here."""

    def _read(self, partition: int, start: int, max_bytes: int) -> SourceRead:
        log = self._log(partition)
        end = log.last_stable_offset
        if log.log_start_offset <= start and start >= end:
            return SourceRead([], start, end)
        fetched = log.read(
            start_offset=start,
            max_bytes=min(max_bytes, _READ_BYTES),
            isolation=Isolation.READ_COMMITTED,
        )
        aborted = [(one.producer_id, one.first_offset) for one in fetched.aborted]
        where = str(log.topic_partition)
        found = read_committed(fetched.data, aborted, start=start, where=where)
        return SourceRead(found.columns, fetched.next_offset, fetched.last_stable_offset)

    def _log(self, partition: int) -> Log:
        topic = self._store.topic(self.topic)
        try:
            return topic.partition(partition).log
        except NotFound as error:
            # The topic is there: this may be a disk that is away.
            raise Unavailable(f"topic {self.topic} lacks a partition: {error}") from error
