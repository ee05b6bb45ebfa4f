"""Erases rows from a table: from its files, its side table and its older snapshots.

Invariant  afterwards no file of the table, referenced by a snapshot or not, contains a matching
           row: files are rewritten, every older snapshot expires, and unreferenced files are
           deleted, manifests included, since they contain bounds of keys and values. A keyed table
           that lost single records is marked in the same commit, and the next run rebuilds it. The
           files of a table that its catalog no longer has are deleted only below a location that
           no other table uses and whose metadata names the topic; others are reported.
Crash      may be run again: it lists the remaining files. The metadata that identifies the files of
           an orphaned table is deleted last.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
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
from varve.jobs.derived_outputs import ErasedFile, ErasedOutput, ErasedRows
from varve.jobs.table import data_files, rewrite, table_state
from varve.jobs.table.catalog import (
    CatalogAddress,
    describe_table,
    find_folder,
    translate_catalog_errors,
)
from varve.jobs.table.definition import BAD, find_with_rejected, read_definition
from varve.jobs.table.types import KEY, OFFSET, PARTITION
from varve.jobs.tasks import LocalRunner, TaskRunner, get_result, pack_by_size
from varve.topics.outputs import DerivedOutput

_METADATA_SUFFIX: Final = ".metadata.json"
_S3_SCHEMES: Final = ("s3a://", "s3n://")
_COMMIT_ATTEMPTS_MAX: Final = 5
_COLUMNS: Final = [PARTITION, OFFSET, KEY]
_CHUNK_BYTES: Final = 1 << 20
_TASK_BYTES: Final = 256 << 20
"""Approximate bytes of files that one task reads."""
_TASK_FILES: Final = 256
"""Files that one task reads: each costs a request, whatever its size."""


# Files with rows, read by tasks


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files with rows below a location, and access to them; pickled with tasks."""

    store: data_files.FileStore
    files: tuple[data_files.ListedFile, ...]

    def split(self) -> Iterator["FileSet"]:
        """Splits the files into one set per task."""
        for part in pack_by_size(
            self.files, lambda file: file.size, target_bytes=_TASK_BYTES, max_items=_TASK_FILES
        ):
            yield FileSet(self.store, tuple(part))


@dataclass(frozen=True, slots=True)
class FileCount:
    """The number of matching rows of a file; None if it is not a complete Parquet file.

    `file` describes a file with matches, if the task `describes` them.
    """

    path: str
    rows: int | None
    file: ErasedFile | None = None


@dataclass(frozen=True, slots=True)
class CountTask:
    """Counts the rows of the shared ErasedRows in files."""

    files: FileSet
    describes: bool

    def run(self, shared: ErasedRows) -> list[FileCount]:
        with translate_catalog_errors(self.files.store.location):
            io = self.files.store.io()
            return [self._count(io, file.path, shared) for file in self.files.files]

    def _count(self, io: PyArrowFileIO, path: str, erased: ErasedRows) -> FileCount:
        try:
            with io.new_input(path).open() as stream:
                rows = pq.read_table(stream, columns=_COLUMNS)
        except pa.ArrowInvalid:
            return FileCount(path, None)
        count = int(erased.find(*(rows[name].combine_chunks() for name in _COLUMNS)).sum())
        is_described = self.describes and count
        return FileCount(path, count, _describe_file(io, path, count) if is_described else None)


@dataclass(frozen=True, slots=True)
class DescribeTask:
    """Reads a file to compute its size and digest; `rows` is its number of rows."""

    store: data_files.FileStore
    path: str
    rows: int

    def run(self, shared: None) -> ErasedFile:
        with translate_catalog_errors(self.store.location):
            return _describe_file(self.store.io(), self.path, self.rows)


def _describe_file(io: PyArrowFileIO, path: str, rows: int) -> ErasedFile:
    digest = sha256()
    size = 0
    with io.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return ErasedFile(path, size, digest.hexdigest(), rows)


def _get_rows(count: FileCount) -> int:
    if count.rows is None:
        raise Corrupt(
            f"{count.path} cannot be read as Parquet, and no snapshot needs it: delete it by hand"
        )
    return count.rows


def _list_table_files(table: Table) -> FileSet:
    """Lists every file with rows: below the table's location, or named by a snapshot."""
    files = data_files.TableFiles.of(table)
    with translate_catalog_errors(files.location):
        listed = {file.path: file for file in files.list_files(data_files.DATA)}
    elsewhere = [
        data_files.ListedFile(path, 0)
        for path in table_state.referenced_paths(table)
        if path not in listed
    ]
    ordered = sorted([*listed.values(), *elsewhere], key=lambda file: file.path)
    return FileSet(files.without_metadata(), tuple(ordered))


# Orphaned tables


@dataclass(frozen=True, slots=True)
class OrphanedTable:
    """The files of a table that its catalog no longer has: files with rows, and all others."""

    files: FileSet
    others: tuple[str, ...]

    def remove(self) -> list[str]:
        paths = [file.path for file in self.files.files]
        with translate_catalog_errors(self.files.store.location):
            return self.files.store.delete((*paths, *self.others))


@dataclass(frozen=True, slots=True)
class OutputTables:
    """The tables of an output: the table and its side table, and remains of dropped tables.

    `out_of_reach` are sentences about remaining files that cannot be deleted.
    """

    tables: tuple[Table, ...]
    orphans: tuple[OrphanedTable, ...]
    out_of_reach: tuple[str, ...]

    @classmethod
    def open(
        cls,
        output: DerivedOutput,
        settings: Mapping[str, GivenValue],
        siblings: Sequence[DerivedOutput],
    ) -> "OutputTables":
        """Opens the tables; locations of `siblings`, outputs of the topic, are not orphans."""
        catalog = _open_catalog(output, settings)
        tables = find_with_rejected(catalog, output.name)
        used_now = {_normalize(table.location()) for table in tables}
        remaining = [
            location for location in output.locations if _normalize(location) not in used_now
        ]
        orphans: list[OrphanedTable] = []
        out_of_reach: list[str] = []
        if remaining:
            users = _list_users(output, catalog, settings, siblings)
        for location in remaining:
            store = data_files.FileStore(location, dict(catalog.properties))
            with translate_catalog_errors(location):
                orphan = _find_files(output, store, users)
            if isinstance(orphan, OrphanedTable):
                orphans.append(orphan)
            elif orphan is not None:
                out_of_reach.append(orphan)
        return cls(tuple(tables), tuple(orphans), tuple(out_of_reach))


def _open_catalog(output: DerivedOutput, settings: Mapping[str, GivenValue]) -> Catalog:
    properties = {name: str(value) for name, value in settings.items()}
    return CatalogAddress.of_how(dict(output.how), properties).open_existing()


def _list_users(
    output: DerivedOutput,
    catalog: Catalog,
    settings: Mapping[str, GivenValue],
    siblings: Sequence[DerivedOutput],
) -> dict[str, str]:
    """Returns the tables that may use a former location of an output, by name."""
    with translate_catalog_errors(f"table {output.name}"):
        users = {f"table {name}": location for name, location in _list_tables(catalog)}
    for other in siblings:
        if other.id != output.id and _share_location(output, other):
            for table in find_with_rejected(_open_catalog(other, settings), other.name):
                users[f"a table at {table.location()}"] = table.location()
    return users


def _share_location(output: DerivedOutput, other: DerivedOutput) -> bool:
    return any(overlap(mine, theirs) for mine in output.locations for theirs in other.locations)


def overlap(location: str, other: str) -> bool:
    """Whether two locations are the same, or one contains the other."""
    first, second = f"{_normalize(location)}/", f"{_normalize(other)}/"
    return first.startswith(second) or second.startswith(first)


def _find_files(
    output: DerivedOutput, store: data_files.FileStore, tables: dict[str, str]
) -> OrphanedTable | str | None:
    """Returns the files, or why they are out of reach; None if there are none."""
    location, io = store.location, store.io()
    location_text = f"{location}, a former location of table {output.name}"
    if not _is_reached(output, location, io):
        return (
            f"{location_text}, is missing: mount or restore it and erase again; if it no longer "
            f"exists, unregister the output: varve output forget {output.topic} {output.id}"
        )
    data = store.list_files(data_files.DATA)
    metadata = [file.path for file in store.list_files(rewrite.METADATA)]
    if not data and not metadata:
        return None
    sharing = sorted(
        name for name, table_location in tables.items() if overlap(location, table_location)
    )
    if sharing:
        return (
            f"{location_text}, has files and is in use by {sharing[0]}: they may contain rows to "
            "erase. Drop that table with its files, or rename it back, and erase again"
        )
    versions = [path for path in metadata if path.endswith(_METADATA_SUFFIX)]
    if not versions or any(_read_topic_id(io, path) != output.topic_id for path in versions):
        return (
            f"{location_text}, has {len(data) + len(metadata)} files, and no metadata that "
            f"identifies all of them as files of topic {output.topic}: they may contain rows to "
            "erase. Delete the files of the table by hand"
        )
    manifests = [path for path in metadata if not path.endswith(_METADATA_SUFFIX)]
    markers = [file.path for file in store.list_files(data_files.RUN_MARKERS)]
    return OrphanedTable(FileSet(store, tuple(data)), (*markers, *manifests, *versions))


def _is_reached(output: DerivedOutput, location: str, io: PyArrowFileIO) -> bool:
    """Whether a location can be read, so that no files means that it is empty."""
    folder = find_folder(location)
    if folder is not None:
        warehouse = dict(output.how).get("warehouse")
        root = None if warehouse is None else find_folder(warehouse)
        is_inside = root is not None and overlap(folder, root) and len(root) <= len(folder)
        return os.path.isdir(folder) or (is_inside and root is not None and os.path.isdir(root))
    scheme, netloc, path = io.parse_location(location, io.properties)
    bucket = path.partition("/")[0]
    (info,) = io.fs_by_scheme(scheme, netloc).get_file_info([bucket])
    return bool(info.type != pafs.FileType.NotFound)


def _read_topic_id(io: PyArrowFileIO, path: str) -> str | None:
    """Reads the topic id from the metadata of a table; None if it has none."""
    with io.new_input(path).open() as stream:
        data = stream.read()
    try:
        properties = json.loads(data)["properties"]
        return str(properties[table_state.TOPIC_ID])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _list_tables(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yields the name and location of every table of a catalog."""
    namespaces = list(catalog.list_namespaces())
    while namespaces:
        namespace = namespaces.pop()
        try:
            names = catalog.list_tables(namespace)
            children = catalog.list_namespaces(namespace)
        except NoSuchNamespaceError:
            continue
        namespaces += [child for child in children if child != namespace]
        for name in names:
            try:
                yield ".".join(name), catalog.load_table(name).location()
            except NoSuchTableError:
                continue


def _normalize(location: str) -> str:
    """Makes two spellings of the same location equal."""
    for scheme in _S3_SCHEMES:
        if location.startswith(scheme):
            location = f"s3://{location.removeprefix(scheme)}"
    folder = find_folder(location)
    return location.rstrip("/") if folder is None else os.path.realpath(folder)


# Erasure


def _new_run_id() -> str:
    return f"erase-{table_state.new_run_id()}"


def erase_from_table(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    erased: ErasedRows,
    *,
    siblings: Sequence[DerivedOutput] = (),
    runner: TaskRunner | None = None,
    clock: Clock | None = None,
) -> ErasedOutput:
    """Erases rows from a table and its side table; `runner` reads and writes the files.

    A concurrent sync is fenced, since it may have read the records already. The remains of a
    dropped table are deleted as a whole if they contain matching rows. Raises InvalidRequest,
    before the first change, if a branch or tag contains matching rows.
    """
    opened = OutputTables.open(output, settings, siblings)
    tables = opened.tables
    erasure = _TableErasure(erased, runner or LocalRunner(), clock or SystemClock())
    for table in tables:
        erasure.check_named_refs(table)
    for table in tables:
        erasure.count_before(table)
    erasure.removed += table_state.fence_other_runs(tables, _new_run_id(), erasure.clock)
    for table in tables:
        erasure.erase(table)
    for orphan in opened.orphans:
        erasure.erase_orphaned(orphan)
    erasure.out_of_reach += opened.out_of_reach
    if not tables and not output.locations:
        erasure.out_of_reach.append(
            f"table {output.name} is not in its catalog ({output.place}), and no location of its "
            "files is registered: if it was dropped without its files, delete them by hand"
        )
    return ErasedOutput(
        output_id=output.id,
        rows=erasure.rows,
        files_before=tuple(erasure.before),
        files_after=tuple(erasure.after),
        removed=tuple(erasure.removed),
        out_of_reach=tuple(erasure.out_of_reach),
        is_there=bool(tables or (output.locations and not opened.out_of_reach)),
    )


def count_in_table(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    erased: ErasedRows,
    *,
    siblings: Sequence[DerivedOutput] = (),
    runner: TaskRunner | None = None,
) -> int:
    """Counts the matching rows in all files of a table, referenced by a snapshot or not."""
    opened = OutputTables.open(output, settings, siblings)
    files = [*map(_list_table_files, opened.tables), *(orphan.files for orphan in opened.orphans)]
    counts = _count_rows(runner or LocalRunner(), files, erased)
    return sum(map(_get_rows, counts))


def _count_rows(
    runner: TaskRunner, files: Sequence[FileSet], erased: ErasedRows, *, describes: bool = False
) -> Iterator[FileCount]:
    tasks = [CountTask(part, describes) for whole in files for part in whole.split()]
    for outcome in runner.try_run("erase from tables: count rows", tasks, erased):
        yield from get_result(outcome)


@dataclass
class _TableErasure:
    """One erasure over a table and its side table."""

    erased: ErasedRows
    runner: TaskRunner
    clock: Clock
    rows: int = 0
    before: list[ErasedFile] = field(default_factory=list)
    after: list[ErasedFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    out_of_reach: list[str] = field(default_factory=list)
    _unaffected: set[str] = field(default_factory=set)  # paths; a file never changes

    def check_named_refs(self, table: Table) -> None:
        """Raises InvalidRequest if a branch or tag contains matching rows."""
        files = data_files.TableFiles.of(table)
        for name in rewrite.find_named_refs(table):
            with translate_catalog_errors(files.location):
                listed = tuple(
                    data_files.ListedFile(path, 0) for path in rewrite.find_referenced(table, name)
                )
            file_set = FileSet(files.without_metadata(), listed)
            rows = sum(map(_get_rows, _count_rows(self.runner, [file_set], self.erased)))
            if rows:
                raise InvalidRequest(
                    f"{describe_table(table)}: branch or tag {name} holds a snapshot with "
                    f"{rows} rows to erase, and varve does not drop branches and tags: drop it and "
                    "erase again; the table is unchanged"
                )

    def count_before(self, table: Table) -> None:
        """Describes every file with matching rows, of any snapshot or none."""
        files = _list_table_files(table)
        for count in _count_rows(self.runner, [files], self.erased, describes=True):
            if count.file is not None:
                self.before.append(count.file)
            elif count.rows == 0:
                self._unaffected.add(count.path)

    def erase(self, table: Table) -> None:
        name = describe_table(table)
        changes, run_id = self._rewrite(table)
        self.rows += changes.removed_rows
        if table_state.read_sync_state(table).needs_rebuild:
            self.out_of_reach.append(
                f"{name} lacks keys whose older records are now the latest in the log: run "
                "`varve job table`, which rebuilds it"
            )
        if changes.removed:
            # The snapshot of a removal still names the removed files; another snapshot does not.
            table_state.commit(table, progress=table_state.read_sync_state(table), run_id=run_id)
        self.removed += rewrite.expire(table, rewrite.find_expirable(table))
        self.removed += rewrite.delete_unreferenced(table, own_run=run_id)
        self.removed += table_state.sweep(table, run_id)
        files = data_files.TableFiles.of(table)
        store = files.without_metadata()
        tasks = [DescribeTask(store, file.file_path, file.record_count) for file in changes.added]
        self.after += self.runner.run("erase from tables: describe files", tasks)
        for ref in rewrite.find_named_refs(table):
            self.out_of_reach.append(
                f"{name}: branch or tag {ref} retains an older snapshot and its files: drop it "
                "and erase again"
            )

    def erase_orphaned(self, orphan: OrphanedTable) -> None:
        """Deletes all files if one has matching rows: the manifests contain bounds of keys."""
        counts = list(_count_rows(self.runner, [orphan.files], self.erased, describes=True))
        self.before += [count.file for count in counts if count.file is not None]
        if all(count.rows == 0 for count in counts):
            return
        self.rows += sum(count.rows or 0 for count in counts)
        self.removed += orphan.remove()

    def _rewrite(self, table: Table) -> tuple[data_files.FileChanges, str]:
        """Rewrites the files of the current snapshot without the rows; returns the run too."""
        for attempts_left in reversed(range(_COMMIT_ATTEMPTS_MAX)):
            run_id = _new_run_id()
            table_state.begin_run([table], run_id, self.clock)
            affected = [
                file
                for file in table_state.stream_data_files(table)
                if file.file_path not in self._unaffected
            ]
            changes = rewrite.rewrite_files(
                table,
                affected,
                self.erased,
                stage="erase from tables: rewrite files",
                run_id=run_id,
                runner=self.runner,
            )
            if not changes.removed:
                return changes, run_id
            state = table_state.read_sync_state(table)
            if self._is_incomplete(table, changes):
                state = replace(state, needs_rebuild=True)
            try:
                table_state.commit(
                    table,
                    progress=state,
                    run_id=run_id,
                    added=changes.added,
                    removed=changes.removed,
                )
                return changes, run_id
            except table_state.CommitConflict:
                if not attempts_left:
                    raise
                with translate_catalog_errors(table):
                    table.refresh()
                table_state.sweep(table, run_id)
        raise AssertionError("the last try returns or raises")

    def _is_incomplete(self, table: Table, changes: data_files.FileChanges) -> bool:
        """Whether a keyed table loses single records, so that it must be rebuilt."""
        is_side_table = table.name()[-1].endswith(BAD)
        return bool(changes.single_rows) and not is_side_table and read_definition(table).is_keyed
