"""Finds the ids of erased records in the changelog of a deduplication."""

from collections.abc import Collection

import numpy as np

from varve.dedup.ids import Flags, Numbers, Secret, decode_entries, fold_ids_of
from varve.records import RecordColumns

Id = tuple[int, int, int]
"""The two words and the kind of an id."""


class ErasedEntries:
    """Selects the changelog entries of one partition: by the records' offsets, and by their ids."""

    def __init__(self, offsets: Numbers, ids: Collection[Id], where: str) -> None:
        self._offsets = offsets
        self._ids = frozenset(ids)
        self._first_words = np.array([id[0] for id in self._ids], np.uint64)
        self._where = where

    def find(self, columns: RecordColumns) -> Flags:
        """Marks the entries; raises Corrupt for records that are no entries."""
        entries = decode_entries(columns, self._where)
        matches: Flags = np.isin(entries.offsets, self._offsets)
        for row in np.flatnonzero(np.isin(entries.words[:, 0], self._first_words)).tolist():
            first, second = entries.words[row].tolist()
            matches[row] |= (first, second, int(entries.kinds[row])) in self._ids
        return matches


def fold_keys(keys: Collection[bytes], secret: Secret) -> set[Id]:
    """The ids of keys in one partition, where records are identified by their keys."""
    words, kinds = fold_ids_of(list(keys), secret)
    return {
        (first, second, kind)
        for (first, second), kind in zip(words.tolist(), kinds.tolist(), strict=True)
    }
