"""Runs that write to a table: told beforehand, taken over when they were killed.

Invariant  a run leaves a mark before its first file. Whoever finds the mark of another run commits
           to the table first, so that the other cannot any more, and then removes the files of it
           that no snapshot names.
Crash      a mark that stays is found by the next run.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.table import Table

from varve.foundation.clock import Clock
from varve.jobs.table.catalog import told_errors
from varve.jobs.table.commit import CommitConflict, fence, referenced_paths
from varve.jobs.table.files import DATA, MARKS, TableFiles
from varve.jobs.table.state import read_progress

_SUFFIX: Final = ".json"
_TRIES: Final = 5


def new_run_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class TableRun:
    """One run over a table and its side table, which may be missing."""

    run_id: str
    files: tuple[TableFiles, ...]

    @classmethod
    def begin(cls, tables: Sequence[Table], run_id: str, clock: Clock) -> "TableRun":
        """Leaves the marks."""
        run = cls(run_id, tuple(TableFiles.of(table) for table in tables))
        text = json.dumps({"run": run_id, "began_ms": clock.now_ms()}).encode()
        for one in run.files:
            with told_errors(one.location):
                one.write_mark(run_id, text)
        return run


def take_over(tables: Sequence[Table], run_id: str) -> list[str]:
    """Ends the runs that left marks at a table or its side table; the files that are gone now.

    All tables are fenced before a file is removed: a run commits to the one, then to the other.
    """
    marks = {one for table in tables for one in find_marks(table)}
    others = sorted(marks - {run_id})
    for table in tables if others else ():
        _fence(table, run_id)
    return [path for other in others for table in tables for path in sweep(table, other)]


def _fence(table: Table, run_id: str) -> None:
    for left in reversed(range(_TRIES)):
        try:
            fence(table, progress=read_progress(table), run_id=run_id)
            return
        except CommitConflict:
            if not left:
                raise
            with told_errors(f"table {'.'.join(table.name())}"):
                table.refresh()


def find_marks(table: Table) -> list[str]:
    """The runs that began and did not end."""
    with told_errors(f"table {'.'.join(table.name())}"):
        found = TableFiles.of(table).find(MARKS)
    return [
        one.path.rpartition("/")[2].removesuffix(_SUFFIX)
        for one in found
        if one.path.endswith(_SUFFIX)
    ]


def sweep(table: Table, run_id: str, committed: set[str] | None = None) -> list[str]:
    """Removes the files of a run that no snapshot names, then its mark.

    A run that knows what it committed says so, and spares the look at every snapshot.
    """
    files = TableFiles.of(table)
    with told_errors(f"table {'.'.join(table.name())}"):
        there = files.find(f"{DATA}/{run_id}")
        kept = set() if committed is None else committed
        if there and committed is None:
            kept = referenced_paths(table)
        gone = files.delete(one.path for one in there if one.path not in kept)
        files.delete([f"{files.location}/{MARKS}/{run_id}{_SUFFIX}"])
    return gone
