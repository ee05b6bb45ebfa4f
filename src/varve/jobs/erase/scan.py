"""Finds the records to erase in a segment, by its key index or by a scan of its data.

Invariant  keys are compared by 128-bit hashes, whose collisions can be computed only with the
           topic's id; the keys themselves are not sent to tasks. A scan reads every data record,
           those of aborted transactions included, and checks every checksum. A key index, which
           does not list aborted batches, rules a segment out only after these are scanned.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.erasure import ErasedRecords
from varve.cleaning.key_index.key_index import BATCH_ABORTED, ENTRY, KeyIndex
from varve.jobs.erase.request import FieldMatch
from varve.jobs.source.read import Hashes, TopicHash
from varve.jobs.source.record_blocks import (
    BatchRange,
    ByteSource,
    RecordBlock,
    RecordFilter,
    read_blocks,
)
from varve.kernels.batch_layout import RECORD_COLUMN_COUNT, BatchColumn, RecordColumn
from varve.kernels.hashes import hash_keys

Mask = npt.NDArray[np.bool_]

_LOOKUP_BYTES: Final = 64 << 10
"""Approximate bytes of a key index that one lookup reads; many keys read all of it instead."""
_CHUNK_ENTRIES: Final = 64 << 10
"""Entries of a key index in memory at a time."""
_KEYS_PER_CALL: Final = 1 << 18
"""Keys that one call of the kernel hashes: bounds the memory of its input table."""
HASH_BYTES: Final = 16
"""The hash of a key, in the memory of the driver and of executors."""
Integers = npt.NDArray[np.int64]

_EMPTY: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Matcher:
    """Selects records of one topic by key or field; `hashes` are those of the keys, sorted."""

    topic_id: str
    hashes: Hashes
    field: FieldMatch | None = None

    @classmethod
    def of(cls, topic_id: str, keys: Iterable[bytes], field: FieldMatch | None = None) -> Self:
        return cls(topic_id, hash_all(keys, TopicHash.of(topic_id)), field)

    @property
    def is_by_key(self) -> bool:
        """Whether keys alone select the records, so that a key index can rule a segment out."""
        return self.field is None

    def find(self, block: RecordBlock) -> tuple[Mask, int]:
        """Marks the matching records of a block, and counts the values that cannot be parsed."""
        matches = np.zeros(len(block.records), np.bool_)
        if len(self.hashes):
            hashes = TopicHash.of(self.topic_id).hash_block(block)
            has_key = block.records[:, RecordColumn.KEY_SIZE] >= 0
            matches |= has_key & self._match_hashes(hashes)
        unread = 0
        if self.field is not None:
            by_field, unread = self.field.find(block)
            matches |= np.array(by_field, np.bool_)
        return matches, unread

    def is_in_index(self, index: KeyIndex) -> bool:
        """Whether a key index lists any of the keys."""
        count = index.header.entry_count
        if not count or not len(self.hashes):
            return False
        if len(self.hashes) * _LOOKUP_BYTES < count * ENTRY.itemsize:
            return any(
                index.find(int(high), int(low)) is not None for high, low in self.hashes.tolist()
            )
        rows = np.empty((_CHUNK_ENTRIES, ENTRY.itemsize // 8), np.uint64)
        for start in range(0, count, _CHUNK_ENTRIES):
            end = min(start + _CHUNK_ENTRIES, count)
            index.read_entries(start, end, rows)
            if self._match_hashes(rows[: end - start, :2]).any():
                return True
        return False

    def _match_hashes(self, hashes: Hashes) -> Mask:
        selected = self.hashes
        slots = np.searchsorted(selected[:, 0], hashes[:, 0])
        slots[slots == len(selected)] = 0
        is_same_high = selected[slots, 0] == hashes[:, 0]
        matches: Mask = is_same_high & (selected[slots, 1] == hashes[:, 1])
        # Several selected hashes may share their high half, which is very rare.
        for row in np.flatnonzero(is_same_high & ~matches).tolist():
            low_halves = selected[selected[:, 0] == hashes[row, 0], 1]
            matches[row] = bool((low_halves == hashes[row, 1]).any())
        return matches


def hash_all(keys: Iterable[bytes], topic: TopicHash) -> Hashes:
    """Hashes keys; returns the distinct hashes, sorted."""
    chunk: list[bytes] = []
    tables: list[Hashes] = []
    for key in keys:
        chunk.append(key)
        if len(chunk) == _KEYS_PER_CALL:
            tables.append(_hash_chunk(chunk, topic))
            chunk = []
    tables.append(_hash_chunk(chunk, topic))
    hashes = np.concatenate(tables)
    ordered = hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))]
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered[is_new]


def _hash_chunk(keys: list[bytes], topic: TopicHash) -> Hashes:
    sizes = np.array([len(key) for key in keys], np.int64)
    records = np.zeros((len(keys), RECORD_COLUMN_COUNT), np.int64)
    records[:, RecordColumn.KEY_START] = np.cumsum(sizes) - sizes
    records[:, RecordColumn.KEY_SIZE] = sizes
    # A trailing byte, because the last key may be empty.
    payload = np.frombuffer(b"".join([*keys, b"\0"]), np.uint8)
    out = np.empty((len(keys), 2), np.uint64)
    hash_keys(payload, records, topic.first, topic.second, out)
    return out


@dataclass(frozen=True, slots=True)
class Scan:
    """The matches in a segment or in ranges of it.

    `match_count` of the `record_count` records in `read_bytes` bytes match, with a total size of
    `match_bytes`; `unread_count` values could not be parsed as JSON. `is_matched` is also True if
    only the key index was read. `offsets` are those of the matching records, if they were asked
    for.
    """

    match_count: int = 0
    match_bytes: int = 0
    record_count: int = 0
    read_bytes: int = 0
    unread_count: int = 0
    is_matched: bool = False
    offsets: Integers = field(default_factory=lambda: _EMPTY)


class _BlockMatches(NamedTuple):
    """The matching rows of a block, and the encoded size of each of its records."""

    block: RecordBlock
    rows: Integers
    sizes: Integers
    unread_count: int


def _match_blocks(
    source: ByteSource, ranges: Sequence[tuple[int, int]], matcher: Matcher
) -> Iterator[_BlockMatches]:
    all_records = RecordFilter()
    for block in read_blocks(
        BatchRange(source, 0, start, end, all_records) for start, end in ranges if start < end
    ):
        matches, unread_count = matcher.find(block)
        ends = block.records[:, RecordColumn.RECORD_END]
        sizes = ends - block.records[:, RecordColumn.RECORD_START]
        yield _BlockMatches(block, np.flatnonzero(matches), sizes, unread_count)


def scan_log(
    source: ByteSource,
    size: int,
    matcher: Matcher,
    *,
    ranges: Sequence[tuple[int, int]] | None = None,
    with_offsets: bool = False,
) -> Scan:
    """Counts the matches in all of a segment's data, or only in the batches in `ranges`.

    Every batch is read and its checksum verified; raises Corrupt.
    """
    ranges = ranges or [(0, size)]
    offsets: list[Integers] = []
    match_count = match_bytes = record_count = unread_count = 0
    for block, rows, sizes, unread in _match_blocks(source, ranges, matcher):
        match_count += rows.size
        match_bytes += int(sizes[rows].sum())
        record_count += len(block.records)
        unread_count += unread
        if with_offsets and rows.size:
            offsets.append(block.records[rows, RecordColumn.OFFSET])
    return Scan(
        match_count,
        match_bytes,
        record_count,
        sum(end - start for start, end in ranges),
        unread_count,
        bool(match_count),
        np.concatenate([_EMPTY, *offsets]),
    )


def locate_records(source: ByteSource, size: int, matcher: Matcher) -> ErasedRecords:
    """Returns the matching records of a segment, for its rewrite."""
    parts = [(_EMPTY, _EMPTY, _EMPTY)]
    total_bytes = match_bytes = 0
    for block, rows, sizes, _ in _match_blocks(source, [(0, size)], matcher):
        total_bytes += int(sizes.sum())
        match_bytes += int(sizes[rows].sum())
        if rows.size:
            parts.append(_locate_rows(block, rows))
    offsets, batches, ranks = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ErasedRecords(offsets, batches, ranks, match_bytes, total_bytes - match_bytes)


def _locate_rows(block: RecordBlock, rows: Integers) -> tuple[Integers, Integers, Integers]:
    """Returns the offset of each record, the base offset of its batch, and its index in it."""
    owners = block.owners[rows]
    indexes = rows - np.searchsorted(block.owners, owners)
    return (
        block.records[rows, RecordColumn.OFFSET],
        block.batches[owners, BatchColumn.BASE_OFFSET],
        indexes,
    )


def scan_index(index: KeyIndex, source: ByteSource, matcher: Matcher) -> Scan:
    """Looks the keys up in a key index, and scans the aborted batches, which it does not list.

    A match in the index says that the segment contains a key; only a scan finds the records.
    """
    if matcher.is_in_index(index):
        return Scan(is_matched=True)
    ranges = list(_aborted_ranges(index))
    if not ranges:
        return Scan()
    return scan_log(source, 0, matcher, ranges=ranges)


def _aborted_ranges(index: KeyIndex) -> Iterator[tuple[int, int]]:
    """Yields the position ranges of aborted batches; adjacent batches share one range."""
    if not index.header.mark_count:
        return
    batches = index.batches()
    aborted = batches[batches["flags"] & BATCH_ABORTED != 0]
    starts = aborted["position"].astype(np.int64)
    ends = starts + aborted["size"].astype(np.int64)
    firsts = np.flatnonzero(np.concatenate([[True], starts[1:] != ends[:-1]]))
    if not len(starts):
        return
    lasts = np.concatenate([firsts[1:] - 1, [len(starts) - 1]])
    yield from zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
