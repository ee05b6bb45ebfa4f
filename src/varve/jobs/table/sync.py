"""Syncs an Iceberg table with its topic: reads from the table's offsets, writes and commits rows.

Invariant  the offsets of the table are in the commit that adds the rows, so that a repeated, killed
           or concurrent run neither loses nor duplicates rows. The side table is committed first;
           its rows beyond the offsets of the table are removed before new ones are added.
Crash      a run may be killed at any point and started again. docs/how-to/keep-an-iceberg-table.md
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from varve.disk import RealFileSystem
from varve.embedded.topic_table import find_tiered_topics
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, NotFound, StoreError, Unavailable
from varve.jobs.derived_outputs import register_output
from varve.jobs.results import JSON_NAME, JobResult
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.pieces import pack
from varve.jobs.source.read import TaskRead
from varve.jobs.table import table_state
from varve.jobs.table.catalog import CatalogAddress, find_table, split_name
from varve.jobs.table.columns import (
    define_table,
    infer_value_fields,
    make_decoder,
    parse_schema_fields,
)
from varve.jobs.table.data_files import FileChanges, TableFiles, join_changes
from varve.jobs.table.decoding import Decoder
from varve.jobs.table.definition import (
    TableDefinition,
    TableMode,
    TablePair,
    TableSettings,
    ValueFormat,
    add_columns,
    check_definition,
    check_registry,
    create_table,
    find_new_fields,
    read_definition,
)
from varve.jobs.table.plan import SyncStep, TablePlan, check_history, plan_table
from varve.jobs.table.rewrite import OffsetBounds, rewrite_files
from varve.jobs.table.table_state import CommitConflict, SyncState
from varve.jobs.table.tasks import AppendTask, MergeTask, StageTask, TableRead
from varve.jobs.table.types import Fields
from varve.jobs.tasks import Task, TaskRunner
from varve.jobs.tier.bucket import Bucket
from varve.topics.outputs import OutputKind

_T = TypeVar("_T")

_COMMIT_ATTEMPTS_MAX: Final = 5
"""Attempts of a step when another program commits to the table."""

_INITIAL_STATE: Final = SyncState({}, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult(JobResult):
    """The result of one run.

    `records` were read; `deleted` of them have no value, `bad` of them are in the side table.
    `expired_rows` below the log start were removed. `missed` offsets expired before the table read
    them. `is_rebuilt` is True if a keyed table was rebuilt. `inferred` and `added_columns` are
    columns in the notation of a schema file. `offsets` are the next offsets to read.
    """

    table: str
    topic: str
    mode: TableMode
    format: ValueFormat
    columns: tuple[str, ...]
    inferred: tuple[str, ...] = ()
    added_columns: tuple[str, ...] = ()
    records: int = 0
    deleted: int = 0
    bad: int = 0
    expired_rows: int = 0
    missed: int = 0
    is_rebuilt: bool = field(default=False, metadata={JSON_NAME: "rebuilt"})
    commits: int = 0
    files: int = 0
    bytes: int = 0
    swept: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    snapshot_id: int | None = None
    elapsed_ms: int = 0

    @classmethod
    def begin(
        cls, table: str, definition: TableDefinition, inferred: Fields, added: Fields, swept: int
    ) -> "TableResult":
        return cls(
            table=table,
            topic=definition.topic,
            mode=definition.mode,
            format=definition.format,
            columns=tuple(field.describe() for field in definition.fields),
            inferred=tuple(field.describe() for field in inferred),
            added_columns=tuple(field.describe() for field in added),
            swept=swept,
        )

    def add(self, written: FileChanges) -> "TableResult":
        """Returns the result with another commit."""
        return replace(
            self,
            records=self.records + written.rows + written.bad_rows,
            deleted=self.deleted + written.deleted_rows,
            bad=self.bad + written.bad_rows,
            commits=self.commits + 1,
            files=self.files + len(written.added),
            bytes=self.bytes + sum(file.file_size_in_bytes for file in written.added),
        )


def sync_table(
    topic: str,
    name: str,
    *,
    catalog: CatalogAddress,
    runner: TaskRunner,
    address: Bucket | None = None,
    directories: Sequence[str] = (),
    settings: TableSettings | None = None,
    clock: Clock | None = None,
) -> TableResult:
    """Syncs a table with its topic; creates it if missing.

    `name` is NAMESPACE.NAME. One run at a time works on a table: a second run takes over, and the
    first gets Fenced at its next commit. Raises InvalidRequest, and changes nothing, if the
    settings do not match the existing table.
    """
    settings = settings or TableSettings()
    clock = clock or SystemClock()
    split_name(name)
    check_tier_is_given(topic, address, directories)
    options = SourceOptions(
        topic=topic,
        address=address,
        directories=tuple(directories),
        split_bytes=settings.split_bytes,
    )
    sync = TableSync(name, catalog, options, settings, runner, clock)
    return sync.run()


def check_tier_is_given(topic: str, address: Bucket | None, directories: Sequence[str]) -> None:
    """Raises if a tiered topic is read without its tier: earlier offsets would seem expired."""
    for directory in directories if address is None else ():
        if topic in find_tiered_topics(RealFileSystem(), directory):
            raise InvalidRequest(
                f"topic {topic} of {directory} has remote segments: give their object store too "
                "(--store)"
            )


def _check_no_sink(table: Table) -> None:
    """Raises InvalidRequest for a table that a stream writes: rows would be duplicated."""
    sink = table_state.read_sync_state(table).sink
    if sink is not None:
        raise InvalidRequest(
            f"table {'.'.join(table.name())} holds the records of a deduplication (sink "
            f"{sink.sink_id}): name another table for all records of the topic"
        )


@dataclass
class TableSync:
    """One run."""

    name: str
    address: CatalogAddress
    options: SourceOptions
    settings: TableSettings
    runner: TaskRunner
    clock: Clock
    run_id: str = field(default_factory=table_state.new_run_id)
    _result: TableResult = field(init=False)
    _committed: set[str] = field(default_factory=set)
    _is_unclear: bool = False  # whether the outcome of a commit is unknown to this run

    def run(self) -> TableResult:
        began_ms = self.clock.now_ms()
        catalog = self.address.open()
        try:
            tables = self._open(catalog)
            self._sync(tables)
        finally:
            close = getattr(catalog, "close", None)
            if close is not None:
                close()
        return replace(self._result, elapsed_ms=self.clock.now_ms() - began_ms)

    # The tables

    def _open(self, catalog: Catalog) -> TablePair:
        """Opens or creates the table and its side table; deletes leftovers of killed runs."""
        table = find_table(catalog, self.name)
        progress = _INITIAL_STATE if table is None else table_state.read_sync_state(table)
        inferred: Fields = ()
        if table is None:
            plan = plan_table(self.options, progress)
            definition, inferred = define_table(plan, self.options, self.settings)
            self._register(plan)
            table = create_table(catalog, self.name, definition)
        definition = read_definition(table)
        plan = plan_table(self.options, table_state.read_sync_state(table))
        check_definition(definition, self.name, plan.topic_id, self.settings)
        _check_no_sink(table)
        check_registry(definition, self.name, self.settings.registry)
        check_history(plan, self.name, is_keyed=definition.is_keyed)
        definition, added = self._add_requested_columns(table, definition, plan)
        tables = TablePair.load(catalog, self.name, definition, table)
        self._register(plan, tables.locations())
        swept = table_state.fence_other_runs(tables.both(), self.run_id, self.clock)
        self._result = TableResult.begin(self.name, definition, inferred, added, len(swept))
        return tables

    def _register(self, plan: TablePlan, locations: Sequence[str] = ()) -> None:
        """Registers the output before the first row, and the locations of existing tables."""
        register_output(
            self.options,
            plan.sources,
            OutputKind.TABLE,
            place=self.address.place,
            name=self.name,
            noted_ms=self.clock.now_ms(),
            how=self.address.how(),
            locations=locations,
        )

    def _add_requested_columns(
        self, table: Table, definition: TableDefinition, plan: TablePlan
    ) -> tuple[TableDefinition, Fields]:
        """Adds the requested columns; returns the new definition and the added fields."""
        settings = self.settings
        fields = parse_schema_fields(settings, definition.format)
        if settings.is_adding_columns and not fields and definition.format is ValueFormat.JSON:
            fields = infer_value_fields(plan, self.options, settings, definition.fields)
        new = find_new_fields(definition, self.name, fields, is_adding=settings.is_adding_columns)
        if not new:
            return definition, ()
        avro = settings.schema if definition.format is ValueFormat.AVRO else None
        return add_columns(table, definition, new, avro), new

    # A run

    def _sync(self, tables: TablePair) -> None:
        table_state.begin_run(tables.both(), self.run_id, self.clock)
        began_ms = self.clock.now_ms()
        plan = plan_table(
            self.options,
            table_state.read_sync_state(tables.table),
            is_keyed=tables.definition.is_keyed,
        )
        check_history(plan, self.name, is_keyed=tables.definition.is_keyed)
        decoder = make_decoder(tables.definition, self.settings)
        try:
            self._expire(tables, plan)
            for step in plan.steps(limit_bytes=self.settings.commit_bytes):
                self._sync_step(tables, plan, step, decoder, began_ms)
        except StoreError as error:
            if not self._is_unclear:
                with suppress(
                    StoreError
                ):  # the next run deletes the files; the first error is raised
                    self._sweep(tables)
            if isinstance(error, CommitConflict):
                raise Unavailable(f"{error} when no other program changes it") from error
            raise
        self._sweep(tables)
        progress = table_state.read_sync_state(tables.table)
        self._result = replace(
            self._result,
            offsets=dict(progress.offsets),
            missed=plan.missed,
            is_rebuilt=plan.is_rebuild,
            snapshot_id=table_state.snapshot_id(tables.table),
        )

    def _sweep(self, tables: TablePair) -> None:
        for table in tables.both():
            table_state.sweep(table, self.run_id, committed=self._committed)

    def _expire(self, tables: TablePair, plan: TablePlan) -> None:
        """Removes the rows below the log start from both tables."""
        if self.settings.is_keeping_expired:
            return
        for table in tables.both():
            before = table_state.read_sync_state(table)
            if all(
                before.starts.get(partition, 0) >= start for partition, start in plan.starts.items()
            ):
                continue
            after = replace(before, starts={**before.starts, **plan.starts})
            written = self._rewrite(table, OffsetBounds(plan.starts))
            if written.removed or table_state.snapshot_id(table) is not None:
                self._commit(table, after, written.added, written.removed)
            self._result = replace(
                self._result, expired_rows=self._result.expired_rows + written.removed_rows
            )

    def _rewrite(self, table: Table, bounds: OffsetBounds) -> FileChanges:
        return rewrite_files(
            table,
            table_state.find_data_files(table, bounds.row_filter()),
            bounds,
            stage="table: remove rows",
            run_id=self.run_id,
            runner=self.runner,
        )

    def _sync_step(
        self, tables: TablePair, plan: TablePlan, step: SyncStep, decoder: Decoder, began_ms: int
    ) -> None:
        """Writes one step, commits the side table, then the table; retries on conflict."""
        before = table_state.read_sync_state(tables.table)
        after = replace(plan.advance(before, step.offsets), is_remote=plan.is_remote)
        if after.offsets == before.offsets and not step.pieces and not plan.is_rebuild:
            return
        if step.is_last:
            after = replace(after, synced_ms=began_ms)
        if plan.is_rebuild:
            after = replace(after, needs_rebuild=False)
        for attempts_left in reversed(range(_COMMIT_ATTEMPTS_MAX)):
            bases = [table_state.snapshot_id(opened) for opened in tables.both()]
            try:
                self._try_step(tables, plan, step, decoder, after)
                return
            except (CommitConflict, NotFound) as error:
                # NotFound: another run has taken over and deleted the files of this one.
                tables.reload()
                for table, base in zip(tables.both(), bases, strict=True):
                    table_state.check_not_fenced(table, base, self.run_id)
                has_moved = table_state.read_sync_state(tables.table).offsets != before.offsets
                if isinstance(error, NotFound) or not attempts_left or has_moved:
                    raise

    def _try_step(
        self, tables: TablePair, plan: TablePlan, step: SyncStep, decoder: Decoder, after: SyncState
    ) -> None:
        runs = pack(step.pieces, split_bytes=self.settings.split_bytes)
        reads = [
            TableRead(
                run_id=self.run_id,
                name=f"{self._result.commits}-{number}",
                read=TaskRead(plan.topic, plan.topic_id, pieces),
                options=self.options,
                files=TableFiles.of(tables.table),
                bad_files=None if tables.bad is None else TableFiles.of(tables.bad),
            )
            for number, pieces in enumerate(runs)
        ]
        if tables.definition.is_keyed:
            written = self._upsert(tables, reads, plan, decoder)
        else:
            tasks = [AppendTask(read) for read in reads]
            written = join_changes(self._run("read and write", tasks, decoder))
        main_state = (
            _INITIAL_STATE if plan.is_rebuild else table_state.read_sync_state(tables.table)
        )
        self._commit_bad(tables, written.bad, main_state, after)
        self._commit(tables.table, after, written.added, written.removed)
        self._result = self._result.add(written)

    def _upsert(
        self, tables: TablePair, reads: Sequence[TableRead], plan: TablePlan, decoder: Decoder
    ) -> FileChanges:
        """Stages records by bucket, then merges the buckets that have new records.

        A rebuild replaces all rows of the table, except expired rows that are kept.
        """
        buckets = tables.definition.buckets
        staged = self._run("read", [StageTask(read, buckets) for read in reads], decoder)
        pieces: dict[int, list[tuple[str, int]]] = {}
        for rows in staged:
            for group, bucket in rows.groups:
                assert rows.path is not None
                pieces.setdefault(bucket, []).append((rows.path, group))
        keeps_expired = plan.is_rebuild and self.settings.is_keeping_expired
        current = table_state.stream_data_files(tables.table)
        replaced: tuple[DataFile, ...] = ()
        existing: Mapping[int, list[DataFile]] = {}
        if plan.is_rebuild and not keeps_expired:
            replaced = tuple(current)
        else:
            existing = _by_bucket(
                file for file in current if keeps_expired or file.partition[0] in pieces
            )
        files = TableFiles.of(tables.table)
        tasks = [
            MergeTask(
                self.run_id,
                f"{self._result.commits}-bucket-{bucket}",
                files,
                bucket,
                tuple(existing.get(bucket, ())),
                tuple(pieces.get(bucket, ())),
                plan.starts if keeps_expired else None,
            )
            for bucket in sorted(pieces.keys() | (existing.keys() if keeps_expired else ()))
        ]
        merged = self._run("merge", tasks)
        written = [rows.written for rows in staged]
        return join_changes([*written, *merged, FileChanges(removed=replaced)])

    def _commit_bad(
        self, tables: TablePair, added: Sequence[DataFile], main_state: SyncState, after: SyncState
    ) -> None:
        """Removes side table rows beyond the table's offsets, and adds those of the step."""
        if tables.bad is None:
            return
        state = table_state.read_sync_state(tables.bad)
        stale = FileChanges()
        if main_state.is_behind(state):
            ends = {partition: main_state.offsets.get(partition, 0) for partition in state.offsets}
            stale = self._rewrite(tables.bad, OffsetBounds(ends, is_above=True))
        elif not added:
            return
        progress = replace(state, offsets=after.offsets, marks=after.marks)
        self._commit(tables.bad, progress, [*stale.added, *added], stale.removed)

    def _commit(
        self,
        table: Table,
        progress: SyncState,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
    ) -> None:
        self._is_unclear = True
        try:
            table_state.commit(
                table, progress=progress, run_id=self.run_id, added=added, removed=removed
            )
        except CommitConflict:
            self._is_unclear = False
            raise
        self._is_unclear = False
        self._committed |= {file.file_path for file in added}

    def _run(self, stage: str, tasks: Sequence[Task[_T]], shared: object = None) -> list[_T]:
        return self.runner.run(f"table: {stage}", tasks, shared)


def _by_bucket(files: Iterable[DataFile]) -> Mapping[int, list[DataFile]]:
    buckets: dict[int, list[DataFile]] = {}
    for file in files:
        buckets.setdefault(file.partition[0], []).append(file)
    return buckets
