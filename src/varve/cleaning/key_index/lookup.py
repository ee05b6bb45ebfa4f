"""Finds the latest record of a key: in the key indexes, and by a scan of segments without one.

Invariant  only committed records count; of these the one with the highest offset is found, whatever
           its segment. The key itself is compared, not only its hash. Object storage is read
           only when no local segment has the key.
Threads    any; a segment without an index is indexed in memory while another thread cleans the log,
           or when its index cannot be written.
"""

import logging
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.cleaning.key_index.builder import DEFAULT_BUFFER_BYTES, KeyIndexBuilder
from varve.cleaning.key_index.key_index import KeyEntry, KeyIndex
from varve.cleaning.key_index.segment_indexes import (
    SegmentKeyIndexes,
    hold_reason,
    is_of_derived_file,
)
from varve.cleaning.remote_tier import KeySearch, RemoteTier
from varve.cleaning.work_budget import UNLIMITED, WorkBudget
from varve.commit_log import Isolation, Log
from varve.commit_log.names import LOG
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import BatchWalk, ReadableSegment
from varve.disk import MemoryFileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, Unavailable
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.hashes import hash_bytes
from varve.records import Batch, Record, decode_header

logger = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 8
_TAIL: Final = "tail.keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """Looks keys up in one log.

    `may_build` says that no other thread is building key indexes of this log.
    """

    log: Log
    indexes: SegmentKeyIndexes
    topic_id: bytes
    clock: Clock
    may_build: bool
    remote: RemoteTier

    def find(
        self,
        key: bytes,
        now_ms: int,
        budget: WorkBudget = UNLIMITED,
        *,
        below: int | None = None,
    ) -> Record | None:
        """The latest committed record of a key, perhaps a tombstone; None when there is none.

        `below` excludes segments that begin at or above it. Raises Unavailable or Corrupt when
        a damaged segment may hold it.
        """
        for _ in range(_ATTEMPTS_MAX):
            view = self.log.view
            try:
                entry = self._locate(key, now_ms, budget, below)
                if entry is None or entry.offset < self.log.log_start_offset:
                    return None
                record = self._read(entry.offset)
            except FileNotFoundError:
                continue
            except Corrupt:
                if self.log.view is view:
                    raise
                continue
            if record is not None and record.key == key:
                return record
        raise Unavailable(
            f"{self.log.topic_partition}: segments were replaced {_ATTEMPTS_MAX} times during one "
            "look-up; try again"
        )

    def _locate(
        self, key: bytes, now_ms: int, budget: WorkBudget, below: int | None
    ) -> KeyEntry | None:
        secret = np.frombuffer(self.topic_id, "<u8")
        high, low = hash_bytes(np.frombuffer(key, np.uint8), 0, len(key), secret[0], secret[1])
        hash = int(high), int(low)
        stable = self.log.last_stable_offset
        bound = stable if below is None else min(below, stable)
        view = self.log.view
        end = self.log.end_offset
        segments: list[ReadableSegment] = list(view)
        for segment in reversed(segments):
            if segment.base_offset < bound:
                entry = self._find_in(segment, end, stable, hash, now_ms, budget)
                if entry is not None:
                    return entry
            end = segment.base_offset
        # Object storage has the offsets below the first local segment.
        start_offset, end_offset = self.log.log_start_offset, min(bound, end)
        if start_offset >= end_offset:
            return None
        search = KeySearch(hash, self.topic_id, start_offset, end_offset)
        return self.remote.find_key(self.log.topic_partition, search)

    def _find_in(
        self,
        segment: ReadableSegment,
        end: int,
        stable: int,
        hash: tuple[int, int],
        now_ms: int,
        budget: WorkBudget,
    ) -> KeyEntry | None:
        """The entry of a key hash in one segment.

        Indexes the segment in memory if its index file cannot be read or written.
        """
        try:
            with self._open(segment, end, stable, now_ms, budget) as index:
                return index.find(*hash)
        except OSError as error:
            if not is_of_derived_file(error):
                raise
            logger.warning(
                "%(path)s: key index cannot be used, segment indexed in memory: %(error)s",
                {"path": error.filename, "error": str(error)},
            )
        with self._index_tail(segment, stable, budget) as index:
            return index.find(*hash)

    def _open(
        self,
        segment: ReadableSegment,
        end: int,
        stable: int,
        now_ms: int,
        budget: WorkBudget,
    ) -> KeyIndex:
        if not isinstance(segment, Segment) or end > stable:
            return self._index_tail(segment, stable, budget)
        keys = self.indexes.find(segment, end)
        if keys is None and self.may_build:
            keys = self.indexes.ensure(segment, end, now_ms, budget)
        if keys is not None:
            return keys.open()
        hold = self.indexes.holds.get(segment.base_offset)
        if hold is not None:
            raise Unavailable(
                f"{self.log.topic_partition}: segment {segment.base_offset} is damaged and may "
                f"hold the key: {hold.reason}"
            )
        return self._index_tail(segment, stable, budget)

    def _index_tail(self, segment: ReadableSegment, stable: int, budget: WorkBudget) -> KeyIndex:
        """An index, in memory, of the records of a segment below the last stable offset."""
        try:
            return self._scan_tail(segment, stable, budget)
        except Corrupt as error:
            raise Corrupt(hold_reason(error)) from error

    def _scan_tail(self, segment: ReadableSegment, stable: int, budget: WorkBudget) -> KeyIndex:
        fs = MemoryFileSystem(self.clock)
        builder = KeyIndexBuilder(
            fs,
            _TAIL,
            base_offset=segment.base_offset,
            topic_id=self.topic_id,
            buffer_bytes=DEFAULT_BUFFER_BYTES,
            aborted=self.log.collect_aborted(segment.base_offset, stable),
        )
        size = segment.size
        walk = BatchWalk(segment.file(), start=0, end=size, verify_crc=True)
        for table in walk:
            decided = int(np.searchsorted(table.rows[:, BatchColumn.LAST_OFFSET], stable))
            builder.add(table.first(decided))
            budget.spend(table.end - table.start)
            if decided < len(table.rows):
                size = builder.log_size
                break
        else:
            walk.check_ended(segment.path(LOG), remedy=None)
        builder.finish(size)
        return KeyIndex(fs.open(_TAIL))

    def _read(self, offset: int) -> Record | None:
        fetched = self.log.read(
            start_offset=offset, max_bytes=1, isolation=Isolation.READ_COMMITTED, min_one=True
        )
        data = fetched.data
        while data:
            size = decode_header(data).size
            for record in Batch(data[:size]).records():
                if record.offset == offset:
                    return record
            data = data[size:]
        return None
