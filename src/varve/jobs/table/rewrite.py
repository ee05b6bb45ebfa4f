"""Removes rows from a table by rewriting its files, and expires its older snapshots.

Invariant  a file without matching rows is not rewritten; delete files are never written. A file is
           deleted only when no remaining snapshot names it; the current snapshot and those of
           branches and tags are retained.
Crash      the next run lists all files, and deletes those that this one did not reach.
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

from varve.foundation.errors import NotFound
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


class RowSelector(Protocol):
    """Marks the rows to remove, and those of them that match by offset alone."""

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Flags: ...
    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Flags: ...


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Selects rows below the offset of their partition, or with `is_above` at or above it."""

    offsets: Mapping[int, int]
    is_above: bool = False

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None = None) -> Flags:
        numbers, slots = np.unique(np.asarray(partitions), return_inverse=True)
        default_bound = LONG_MAX if self.is_above else 0
        bounds = [self.offsets.get(int(number), default_bound) for number in numbers]
        is_above: Flags = np.asarray(offsets) >= np.array(bounds, np.int64)[slots]
        return is_above if self.is_above else ~is_above

    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Flags:
        return np.zeros(len(partitions), np.bool_)

    def row_filter(self) -> expressions.BooleanExpression:
        """Returns a filter that excludes files by their bounds."""
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
    """Rewrites a file without the rows of the shared RowSelector; no changes if none match."""

    run_id: str
    name: str
    files: TableFiles
    file: DataFile

    def run(self, shared: RowSelector) -> FileChanges:
        with translate_catalog_errors(self.files.location):
            positions = self.files.read([self.file], _POSITION_COLUMNS)
            arrays = [positions[name].combine_chunks() for name in _POSITION_COLUMNS]
            is_removed = shared.find(*arrays)
            if not is_removed.any():
                return FileChanges()
            added = (
                () if is_removed.all() else self._write(self.files.read([self.file]), is_removed)
            )
            return FileChanges(
                added,
                (self.file,),
                removed_rows=int(is_removed.sum()),
                single_rows=int(shared.find_single(*arrays).sum()),
            )

    def _write(self, rows: pa.Table, is_removed: Flags) -> tuple[DataFile, ...]:
        has_buckets = len(self.files.metadata.spec().fields) > 0
        partition = self.file.partition if has_buckets else None
        rows = rows.filter(pa.array(~is_removed))
        with RowsWriter(self.files, self.run_id, self.name, partition) as writer:
            for part in [rows] if has_buckets else split_by_partition(rows):
                writer.write(part)
        return writer.finish()


def split_by_partition(rows: pa.Table) -> list[pa.Table]:
    """Splits rows by partition, as the files of a table without buckets are."""
    numbers = rows[PARTITION].combine_chunks().to_numpy(zero_copy_only=False)
    return [rows.filter(pa.array(numbers == partition)) for partition in np.unique(numbers)]


def rewrite_files(
    table: Table,
    files: Iterable[DataFile],
    selector: RowSelector,
    *,
    stage: str,
    run_id: str,
    runner: TaskRunner,
) -> FileChanges:
    """Rewrites files of a table without the selected rows; the caller commits the changes."""
    table_files = TableFiles.of(table)
    tasks = [
        RewriteTask(run_id, f"kept-{number}", table_files, file)
        for number, file in enumerate(files)
    ]
    return join_changes(runner.run(stage, tasks, selector))


# Snapshots


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """The result of expiring snapshots of a table."""

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
    """Expires the snapshots of a table and its side table that are older than a time.

    Also deletes unreferenced files, except those of active runs.
    """
    catalog = address.open_existing()
    read_definition(get_table(catalog, name))
    return [_expire_table(table, older_than_ms) for table in find_with_rejected(catalog, name)]


def _expire_table(table: Table, older_than_ms: int) -> ExpiryResult:
    old = [snapshot for snapshot in find_expirable(table) if snapshot.timestamp_ms < older_than_ms]
    removed = [*expire(table, old), *delete_unreferenced(table)]
    name = ".".join(table.name())
    return ExpiryResult(name, len(old), len(table.metadata.snapshots), tuple(removed))


def find_expirable(table: Table) -> list[Snapshot]:
    """Returns the snapshots that are neither current nor referenced by a branch or tag."""
    retained = {ref.snapshot_id for ref in table.metadata.refs.values()}
    retained |= {table_state.snapshot_id(table) or 0}
    return [
        snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in retained
    ]


def find_named_refs(table: Table) -> list[str]:
    """Returns the branches and tags except the main branch."""
    return [name for name in table.metadata.refs if name != MAIN_BRANCH]


def find_referenced(table: Table, ref: str) -> list[str]:
    """Returns the data files of the snapshot of a branch or tag."""
    id = table.metadata.refs[ref].snapshot_id
    snapshots = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id == id]
    return sorted(path for path in named_files(table, snapshots) if path.endswith(".parquet"))


def expire(table: Table, snapshots: Sequence[Snapshot]) -> list[str]:
    """Expires snapshots, then deletes the files that only they referenced.

    Raises CommitConflict if another program has expired one of them.
    """
    if not snapshots:
        return []
    with table_state.translate_commit_errors(table, NotFound):
        before = named_files(table, snapshots)
        expiry = table.maintenance.expire_snapshots()
        # pyiceberg raises ValueError for a snapshot that the table has no longer.
        with table_state.translate_commit_errors(table, ValueError):
            expiry.by_ids([snapshot.snapshot_id for snapshot in snapshots]).commit()
        table.refresh()
        remaining = named_files(table, table.metadata.snapshots)
        return TableFiles.of(table).delete(sorted(before - remaining))


def named_files(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Returns the manifest lists, manifests and data files of snapshots."""
    names = {snapshot.manifest_list for snapshot in snapshots}
    for manifest, paths in table_state.list_manifests(table, snapshots):
        names |= {manifest, *paths}
    return names


def delete_unreferenced(table: Table, *, own_run: str | None = None) -> list[str]:
    """Deletes data files and manifests that no snapshot names, except those of other runs.

    While another run is active its manifests are unknown, so that no manifest is deleted. The files
    are listed before the run markers, and both before the snapshots: a listed file belongs to a
    run whose marker is still there, or whose commit is visible.
    """
    files = TableFiles.of(table)
    with translate_catalog_errors(table):
        data = [file.path for file in files.list_files(DATA)]
        manifests = [
            file.path for file in files.list_files(METADATA) if file.path.endswith(".avro")
        ]
        others = [run for run in table_state.find_run_markers(table) if run != own_run]
        candidates = data if others else data + manifests
        folders = tuple(f"{files.data_folder(run)}/" for run in others)
        table.refresh()
        named = named_files(table, table.metadata.snapshots)
        return files.delete(
            path for path in candidates if path not in named and not path.startswith(folders)
        )
