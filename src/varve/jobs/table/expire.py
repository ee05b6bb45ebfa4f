"""Rows that must go from a table: found by the bounds of its files, removed by writing these anew.

Invariant  a file is left alone where its bounds or its rows tell that none of it must go. What
           stays is written before anything is committed; no file of deletes is ever made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType

from varve.foundation.settings import LONG_MAX
from varve.jobs.table.catalog import told_errors
from varve.jobs.table.files import TableFiles
from varve.jobs.table.schema import KEY, OFFSET, PARTITION
from varve.jobs.table.tasks import RowsWriter, Written

Flags = npt.NDArray[np.bool_]

_PLACES: Final = (PARTITION, OFFSET, KEY)


class Unwanted(Protocol):
    """Says which rows must go; it travels to executors."""

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags: ...


@dataclass(frozen=True, slots=True)
class BelowStarts:
    """Rows below the log start of their partition."""

    starts: Mapping[int, int]

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags:
        return self._compare(partitions, offsets, np.less)

    def _compare(
        self, partitions: pa.Array, offsets: pa.Array, is_gone: Callable[..., Flags]
    ) -> Flags:
        numbers = np.asarray(partitions)
        found = np.zeros(len(numbers), np.bool_)
        for number, start in self.starts.items():
            found |= (numbers == number) & is_gone(np.asarray(offsets), start)
        return found

    def may_hold(self, bounds: "FileBounds") -> bool:
        return any(bounds.low < self.starts.get(one, 0) for one in bounds.partitions(self.starts))


@dataclass(frozen=True, slots=True)
class FromOffsets(BelowStarts):
    """Rows at or above an offset of their partition: a side table that ran ahead."""

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags:
        return self._compare(partitions, offsets, np.greater_equal)

    def may_hold(self, bounds: "FileBounds") -> bool:
        return any(bounds.high >= self.starts.get(one, 0) for one in bounds.partitions(self.starts))


@dataclass(frozen=True, slots=True)
class FileBounds:
    """Partitions and offsets that a file may hold, ends included."""

    first: int
    last: int
    low: int
    high: int

    @classmethod
    def of(cls, file: DataFile, schema: Schema) -> "FileBounds":
        partition = schema.find_field(PARTITION).field_id
        offset = schema.find_field(OFFSET).field_id
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        return cls(
            _read(IntegerType(), lower.get(partition), 0),
            _read(IntegerType(), upper.get(partition), LONG_MAX),
            _read(LongType(), lower.get(offset), 0),
            _read(LongType(), upper.get(offset), LONG_MAX),
        )

    def partitions(self, known: Iterable[int]) -> list[int]:
        return [one for one in known if self.first <= one <= self.last]


def _read(type: IntegerType | LongType, bound: bytes | None, otherwise: int) -> int:
    return otherwise if bound is None else int(from_bytes(type, bound))


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """One file without the rows that must go; nothing where there are none in it."""

    run_id: str
    name: str
    files: TableFiles
    file: DataFile
    unwanted: Unwanted

    def run(self, shared: None) -> Written:
        with told_errors(self.files.location):
            places = self.files.read([self.file], _PLACES)
            arrays = [places[name].combine_chunks() for name in _PLACES]
            gone = self.unwanted.find(*arrays)
            if not gone.any():
                return Written()
            count = int(gone.sum())
            if gone.all():
                return Written(removed=(self.file,), gone_rows=count)
            rows = self.files.read([self.file]).filter(pa.array(~gone))
            partition = self.file.partition
            is_parted = len(self.files.metadata.spec().fields) > 0
            with RowsWriter(
                self.files, self.run_id, self.name, partition if is_parted else None
            ) as writer:
                for part in split_by_partition(rows, is_parted):
                    writer.write(part)
            return Written(writer.finish(), (self.file,), gone_rows=count)


def split_by_partition(rows: pa.Table, is_parted: bool) -> list[pa.Table]:
    """Rows of one partition each, for a table that has no buckets."""
    if is_parted:
        return [rows]
    numbers = rows[PARTITION].combine_chunks().to_numpy(zero_copy_only=False)
    return [rows.filter(pa.array(numbers == one)) for one in np.unique(numbers)]


def plan_expiry(
    files: TableFiles, there: Sequence[DataFile], unwanted: BelowStarts, run_id: str
) -> list[RewriteTask]:
    """A task for each file that may hold such rows."""
    chosen = [one for one in there if unwanted.may_hold(FileBounds.of(one, files.schema))]
    return [
        RewriteTask(run_id, f"kept-{number}", files, file, unwanted)
        for number, file in enumerate(chosen)
    ]
