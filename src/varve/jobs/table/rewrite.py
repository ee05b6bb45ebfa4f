"""Removes rows from a table by rewriting its files, and expires its older snapshots.

Invariant  a file is left alone where its bounds or its rows say that nothing in it must go; no
           delete file is ever written. A file is deleted only when no remaining snapshot names it;
           the current snapshot stays, and so do those that a branch or a tag holds.
Crash      files that were not deleted yet are found by the next run, which lists what is there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IntegerType, LongType

from varve.foundation.errors import NotFound
from varve.foundation.settings import LONG_MAX
from varve.jobs.table.catalog import CatalogAddress, find_table, translate_catalog_errors
from varve.jobs.table.data_files import DATA, FileChanges, RowsWriter, TableFiles
from varve.jobs.table.definition import BAD, read_definition
from varve.jobs.table.table_state import (
    CommitConflict,
    find_run_markers,
    list_manifests,
    snapshot_id,
)
from varve.jobs.table.types import KEY, OFFSET, PARTITION

Flags = npt.NDArray[np.bool_]

_POSITION_COLUMNS: Final = (PARTITION, OFFSET, KEY)
METADATA: Final = "metadata"
DAY_MS: Final = 86_400_000


class Unwanted(Protocol):
    """Says which rows must go, and which of them by their offset alone; all tasks share it."""

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags: ...
    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Flags: ...


@dataclass(frozen=True, slots=True)
class BelowStarts:
    """Rows below the log start of their partition."""

    starts: Mapping[int, int]

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags:
        return self._compare(partitions, offsets, np.less)

    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Flags:
        return np.zeros(len(partitions), np.bool_)

    def _compare(
        self, partitions: pa.Array, offsets: pa.Array, is_gone: Callable[..., Flags]
    ) -> Flags:
        numbers = np.asarray(partitions)
        flags = np.zeros(len(numbers), np.bool_)
        for number, start in self.starts.items():
            flags |= (numbers == number) & is_gone(np.asarray(offsets), start)
        return flags

    def may_hold(self, bounds: "FileBounds") -> bool:
        return any(
            bounds.low < self.starts.get(partition, 0)
            for partition in bounds.partitions(self.starts)
        )


@dataclass(frozen=True, slots=True)
class FromOffsets(BelowStarts):
    """Rows at or above an offset of their partition: a side table that ran ahead."""

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags:
        return self._compare(partitions, offsets, np.greater_equal)

    def may_hold(self, bounds: "FileBounds") -> bool:
        return any(
            bounds.high >= self.starts.get(partition, 0)
            for partition in bounds.partitions(self.starts)
        )


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
            _decode_bound(IntegerType(), lower.get(partition), 0),
            _decode_bound(IntegerType(), upper.get(partition), LONG_MAX),
            _decode_bound(LongType(), lower.get(offset), 0),
            _decode_bound(LongType(), upper.get(offset), LONG_MAX),
        )

    def partitions(self, known: Iterable[int]) -> list[int]:
        return [partition for partition in known if self.first <= partition <= self.last]


def _decode_bound(type: IntegerType | LongType, bound: bytes | None, otherwise: int) -> int:
    return otherwise if bound is None else int(from_bytes(type, bound))


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A file without the rows that a shared Unwanted names; nothing where it has none of them."""

    run_id: str
    name: str
    files: TableFiles
    file: DataFile

    def run(self, shared: Unwanted) -> FileChanges:
        with translate_catalog_errors(self.files.location):
            positions = self.files.read([self.file], _POSITION_COLUMNS)
            arrays = [positions[name].combine_chunks() for name in _POSITION_COLUMNS]
            gone = shared.find(*arrays)
            if not gone.any():
                return FileChanges()
            added = () if gone.all() else self._write(self.files.read([self.file]), gone)
            return FileChanges(
                added,
                (self.file,),
                gone_rows=int(gone.sum()),
                single_rows=int(shared.find_single(*arrays).sum()),
            )

    def _write(self, rows: pa.Table, gone: Flags) -> tuple[DataFile, ...]:
        has_buckets = len(self.files.metadata.spec().fields) > 0
        partition = self.file.partition if has_buckets else None
        with RowsWriter(self.files, self.run_id, self.name, partition) as writer:
            for part in split_by_partition(rows.filter(pa.array(~gone)), has_buckets):
                writer.write(part)
        return writer.finish()


def split_by_partition(rows: pa.Table, has_buckets: bool) -> list[pa.Table]:
    """Rows of one partition each, for a table that has no buckets."""
    if has_buckets:
        return [rows]
    numbers = rows[PARTITION].combine_chunks().to_numpy(zero_copy_only=False)
    return [rows.filter(pa.array(numbers == partition)) for partition in np.unique(numbers)]


def plan_expiry(
    files: TableFiles, current: Sequence[DataFile], unwanted: BelowStarts, run_id: str
) -> list[RewriteTask]:
    """A task for each file that may hold such rows."""
    chosen = [file for file in current if unwanted.may_hold(FileBounds.of(file, files.schema))]
    return [
        RewriteTask(run_id, f"kept-{number}", files, file) for number, file in enumerate(chosen)
    ]


# Snapshots


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """What became of a table's history."""

    table: str
    snapshots: int
    kept: int
    removed: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "table": self.table,
            "snapshots": self.snapshots,
            "kept": self.kept,
            "removed": len(self.removed),
        }


def expire_snapshots(
    address: CatalogAddress, name: str, *, older_than_ms: int
) -> list[ExpiryResult]:
    """Expires what is older than a moment, of a table and its side table.

    Files of runs that are not under way and that no snapshot names go too.
    """
    catalog = address.open_existing()
    table = find_table(catalog, name)
    if table is None:
        raise NotFound(f"{address.place} has no table {name}")
    read_definition(table)
    tables = [table, *find_bad(catalog, name)]
    return [_expire_table(opened, older_than_ms) for opened in tables]


def find_bad(catalog: Catalog, name: str) -> list[Table]:
    bad = find_table(catalog, f"{name}{BAD}")
    return [] if bad is None else [bad]


def _expire_table(table: Table, older_than_ms: int) -> ExpiryResult:
    old = [snapshot for snapshot in find_expirable(table) if snapshot.timestamp_ms < older_than_ms]
    removed = expire(table, old)
    removed += remove_unnamed(table)
    name = ".".join(table.name())
    return ExpiryResult(name, len(old), len(table.metadata.snapshots), tuple(removed))


def find_expirable(table: Table) -> list[Snapshot]:
    """The snapshots that are neither current nor held by a branch or a tag."""
    held = {ref.snapshot_id for ref in table.metadata.refs.values()}
    held |= {snapshot_id(table) or 0}
    return [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in held]


def find_named_refs(table: Table) -> list[str]:
    """Branches and tags beside the main branch."""
    return [name for name in table.metadata.refs if name != MAIN_BRANCH]


def find_referenced(table: Table, holder: str) -> list[str]:
    """The files with rows that a branch or a tag names."""
    id = table.metadata.refs[holder].snapshot_id
    held = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id == id]
    return sorted(path for path in named_files(table, held) if path.endswith(".parquet"))


def expire(table: Table, snapshots: Sequence[Snapshot]) -> list[str]:
    """Expires snapshots, then removes the files that only they named."""
    if not snapshots:
        return []
    name = ".".join(table.name())
    with translate_catalog_errors(f"table {name}"):
        before = named_files(table, snapshots)
        try:
            expiry = table.maintenance.expire_snapshots()
            expiry.by_ids([snapshot.snapshot_id for snapshot in snapshots]).commit()
        except CommitFailedException as error:
            raise CommitConflict(
                f"table {name} was changed by somebody else meanwhile: run again"
            ) from error
        table.refresh()
        left = named_files(table, table.metadata.snapshots)
        return TableFiles.of(table).delete(sorted(before - left))


def named_files(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Manifest lists, manifests and data files of snapshots."""
    names = {snapshot.manifest_list for snapshot in snapshots}
    for manifest, paths in list_manifests(table, snapshots):
        names |= {manifest, *paths}
    return names


def remove_unnamed(table: Table, *, own_run: str | None = None) -> list[str]:
    """Removes data files and manifests that no snapshot names, except those of other runs.

    While another run is under way its manifests are not known, so that none is removed. The files
    are listed before the run markers, and both before the snapshots: a listed file belongs to a
    run whose marker is still there, or whose commit is visible.
    """
    files = TableFiles.of(table)
    with translate_catalog_errors(f"table {'.'.join(table.name())}"):
        data = [file.path for file in files.find(DATA)]
        manifests = [file.path for file in files.find(METADATA) if file.path.endswith(".avro")]
        others = [run for run in find_run_markers(table) if run != own_run]
        candidates = data if others else data + manifests
        folders = tuple(f"{files.data_folder(run)}/" for run in others)
        table.refresh()
        named = named_files(table, table.metadata.snapshots)
        return files.delete(
            path for path in candidates if path not in named and not path.startswith(folders)
        )
