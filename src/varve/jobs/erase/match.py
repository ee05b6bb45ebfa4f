"""Tells which records are to be erased: those of some keys, and those with a value in a field.

Invariant  keys are compared by all 128 bits of their hash, which only who knows the topic's id can
           make collide. The keys themselves do not travel.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import ENTRY, KeyIndex
from varve.jobs.erase.field import FieldMatch
from varve.jobs.source.keys import Hashes, TopicHash
from varve.jobs.source.record_blocks import RecordBlock
from varve.kernels.batch_layout import RECORD_COLUMN_COUNT, RecordColumn
from varve.kernels.hashes import hash_keys

Mask = npt.NDArray[np.bool_]

_LOOKUP_BYTES: Final = 64 << 10
"""About what one look-up reads of a key index."""
_CHUNK_ENTRIES: Final = 64 << 10
_KEYS_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Matcher:
    """What is looked for in the records of one topic; `hashes` are sorted."""

    topic_id: str
    hashes: Hashes
    field: FieldMatch | None = None

    @classmethod
    def of(cls, topic_id: str, keys: Iterable[bytes], field: FieldMatch | None = None) -> Self:
        return cls(topic_id, hash_all(keys, TopicHash.of(topic_id)), field)

    @property
    def is_by_key(self) -> bool:
        """Whether a key index tells all there is to know."""
        return self.field is None

    def find(self, block: RecordBlock) -> tuple[Mask, int]:
        """Which records of a block match, and how many values could not be read for it."""
        found = np.zeros(len(block.records), np.bool_)
        if len(self.hashes):
            hashes = TopicHash.of(self.topic_id).hash_block(block)
            has_key = block.records[:, RecordColumn.KEY_SIZE] >= 0
            found |= has_key & self._find_hashes(hashes)
        unread = 0
        if self.field is not None:
            by_field, unread = self.field.find(block)
            found |= np.array(by_field, np.bool_)
        return found, unread

    def is_listed(self, index: KeyIndex) -> bool:
        """Whether a key index lists one of the keys."""
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
            if self._find_hashes(rows[: end - start, :2]).any():
                return True
        return False

    def _find_hashes(self, hashes: Hashes) -> Mask:
        wanted = self.hashes
        slots = np.searchsorted(wanted[:, 0], hashes[:, 0])
        slots[slots == len(wanted)] = 0
        same = wanted[slots, 0] == hashes[:, 0]
        found: Mask = same & (wanted[slots, 1] == hashes[:, 1])
        # Wanted hashes that share their first half stand behind each other; hardly ever are there.
        for row in np.flatnonzero(same & ~found).tolist():
            group = wanted[wanted[:, 0] == hashes[row, 0], 1]
            found[row] = bool((group == hashes[row, 1]).any())
        return found


def hash_all(keys: Iterable[bytes], topic: TopicHash) -> Hashes:
    """The hashes of keys, sorted; a key that is given twice counts once."""
    waiting: list[bytes] = []
    tables: list[Hashes] = []
    for key in keys:
        waiting.append(key)
        if len(waiting) == _KEYS_AT_ONCE:
            tables.append(_hash_some(waiting, topic))
            waiting = []
    tables.append(_hash_some(waiting, topic))
    hashes = np.concatenate(tables)
    ordered = hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))]
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered[is_new]


def _hash_some(keys: list[bytes], topic: TopicHash) -> Hashes:
    sizes = np.array([len(key) for key in keys], np.int64)
    records = np.zeros((len(keys), RECORD_COLUMN_COUNT), np.int64)
    records[:, RecordColumn.KEY_START] = np.cumsum(sizes) - sizes
    records[:, RecordColumn.KEY_SIZE] = sizes
    # One byte more: the last key may be empty.
    payload = np.frombuffer(b"".join([*keys, b"\0"]), np.uint8)
    out = np.empty((len(keys), 2), np.uint64)
    hash_keys(payload, records, topic.first, topic.second, out)
    return out
