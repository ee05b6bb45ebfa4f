"""Ids of records as columns: two words and a kind each, with the record's time and offset.

Layout     as `varve.kernels.window_ids` folds them: exact up to sixteen bytes, longer ones as their
           hash under the secret of the state. The Spark job folds the same ids to the same words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt
from varve.kernels.window_ids import Kinds, Words, find_headers, fold_cells
from varve.records import RecordColumns
from varve.records.columns import BinaryColumn, Bytes, frozen_bytes
from varve.windows.dedup.json_field import JsonField
from varve.windows.dedup.rules import IdKind, IdSource

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Secret = tuple[int, int]
"""Two words of 64 bits, drawn by lot for a state."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Ids, times and offsets of records of one partition, in the order of their offsets.

    A negative time is none. Records without an id have the kind NO_ID.
    """

    words: Words
    kinds: Kinds
    times: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.kinds)

    @classmethod
    def join(cls, parts: Sequence["Arrivals"]) -> Self:
        """One after the other; of nothing, nothing."""
        return cls(
            np.concatenate([np.empty((0, 2), np.uint64), *(one.words for one in parts)]),
            np.concatenate([np.empty(0, np.uint8), *(one.kinds for one in parts)]),
            np.concatenate([np.empty(0, np.int64), *(one.times for one in parts)]),
            np.concatenate([np.empty(0, np.int64), *(one.offsets for one in parts)]),
        )

    def take(self, chosen: Numbers | Flags) -> "Arrivals":
        return Arrivals(
            self.words[chosen], self.kinds[chosen], self.times[chosen], self.offsets[chosen]
        )


def fold_chunk(parts: Iterable[RecordColumns], by: IdSource, secret: Secret) -> Arrivals:
    """The ids of all records of a chunk; raises Corrupt for headers that break their format."""
    folded = [_fold_columns(columns, by, secret) for columns in parts]
    return folded[0] if len(folded) == 1 else Arrivals.join(folded)


def fold_id(identity: bytes, secret: Secret) -> tuple[Words, Kinds]:
    """One id, as the first row of columns."""
    return _fold(BinaryColumn.of([identity]), secret)


def _fold_columns(columns: RecordColumns, by: IdSource, secret: Secret) -> Arrivals:
    words, kinds = _fold(_find_ids(columns, by), secret)
    return Arrivals(words, kinds, columns.timestamps.copy(), columns.offsets.copy())


def _fold(cells: "BinaryColumn | _KeyCells", secret: Secret) -> tuple[Words, Kinds]:
    count = len(cells.sizes)
    words = np.empty((count, 2), np.uint64)
    kinds = np.empty(count, np.uint8)
    k0, k1 = np.uint64(secret[0]), np.uint64(secret[1])
    fold_cells(cells.data, cells.starts, cells.sizes, k0, k1, words, kinds)
    return words, kinds


def _find_ids(columns: RecordColumns, by: IdSource) -> "BinaryColumn | _KeyCells":
    """The bytes of each record's id, null where it has none."""
    match by.kind:
        case IdKind.KEY:
            return _KeyCells(columns.payload, columns.key_starts, columns.key_sizes)
        case IdKind.HEADER:
            return _find_headers(columns, frozen_bytes(by.name.encode()))
        case IdKind.FIELD:
            return _find_fields(columns, JsonField(by.name))


class _KeyCells(NamedTuple):
    """Keys where a table of records tells them: columns of it, which are not copied."""

    data: Bytes
    starts: Numbers
    sizes: Numbers


def _find_fields(columns: RecordColumns, field: JsonField) -> BinaryColumn:
    payload = columns.payload.tobytes()
    places = zip(columns.value_starts.tolist(), columns.value_sizes.tolist(), strict=True)
    return BinaryColumn.of(
        [None if size < 0 else field.find(payload[start : start + size]) for start, size in places]
    )


def _find_headers(columns: RecordColumns, name: Bytes) -> BinaryColumn:
    starts = np.empty(len(columns), np.int64)
    sizes = np.empty(len(columns), np.int64)
    fault = find_headers(columns.payload, columns.table, name, starts, sizes)
    if fault >= 0:
        raise Corrupt(
            f"the headers of the record at offset {int(columns.offsets[fault])} break their format"
        )
    return BinaryColumn.at(columns.payload, starts=starts, sizes=sizes)
