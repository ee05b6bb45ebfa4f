"""Takes rows out of a table for good: from its files, its side table and its history.

Invariant  after it no file of the table, named by a snapshot or not, holds such a row: files are
           written anew without them, every older snapshot expires, and what no snapshot names any
           more is deleted, manifests among it, since they tell bounds of keys and values. A table
           of keys that lost single records says so in that commit, and is made anew by a run.
Crash      it may be run again: what is left is found by the list of files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.foundation.settings import GivenValue
from varve.jobs.outputs.erased_rows import ErasedFile, ErasedOutput, ErasedRows
from varve.jobs.outputs.notes import Output
from varve.jobs.table.catalog import CatalogAddress, find_table, told_errors
from varve.jobs.table.commit import CommitConflict, commit, data_files, fence, referenced_paths
from varve.jobs.table.definition import BAD, read_definition
from varve.jobs.table.expire import RewriteTask
from varve.jobs.table.files import DATA, TableFiles
from varve.jobs.table.history import (
    find_free,
    find_held,
    find_holders,
    forget,
    remove_unnamed,
)
from varve.jobs.table.lost import LostTable, LostTables, find_lost, overlap
from varve.jobs.table.runs import TableRun, new_run_id, sweep, take_over
from varve.jobs.table.schema import KEY, OFFSET, PARTITION
from varve.jobs.table.state import read_progress
from varve.jobs.table.tasks import Written, join_written
from varve.jobs.tasks import LocalRunner

_TRIES: Final = 5
_COLUMNS: Final = [PARTITION, OFFSET, KEY]
_CHUNK_BYTES: Final = 1 << 20


def erase_from_table(
    output: Output,
    settings: Mapping[str, GivenValue],
    wanted: ErasedRows,
    *,
    others: Sequence[Output] = (),
    clock: Clock | None = None,
) -> ErasedOutput:
    """Removes the rows from the table that an output notes, and from its side table.

    A run that is under way is ended, since it may have read the records already. What is left at
    its locations of a table that was dropped goes as a whole if it holds such rows. Raises
    InvalidRequest, before anything is changed, where a branch or tag of somebody's holds such rows.
    """
    found = _Erasure(wanted)
    opened = _Opened.of(output, settings, others)
    tables = opened.tables
    for table in tables:
        _check_holders(table, wanted)
    run_id = f"erase-{new_run_id()}"
    for table in tables:
        found.note_before(table)
    found.removed += take_over(tables, run_id)
    TableRun.begin(tables, run_id, clock or SystemClock())
    for table in tables:
        found.erase(table, run_id)
    for table in tables:
        found.removed += sweep(table, run_id)
    for lost in opened.lost.found:
        found.erase_lost(lost)
    found.out_of_reach += opened.lost.out_of_reach
    if not tables and not output.locations:
        found.out_of_reach.append(
            f"table {output.name} is not in its catalog ({output.place}), and where its files were "
            "is not noted: if it was dropped without them, remove these by hand"
        )
    return ErasedOutput(
        output_id=output.id,
        rows=found.rows,
        files_before=tuple(found.before),
        files_after=tuple(found.after),
        removed=tuple(found.removed),
        out_of_reach=tuple(found.out_of_reach),
        is_there=bool(tables or (output.locations and not opened.lost.out_of_reach)),
    )


def count_in_table(
    output: Output,
    settings: Mapping[str, GivenValue],
    wanted: ErasedRows,
    *,
    others: Sequence[Output] = (),
) -> int:
    """How many such rows every file at the table's place holds, named by a snapshot or not."""
    opened = _Opened.of(output, settings, others)
    total = 0
    for table in opened.tables:
        files = TableFiles.of(table)
        with told_errors(files.location):
            total += sum(_count(files.io(), path, wanted) for path in _find_paths(table))
    for lost in opened.lost.found:
        with told_errors(lost.location):
            total += sum(_count(lost.io, path, wanted) for path in lost.data)
    return total


@dataclass(frozen=True, slots=True)
class _Opened:
    """The table and its side table as far as the catalog has them, and what is left of others."""

    tables: list[Table]
    lost: LostTables

    @classmethod
    def of(
        cls, output: Output, settings: Mapping[str, GivenValue], others: Sequence[Output]
    ) -> "_Opened":
        catalog = _open_catalog(output, settings)
        tables = _find_tables(catalog, output)
        own = [one.location() for one in tables]
        used = [
            table.location()
            for other in others
            if other.id != output.id and _share(output, other)
            for table in _find_tables(_open_catalog(other, settings), other)
        ]
        return cls(tables, find_lost(output, catalog, own=own, used=used))


def _share(output: Output, other: Output) -> bool:
    """Whether two notes name locations that may be one."""
    return any(overlap(one, two) for one in output.locations for two in other.locations)


def _open_catalog(output: Output, settings: Mapping[str, GivenValue]) -> Catalog:
    more = {name: str(value) for name, value in settings.items()}
    return CatalogAddress.of_how(dict(output.how), more).open_existing()


def _find_tables(catalog: Catalog, output: Output) -> list[Table]:
    found = (find_table(catalog, one) for one in (output.name, f"{output.name}{BAD}"))
    return [one for one in found if one is not None]


@dataclass
class _Erasure:
    """One erasure, table after table."""

    wanted: ErasedRows
    rows: int = 0
    before: list[ErasedFile] = field(default_factory=list)
    after: list[ErasedFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    out_of_reach: list[str] = field(default_factory=list)

    def erase(self, table: Table, run_id: str) -> None:
        written = self._rewrite(table, run_id)
        self.rows += written.gone_rows
        if read_progress(table).is_thinned:
            self.out_of_reach.append(
                f"table {'.'.join(table.name())} lacks keys of which the log has older records, "
                "the latest again now: run `varve job table`, which makes it anew"
            )
        if written.removed:
            # The snapshot of a removal names what it removed; one more does not.
            fence(table, progress=read_progress(table), run_id=run_id)
        self.removed += forget(table, find_free(table))
        self.removed += remove_unnamed(table, own_run=run_id)
        files = TableFiles.of(table)
        with told_errors(files.location):
            self.after += [
                _describe(files.io(), one.file_path, one.record_count) for one in written.added
            ]
        for holder in find_holders(table):
            self.out_of_reach.append(
                f"table {'.'.join(table.name())}: branch or tag {holder} holds an older snapshot, "
                "whose files stay: drop it and erase again"
            )

    def erase_lost(self, lost: LostTable) -> None:
        """All of it, where one file holds such rows: its manifests tell bounds of keys."""
        with told_errors(lost.location):
            counts = {path: _count_or_none(lost.io, path, self.wanted) for path in lost.data}
            self.before += [
                _describe(lost.io, path, count) for path, count in counts.items() if count
            ]
        if all(count == 0 for count in counts.values()):
            return
        self.rows += sum(count or 0 for count in counts.values())
        self.removed += lost.remove()

    def note_before(self, table: Table) -> None:
        """Every file that holds such rows, be it of an older snapshot or of none."""
        files = TableFiles.of(table)
        with told_errors(files.location):
            for path in _find_paths(table):
                count = _count_or_none(files.io(), path, self.wanted)
                if count:
                    self.before.append(_describe(files.io(), path, count))

    def _rewrite(self, table: Table, run_id: str) -> Written:
        """The files of the current snapshot without the rows, in one commit."""
        for left in reversed(range(_TRIES)):
            files = TableFiles.of(table)
            tasks = [
                RewriteTask(run_id, f"erased-{number}", files, file, self.wanted)
                for number, file in enumerate(data_files(table))
            ]
            written = join_written(LocalRunner().run("erase", tasks))
            if not written.removed:
                return written
            try:
                progress = read_progress(table)
                if self._is_thinned(table, written):
                    progress = replace(progress, is_thinned=True)
                commit(
                    table,
                    progress=progress,
                    run_id=run_id,
                    added=written.added,
                    removed=written.removed,
                )
                return written
            except CommitConflict:
                if not left:
                    raise
                with told_errors(files.location):
                    files.delete(one.file_path for one in written.added)
                    table.refresh()
        raise AssertionError("the last try returns or raises")

    def _is_thinned(self, table: Table, written: Written) -> bool:
        """Whether single records of keys leave a table that has the latest of each."""
        if table.name()[-1].endswith(BAD) or not read_definition(table).is_keyed:
            return False
        files = TableFiles.of(table)
        with told_errors(files.location):
            for one in written.removed:
                rows = files.read([one], _COLUMNS)
                places = (rows[name].combine_chunks() for name in _COLUMNS)
                if self.wanted.find_single(*places).any():
                    return True
        return False


def _check_holders(table: Table, wanted: ErasedRows) -> None:
    files = TableFiles.of(table)
    for holder in find_holders(table):
        with told_errors(files.location):
            paths = find_held(table, holder)
            rows = sum(_count(files.io(), path, wanted) for path in paths)
        if rows:
            raise InvalidRequest(
                f"table {'.'.join(table.name())}: branch or tag {holder} holds a snapshot with "
                f"{rows} rows that are to be erased, and varve drops nothing of others: drop it "
                "and erase again; the table is as it was"
            )


def _find_paths(table: Table) -> list[str]:
    """Every file with rows: all at the table's place, and what snapshots name elsewhere."""
    listed = {one.path for one in TableFiles.of(table).find(DATA)}
    return sorted(listed | referenced_paths(table))


def _count(io: PyArrowFileIO, path: str, wanted: ErasedRows) -> int:
    found = _count_or_none(io, path, wanted)
    if found is None:
        raise Corrupt(f"{path} cannot be looked into, and no snapshot needs it: remove it by hand")
    return found


def _count_or_none(io: PyArrowFileIO, path: str, wanted: ErasedRows) -> int | None:
    """None for what is no whole Parquet file, as a killed task leaves it."""
    try:
        with io.new_input(path).open() as stream:
            rows = pq.read_table(stream, columns=_COLUMNS)
    except pa.ArrowInvalid:
        return None
    return int(wanted.find(*(rows[name].combine_chunks() for name in _COLUMNS)).sum())


def _describe(io: PyArrowFileIO, path: str, rows: int) -> ErasedFile:
    digest = sha256()
    size = 0
    with io.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return ErasedFile(path, size, digest.hexdigest(), rows)
