"""Commits to a table: files come and go, and how far it is, all at once or not at all.

Invariant  a commit stands on the snapshot it was made for. Where another came first nothing is
           changed: the catalog compares, and pyiceberg is not let to try again on top of the other,
           which would repeat its rows.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from varve.foundation.errors import Fenced, NotFound, Unavailable
from varve.jobs.table.catalog import told_errors
from varve.jobs.table.state import RUN, Progress, runs_since

_RETRIES: Final = "commit.retry.num-retries"

PROPERTIES: Final = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
"""Of a table that varve makes: what is written at every commit does not pile up."""


class CommitConflict(Unavailable):
    """Somebody else committed to the table meanwhile: look again."""


def commit(
    table: Table,
    *,
    progress: Progress,
    run_id: str,
    added: Iterable[DataFile] = (),
    removed: Sequence[DataFile] = (),
) -> None:
    """One snapshot; raises CommitConflict when the table is not as it was loaded."""
    name = ".".join(table.name())
    summary = progress.to_summary(run_id)
    table.metadata.properties[_RETRIES] = "0"  # of this object, not of the table
    try:
        with told_errors(f"table {name}"):
            transaction = table.transaction()
            transaction.set_properties(summary)
            update = transaction.update_snapshot(snapshot_properties=summary)
            with update.overwrite() if removed else update.merge_append() as files:
                for one in removed:
                    files.delete_data_file(one)
                for one in added:
                    files.append_data_file(one)
            transaction.commit_transaction()
    except (CommitFailedException, ValidationException, NotFound) as error:
        # Files of the snapshot it stands on are missing where that one expired meanwhile.
        raise CommitConflict(f"table {name} was changed by somebody else meanwhile") from error


def fence(table: Table, *, progress: Progress, run_id: str) -> None:
    """A snapshot without files: no run that began before can commit any more."""
    commit(table, progress=progress, run_id=run_id)


def check_not_taken_over(table: Table, base_id: int | None, run_id: str) -> None:
    """After a conflict: raises Fenced if it was another run, which has swept this one's files."""
    others = runs_since(table, base_id) - {run_id}
    if others:
        raise Fenced(
            f"table {'.'.join(table.name())} was taken over by another run ({sorted(others)[0]}, "
            f"property {RUN}): this one changed nothing since, and need not be repeated"
        )


def snapshot_id(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def data_files(table: Table) -> list[DataFile]:
    """The files of the current snapshot."""
    with told_errors(f"table {'.'.join(table.name())}"):
        return [task.file for task in table.scan().plan_files()]


def referenced_paths(table: Table) -> set[str]:
    """Every data file that a retained snapshot names."""
    found: set[str] = set()
    seen: set[str] = set()
    with told_errors(f"table {'.'.join(table.name())}"):
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found |= {entry.data_file.file_path for entry in entries}
    return found
