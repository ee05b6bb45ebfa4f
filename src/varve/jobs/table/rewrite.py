"""Removes rows from a table by rewriting its files, and expires its older snapshots.

Invariant  a file is left alone where its bounds or its rows say that nothing in it must go; no
           delete file is ever written. A file is deleted only when no remaining snapshot names it;
           the current snapshot stays, and so do those that a branch or a tag holds.
Crash      files that were not deleted yet are found by the next run, which lists what is there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyiceberg import expressions
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from varve.foundation.settings import LONG_MAX
from varve.jobs.table import table_state
from varve.jobs.table.catalog import CatalogAddress, get_table, translate_catalog_errors
from varve.jobs.table.data_files import DATA, FileChanges, RowsWriter, TableFiles, join_changes
from varve.jobs.table.definition import find_with_rejected, read_definition
from varve.jobs.table.types import KEY, OFFSET, PARTITION
from varve.jobs.tasks import TaskRunner

Flags = npt.NDArray[np.bool_]

_POSITION_COLUMNS: Final = (PARTITION, OFFSET, KEY)
METADATA: Final = "metadata"
DAY_MS: Final = 86_400_000


class Unwanted(Protocol):
    """Says which rows must go, and which of them by their offset alone; all tasks share it."""

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags: ...
    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Flags: ...


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Rows below the offset of their partition, or with `is_above` those from it on."""

    offsets: Mapping[int, int]
    is_above: bool = False

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None = None) -> Flags:
        numbers, slots = np.unique(np.asarray(partitions), return_inverse=True)
        otherwise = LONG_MAX if self.is_above else 0
        known = [self.offsets.get(int(number), otherwise) for number in numbers]
        is_above: Flags = np.asarray(offsets) >= np.array(known, np.int64)[slots]
        return is_above if self.is_above else ~is_above

    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Flags:
        return np.zeros(len(partitions), np.bool_)

    def row_filter(self) -> expressions.BooleanExpression:
        """Rules out files whose bounds say that they hold no such row."""
        compare = expressions.GreaterThanOrEqual if self.is_above else expressions.LessThan
        parts = [
            expressions.And(
                expressions.EqualTo(
                    term=expressions.Reference(PARTITION), value=literal(partition)
                ),
                compare(term=expressions.Reference(OFFSET), value=literal(offset)),
            )
            for partition, offset in self.offsets.items()
        ]
        return expressions.Or(expressions.AlwaysFalse(), expressions.AlwaysFalse(), *parts)


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
        rows = rows.filter(pa.array(~gone))
        with RowsWriter(self.files, self.run_id, self.name, partition) as writer:
            for part in [rows] if has_buckets else split_by_partition(rows):
                writer.write(part)
        return writer.finish()


def split_by_partition(rows: pa.Table) -> list[pa.Table]:
    """Rows of one partition each, as the files of a table without buckets have them."""
    numbers = rows[PARTITION].combine_chunks().to_numpy(zero_copy_only=False)
    return [rows.filter(pa.array(numbers == partition)) for partition in np.unique(numbers)]


def rewrite_files(
    table: Table,
    files: Iterable[DataFile],
    unwanted: Unwanted,
    *,
    stage: str,
    run_id: str,
    runner: TaskRunner,
) -> FileChanges:
    """These files of a table without the unwanted rows, to be committed."""
    table_files = TableFiles.of(table)
    tasks = [
        RewriteTask(run_id, f"kept-{number}", table_files, file)
        for number, file in enumerate(files)
    ]
    return join_changes(runner.run(stage, tasks, unwanted))


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
    read_definition(get_table(catalog, name))
    return [_expire_table(table, older_than_ms) for table in find_with_rejected(catalog, name)]


def _expire_table(table: Table, older_than_ms: int) -> ExpiryResult:
    old = [snapshot for snapshot in find_expirable(table) if snapshot.timestamp_ms < older_than_ms]
    removed = [*expire(table, old), *remove_unnamed(table)]
    name = ".".join(table.name())
    return ExpiryResult(name, len(old), len(table.metadata.snapshots), tuple(removed))


def find_expirable(table: Table) -> list[Snapshot]:
    """The snapshots that are neither current nor held by a branch or a tag."""
    held = {ref.snapshot_id for ref in table.metadata.refs.values()}
    held |= {table_state.snapshot_id(table) or 0}
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
    with table_state.translate_commit_errors(table):
        before = named_files(table, snapshots)
        expiry = table.maintenance.expire_snapshots()
        expiry.by_ids([snapshot.snapshot_id for snapshot in snapshots]).commit()
        table.refresh()
        left = named_files(table, table.metadata.snapshots)
        return TableFiles.of(table).delete(sorted(before - left))


def named_files(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Manifest lists, manifests and data files of snapshots."""
    names = {snapshot.manifest_list for snapshot in snapshots}
    for manifest, paths in table_state.list_manifests(table, snapshots):
        names |= {manifest, *paths}
    return names


def remove_unnamed(table: Table, *, own_run: str | None = None) -> list[str]:
    """Removes data files and manifests that no snapshot names, except those of other runs.

    While another run is under way its manifests are not known, so that none is removed. The files
    are listed before the run markers, and both before the snapshots: a listed file belongs to a
    run whose marker is still there, or whose commit is visible.
    """
    files = TableFiles.of(table)
    with translate_catalog_errors(table):
        data = [file.path for file in files.find(DATA)]
        manifests = [file.path for file in files.find(METADATA) if file.path.endswith(".avro")]
        others = [run for run in table_state.find_run_markers(table) if run != own_run]
        candidates = data if others else data + manifests
        folders = tuple(f"{files.data_folder(run)}/" for run in others)
        table.refresh()
        named = named_files(table, table.metadata.snapshots)
        return files.delete(
            path for path in candidates if path not in named and not path.startswith(folders)
        )
