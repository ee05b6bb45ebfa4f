"""Older snapshots of a table: expired, and their files removed for good.

Invariant  a file goes only when no snapshot that is left names it. The current snapshot stays, and
           so do those that a branch or a tag of somebody's holds.
Crash      files that were not removed yet are found by the next run, which lists what there is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from varve.foundation.errors import NotFound
from varve.jobs.table.catalog import CatalogAddress, find_table, told_errors
from varve.jobs.table.commit import CommitConflict, snapshot_id
from varve.jobs.table.definition import BAD, read_definition
from varve.jobs.table.files import DATA, TableFiles
from varve.jobs.table.runs import find_marks

METADATA: Final = "metadata"
DAY_MS: Final = 86_400_000


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
    return [_expire_one(one, older_than_ms) for one in tables]


def find_bad(catalog: Catalog, name: str) -> list[Table]:
    bad = find_table(catalog, f"{name}{BAD}")
    return [] if bad is None else [bad]


def _expire_one(table: Table, older_than_ms: int) -> ExpiryResult:
    old = [one for one in find_free(table) if one.timestamp_ms < older_than_ms]
    removed = forget(table, old)
    removed += remove_unnamed(table)
    name = ".".join(table.name())
    return ExpiryResult(name, len(old), len(table.metadata.snapshots), tuple(removed))


def find_free(table: Table) -> list[Snapshot]:
    """The snapshots that are neither current nor held by a branch or a tag."""
    held = {ref.snapshot_id for ref in table.metadata.refs.values()}
    held |= {snapshot_id(table) or 0}
    return [one for one in table.metadata.snapshots if one.snapshot_id not in held]


def find_holders(table: Table) -> list[str]:
    """Branches and tags beside the main branch."""
    return [name for name in table.metadata.refs if name != MAIN_BRANCH]


def find_held(table: Table, holder: str) -> list[str]:
    """The files with rows that a branch or a tag names."""
    id = table.metadata.refs[holder].snapshot_id
    held = [one for one in table.metadata.snapshots if one.snapshot_id == id]
    return sorted(path for path in named_files(table, held) if path.endswith(".parquet"))


def forget(table: Table, snapshots: Sequence[Snapshot]) -> list[str]:
    """Expires snapshots, then removes the files that only they named."""
    if not snapshots:
        return []
    name = ".".join(table.name())
    with told_errors(f"table {name}"):
        before = named_files(table, snapshots)
        try:
            expiry = table.maintenance.expire_snapshots()
            expiry.by_ids([one.snapshot_id for one in snapshots]).commit()
        except CommitFailedException as error:
            raise CommitConflict(
                f"table {name} was changed by somebody else meanwhile: run again"
            ) from error
        table.refresh()
        left = named_files(table, table.metadata.snapshots)
        return TableFiles.of(table).delete(sorted(before - left))


def named_files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Manifest lists, manifests and data files of snapshots."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in found:
                continue
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            found |= {entry.data_file.file_path for entry in entries}
    return found


def remove_unnamed(table: Table, *, own_run: str | None = None) -> list[str]:
    """Removes data files and manifests that no snapshot names, except those of other runs.

    While another run is under way its manifests are not known, so that none is removed. The files
    are listed before the run markers, and both before the snapshots: a listed file belongs to a
    run whose marker is still there, or whose commit is visible.
    """
    files = TableFiles.of(table)
    with told_errors(f"table {'.'.join(table.name())}"):
        data = [one.path for one in files.find(DATA)]
        manifests = [one.path for one in files.find(METADATA) if one.path.endswith(".avro")]
        others = [run for run in find_marks(table) if run != own_run]
        there = data if others else data + manifests
        folders = tuple(f"{files.data_folder(run)}/" for run in others)
        table.refresh()
        named = named_files(table, table.metadata.snapshots)
        return files.delete(
            path for path in there if path not in named and not path.startswith(folders)
        )
