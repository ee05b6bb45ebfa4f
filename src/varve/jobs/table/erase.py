"""Removes rows from a table for good: from its files, its side table and its history.

Invariant  after it no file of the table, named by a snapshot or not, holds such a row: files are
           rewritten without them, every older snapshot expires, and what no snapshot names is
           deleted, manifests included, since they hold bounds of keys and values. A table of keys
           that lost single records says so in that commit, and the next run rebuilds it. Of a table
           that its catalog no longer has, files go only below a location that no other table uses
           and whose metadata says that varve wrote it from the topic; others are reported.
Crash      it may be run again: what is left is found by listing. The metadata that identifies the
           files of an orphaned table goes last.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.fs as pafs  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import DerivedOutput, ErasedFile, ErasedOutput, ErasedRows
from varve.jobs.table.catalog import (
    CatalogAddress,
    find_folder,
    find_table,
    translate_catalog_errors,
)
from varve.jobs.table.data_files import (
    DATA,
    RUN_MARKERS,
    FileChanges,
    TableFiles,
    delete_files,
    join_changes,
    list_files,
)
from varve.jobs.table.definition import BAD, read_definition
from varve.jobs.table.rewrite import (
    METADATA,
    RewriteTask,
    expire,
    find_expirable,
    find_named_refs,
    find_referenced,
    remove_unnamed,
)
from varve.jobs.table.table_state import (
    TOPIC_ID,
    CommitConflict,
    TableRun,
    commit,
    commit_fence,
    data_files,
    fence_other_runs,
    new_run_id,
    read_sync_state,
    referenced_paths,
    sweep,
)
from varve.jobs.table.types import KEY, OFFSET, PARTITION
from varve.jobs.tasks import LocalRunner

_TELLING: Final = ".metadata.json"
_ALIKE: Final = ("s3a://", "s3n://")
_TRIES: Final = 5
_COLUMNS: Final = [PARTITION, OFFSET, KEY]
_CHUNK_BYTES: Final = 1 << 20


# Orphaned tables


@dataclass(frozen=True, slots=True)
class OrphanedTable:
    """The files below a location: those with rows, and all others of the table."""

    location: str
    io: PyArrowFileIO
    data: tuple[str, ...]
    others: tuple[str, ...]

    def remove(self) -> list[str]:
        with translate_catalog_errors(self.location):
            return delete_files(self.io, (*self.data, *self.others))


@dataclass(frozen=True, slots=True)
class OrphanedTables:
    """What can be looked into, and sentences about what cannot."""

    found: tuple[OrphanedTable, ...] = ()
    out_of_reach: tuple[str, ...] = ()


def find_orphaned(
    output: DerivedOutput, catalog: Catalog, *, own: Collection[str], used: Sequence[str]
) -> OrphanedTables:
    """What is left at the noted locations where none of the output's own tables is.

    `used` are locations of tables that other notes speak of.
    """
    lost = [one for one in output.locations if _bare(one) not in {_bare(two) for two in own}]
    if not lost:
        return OrphanedTables()
    io = PyArrowFileIO(dict(catalog.properties))
    with translate_catalog_errors(f"table {output.name}"):
        tables = {f"table {name}": at for name, at in _list_tables(catalog)}
    tables |= {f"a table at {at}": at for at in used}
    found, told = [], []
    for location in lost:
        with translate_catalog_errors(location):
            one = _look(output, location, io, tables)
        if isinstance(one, OrphanedTable):
            found.append(one)
        elif one is not None:
            told.append(one)
    return OrphanedTables(tuple(found), tuple(told))


def overlap(one: str, other: str) -> bool:
    """Whether two locations are one, or lie one in the other."""
    first, second = f"{_bare(one)}/", f"{_bare(other)}/"
    return first.startswith(second) or second.startswith(first)


def _look(
    output: DerivedOutput, location: str, io: PyArrowFileIO, tables: dict[str, str]
) -> OrphanedTable | str | None:
    """The files, or why they are out of reach; None where nothing is left."""
    whose = f"{location}, where table {output.name} was before it left its catalog"
    if not _is_reached(output, location, io):
        return (
            f"{whose}, is not there: mount or put it back and erase again, or, if it is gone for "
            f"good, forget the note: varve job outputs {output.topic} --forget {output.id}"
        )
    data = [one.path for one in list_files(io, location, DATA)]
    told = [one.path for one in list_files(io, location, METADATA)]
    if not data and not told:
        return None
    sharing = sorted(name for name, at in tables.items() if overlap(location, at))
    if sharing:
        return (
            f"{whose}, holds files and is in use by {sharing[0]}: rows to be erased may be among "
            "them. Drop that table with its files, or give it its name back, and erase again"
        )
    telling = [one for one in told if one.endswith(_TELLING)]
    if not telling or not all(_read_topic_id(io, one) == output.topic_id for one in telling):
        return (
            f"{whose}, holds {len(data) + len(told)} files, and no metadata that says they are of "
            f"topic {output.topic} alone: rows to be erased may be among them. Remove what is "
            "yours there by hand"
        )
    rest = [one for one in told if not one.endswith(_TELLING)]
    marks = [one.path for one in list_files(io, location, RUN_MARKERS)]
    return OrphanedTable(location, io, tuple(data), (*marks, *rest, *telling))


def _is_reached(output: DerivedOutput, location: str, io: PyArrowFileIO) -> bool:
    """Whether a location without files is empty, and not a disk or a bucket that is missing."""
    folder = find_folder(location)
    if folder is not None:
        warehouse = dict(output.how).get("warehouse")
        root = None if warehouse is None else find_folder(warehouse)
        is_inside = root is not None and overlap(folder, root) and len(root) <= len(folder)
        return os.path.isdir(folder) or (is_inside and root is not None and os.path.isdir(root))
    scheme, netloc, path = io.parse_location(location, io.properties)
    bucket = path.partition("/")[0]
    (told,) = io.fs_by_scheme(scheme, netloc).get_file_info([bucket])
    return bool(told.type != pafs.FileType.NotFound)


def _read_topic_id(io: PyArrowFileIO, path: str) -> str | None:
    """Of which topic a table was made; None where its metadata does not tell."""
    with io.new_input(path).open() as stream:
        data = stream.read()
    try:
        properties = json.loads(data)["properties"]
        return str(properties[TOPIC_ID])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _list_tables(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Every table of a catalog by its name, with its location."""
    waiting = list(catalog.list_namespaces())
    while waiting:
        namespace = waiting.pop()
        try:
            names = catalog.list_tables(namespace)
            below = catalog.list_namespaces(namespace)
        except NoSuchNamespaceError:
            continue
        waiting += [one for one in below if one != namespace]
        for name in names:
            try:
                yield ".".join(name), catalog.load_table(name).location()
            except NoSuchTableError:
                continue


def _bare(location: str) -> str:
    """A location as it is compared."""
    for alike in _ALIKE:
        if location.startswith(alike):
            location = f"s3://{location.removeprefix(alike)}"
    folder = find_folder(location)
    return location.rstrip("/") if folder is None else os.path.realpath(folder)


# Erasure


def erase_from_table(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    wanted: ErasedRows,
    *,
    others: Sequence[DerivedOutput] = (),
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
    found.removed += fence_other_runs(tables, run_id)
    TableRun.begin(tables, run_id, clock or SystemClock())
    for table in tables:
        found.erase(table, run_id)
    for table in tables:
        found.removed += sweep(table, run_id)
    for lost in opened.lost.found:
        found.erase_orphaned(lost)
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
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    wanted: ErasedRows,
    *,
    others: Sequence[DerivedOutput] = (),
) -> int:
    """How many such rows every file at the table's place holds, named by a snapshot or not."""
    opened = _Opened.of(output, settings, others)
    total = 0
    for table in opened.tables:
        files = TableFiles.of(table)
        with translate_catalog_errors(files.location):
            total += sum(_count(files.io(), path, wanted) for path in _find_paths(table))
    for lost in opened.lost.found:
        with translate_catalog_errors(lost.location):
            total += sum(_count(lost.io, path, wanted) for path in lost.data)
    return total


@dataclass(frozen=True, slots=True)
class _Opened:
    """The table and its side table as far as the catalog has them, and what is left of others."""

    tables: list[Table]
    lost: OrphanedTables

    @classmethod
    def of(
        cls,
        output: DerivedOutput,
        settings: Mapping[str, GivenValue],
        others: Sequence[DerivedOutput],
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
        return cls(tables, find_orphaned(output, catalog, own=own, used=used))


def _share(output: DerivedOutput, other: DerivedOutput) -> bool:
    """Whether two notes name locations that may be one."""
    return any(overlap(one, two) for one in output.locations for two in other.locations)


def _open_catalog(output: DerivedOutput, settings: Mapping[str, GivenValue]) -> Catalog:
    more = {name: str(value) for name, value in settings.items()}
    return CatalogAddress.of_how(dict(output.how), more).open_existing()


def _find_tables(catalog: Catalog, output: DerivedOutput) -> list[Table]:
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
        if read_sync_state(table).needs_rebuild:
            self.out_of_reach.append(
                f"table {'.'.join(table.name())} lacks keys of which the log has older records, "
                "the latest again now: run `varve job table`, which makes it anew"
            )
        if written.removed:
            # The snapshot of a removal names what it removed; one more does not.
            commit_fence(table, progress=read_sync_state(table), run_id=run_id)
        self.removed += expire(table, find_expirable(table))
        self.removed += remove_unnamed(table, own_run=run_id)
        files = TableFiles.of(table)
        with translate_catalog_errors(files.location):
            self.after += [
                _describe(files.io(), one.file_path, one.record_count) for one in written.added
            ]
        for holder in find_named_refs(table):
            self.out_of_reach.append(
                f"table {'.'.join(table.name())}: branch or tag {holder} holds an older snapshot, "
                "whose files stay: drop it and erase again"
            )

    def erase_orphaned(self, lost: OrphanedTable) -> None:
        """All of it, where one file holds such rows: its manifests tell bounds of keys."""
        with translate_catalog_errors(lost.location):
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
        with translate_catalog_errors(files.location):
            for path in _find_paths(table):
                count = _count_or_none(files.io(), path, self.wanted)
                if count:
                    self.before.append(_describe(files.io(), path, count))

    def _rewrite(self, table: Table, run_id: str) -> FileChanges:
        """The files of the current snapshot without the rows, in one commit."""
        for left in reversed(range(_TRIES)):
            files = TableFiles.of(table)
            tasks = [
                RewriteTask(run_id, f"erased-{number}", files, file, self.wanted)
                for number, file in enumerate(data_files(table))
            ]
            written = join_changes(LocalRunner().run("erase", tasks))
            if not written.removed:
                return written
            try:
                progress = read_sync_state(table)
                if self._needs_rebuild(table, written):
                    progress = replace(progress, needs_rebuild=True)
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
                with translate_catalog_errors(files.location):
                    files.delete(one.file_path for one in written.added)
                    table.refresh()
        raise AssertionError("the last try returns or raises")

    def _needs_rebuild(self, table: Table, written: FileChanges) -> bool:
        """Whether single records of keys leave a table that has the latest of each."""
        if table.name()[-1].endswith(BAD) or not read_definition(table).is_keyed:
            return False
        files = TableFiles.of(table)
        with translate_catalog_errors(files.location):
            for one in written.removed:
                rows = files.read([one], _COLUMNS)
                places = (rows[name].combine_chunks() for name in _COLUMNS)
                if self.wanted.find_single(*places).any():
                    return True
        return False


def _check_holders(table: Table, wanted: ErasedRows) -> None:
    files = TableFiles.of(table)
    for holder in find_named_refs(table):
        with translate_catalog_errors(files.location):
            paths = find_referenced(table, holder)
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
