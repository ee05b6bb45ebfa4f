"""The records that a deduplication keeps, written to a topic or appended to an Iceberg table.

Invariant  a batch is written once. In a topic, and in the topic of late records, Spark's batch
           number is the epoch of the sink. In a table the number is in the commit (`varve.sink`);
           numbers ascend, and commits of other writers keep it. An attempt of a batch is a run with
           an id of its own, which begins with the batch; it writes a run marker before its first
           file, so that no other run removes its files as leftovers. The side table of bad values
           is committed first, in the same run.
Crash      files of an uncommitted batch are removed when the batch is repeated.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest
from varve.jobs.source.options import SourceOptions
from varve.jobs.table.catalog import CatalogAddress, find_table, translate_catalog_errors
from varve.jobs.table.columns import define_table, make_decoder
from varve.jobs.table.data_files import FileChanges, RowsWriter, TableFiles, join_changes
from varve.jobs.table.decoding import Decoder
from varve.jobs.table.definition import (
    TablePair,
    TableSettings,
    check_definition,
    create_table,
    read_definition,
)
from varve.jobs.table.plan import plan_table
from varve.jobs.table.table_state import (
    RUN,
    CommitConflict,
    SinkBatch,
    SyncState,
    begin_run,
    commit,
    find_run_markers,
    new_run_id,
    read_sync_state,
    sweep,
)
from varve.jobs.table.tasks import split_rows
from varve.spark.columns import make_schema
from varve.spark.deduplication.deduplicate import split_by_partition, unpack_rows
from varve.topics.outputs import OutputKind

_LATE: str = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutput:
    """A topic in a log directory; created, if missing, with the partition count of the source."""

    directories: tuple[str, ...]
    topic: str
    options: tuple[tuple[str, str], ...] = ()

    kind = OutputKind.TOPIC

    @property
    def place(self) -> str:
        return self.directories[0]

    @property
    def name(self) -> str:
        return self.topic

    @property
    def how(self) -> tuple[tuple[str, str], ...]:
        return (("directory", ",".join(self.directories)),)

    def __str__(self) -> str:
        return f"{self.topic} in {self.place}"

    def sink_options(self, topic: str, *, sink_id: str, partitions: int) -> dict[str, str]:
        """The options of the sink."""
        options = {
            "directory": ",".join(self.directories),
            "topic": topic,
            "sinkId": sink_id,
            "createTopic": "true",
            "partitions": str(partitions),
        }
        return {**options, **dict(self.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWriter:
    """Writes one stream of results."""

    output: TopicOutput
    side_topic: str | None
    sink_id: str
    partitions: int
    bucket_keys: tuple[int, ...]

    def start(self, results: DataFrame) -> DataStreamWriter:
        """The writer of the stream, which the caller starts."""
        if self.side_topic is not None:
            return results.writeStream.foreachBatch(self._write_both)
        return (
            self._rows(results, is_late=False)
            .writeStream.format("varve")
            .options(**self._options(self.output.topic, self.sink_id))
        )

    def _write_both(self, results: DataFrame, batch_id: int) -> None:
        """Writes late records first; each write skips a batch that it has committed."""
        assert self.side_topic is not None
        results.persist()
        try:
            for topic, is_late, sink_id in (
                (self.side_topic, True, f"{self.sink_id}-{_LATE}"),
                (self.output.topic, False, self.sink_id),
            ):
                options = {**self._options(topic, sink_id), "epoch": str(batch_id)}
                write = self._rows(results, is_late=is_late).write.format("varve")
                write.options(**options).mode("append").save()
        finally:
            results.unpersist()

    def _rows(self, results: DataFrame, *, is_late: bool) -> DataFrame:
        rows = unpack_rows(results, make_schema(), is_late=is_late, bucket_keys=self.bucket_keys)
        return rows.drop("topic")

    def _options(self, topic: str, sink_id: str) -> dict[str, str]:
        return self.output.sink_options(topic, sink_id=sink_id, partitions=self.partitions)


# A table


_TASK_TYPES: Final = "written binary, offsets binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """A table in append mode; it is created if missing."""

    catalog: CatalogAddress
    name: str
    settings: TableSettings

    kind = OutputKind.TABLE

    @property
    def place(self) -> str:
        return self.catalog.place

    @property
    def how(self) -> tuple[tuple[str, str], ...]:
        return self.catalog.how()

    def __str__(self) -> str:
        return f"table {self.name} in {self.place}"


@dataclass(frozen=True, slots=True)
class TableTask:
    """Writes the rows of a task to data files of the tables; runs on executors."""

    run_id: str
    decoder: Decoder
    files: TableFiles
    bad_files: TableFiles | None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of _TASK_TYPES: the files, and the next offset of each partition."""
        next_offsets: dict[int, int] = {}
        with (
            translate_catalog_errors(self.files.location),
            RowsWriter(self.files, self.run_id, "rows") as good,
            RowsWriter(self.bad_files or self.files, self.run_id, "bad") as bad,
        ):
            for batch in batches:
                for partition, part in split_by_partition(batch):
                    split = split_rows(part, self.decoder, is_keyed=False)
                    good.write(split.good)
                    bad.write(split.bad)
                    next_offsets[partition] = max(
                        next_offsets.get(partition, 0),
                        int(part.column("offset").to_numpy().max()) + 1,
                    )
        written = FileChanges(good.finish(), (), bad.finish(), good.row_count, bad.row_count)
        cells = [pickle.dumps(written), pickle.dumps(next_offsets)]
        arrays = [pa.array([cell], pa.binary()) for cell in cells]
        yield pa.RecordBatch.from_arrays(arrays, names=["written", "offsets"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriter:
    """Writes one stream of results, batch by batch."""

    tables: TablePair
    decoder: Decoder
    sink_id: str
    bucket_keys: tuple[int, ...]
    clock: Clock

    @classmethod
    def open(
        cls,
        output: TableOutput,
        options: SourceOptions,
        *,
        sink_id: str,
        bucket_keys: tuple[int, ...],
        clock: Clock,
    ) -> "TableWriter":
        """The table and its side table, created if needed; raises InvalidRequest if it differs."""
        catalog = output.catalog.open()
        table = find_table(catalog, output.name)
        plan = plan_table(options, SyncState({}, {}))
        if table is None:
            table = create_table(
                catalog, output.name, define_table(plan, options, output.settings)[0]
            )
        definition = read_definition(table)
        check_definition(definition, output.name, plan.topic_id, output.settings)
        if definition.is_keyed:
            raise InvalidRequest(
                f"table {output.name} keeps the latest row of each key: records without duplicates "
                "are appended, so name another table"
            )
        _check_owner(table, output.name, sink_id)
        return cls(
            tables=TablePair.load(catalog, output.name, definition, table),
            decoder=make_decoder(definition, output.settings),
            sink_id=sink_id,
            bucket_keys=bucket_keys,
            clock=clock,
        )

    def start(self, results: DataFrame) -> DataStreamWriter:
        """The writer of the stream, which the caller starts."""
        return results.writeStream.foreachBatch(self._write)

    def _write(self, results: DataFrame, batch_id: int) -> None:
        task = self.begin_batch(batch_id)
        if task is None:
            # The rows are committed, but Spark must still compute the state of the batch.
            results.write.format("noop").mode("append").save()
            return
        rows = unpack_rows(results, make_schema(), is_late=False, bucket_keys=self.bucket_keys)
        outcomes = rows.mapInArrow(task.write, _TASK_TYPES).collect()
        written = [(row["written"], row["offsets"]) for row in outcomes]
        self.commit_batch(batch_id, task.run_id, written)

    def begin_batch(self, batch_id: int) -> TableTask | None:
        """Starts a run, and removes files of earlier attempts; returns the task that writes it.

        None for a committed batch.
        """
        tables = self.tables
        tables.reload()
        if self._has_batch(tables.table, batch_id):
            return None
        batch = str(SinkBatch(self.sink_id, batch_id))
        for table in tables.both():
            for earlier_id in find_run_markers(table):
                if earlier_id.startswith(f"{batch}-"):
                    sweep(table, earlier_id)
        run_id = f"{batch}-{new_run_id()}"
        begin_run(tables.both(), run_id, self.clock)
        bad_files = None if tables.bad is None else TableFiles.of(tables.bad)
        return TableTask(run_id, self.decoder, TableFiles.of(tables.table), bad_files)

    def commit_batch(
        self, batch_id: int, run_id: str, outcomes: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Commits the files that the tasks wrote, the side table first.

        Raises CommitConflict if an erasure has fenced the run: its files are removed, and
        Spark repeats the batch when the query is started again.
        """
        table, bad = self.tables.table, self.tables.bad
        written = join_changes([pickle.loads(written) for written, _ in outcomes])
        sink = SinkBatch(self.sink_id, batch_id)
        before = read_sync_state(table)
        ends = {number: end for _, part in outcomes for number, end in pickle.loads(part).items()}
        after = replace(before, offsets={**before.offsets, **ends}, sink=sink)
        try:
            if bad is not None and written.bad and not self._has_batch(bad, batch_id):
                bad_after = replace(read_sync_state(bad), sink=sink)
                commit(bad, progress=bad_after, run_id=run_id, added=written.bad)
            commit(table, progress=after, run_id=run_id, added=written.added)
        except CommitConflict:
            self._refresh_and_sweep(run_id)
            raise
        self._refresh_and_sweep(run_id)

    def _refresh_and_sweep(self, run_id: str) -> None:
        for table in self.tables.both():
            table.refresh()
        for table in self.tables.both():
            sweep(table, run_id)

    def _has_batch(self, table: Table, batch_id: int) -> bool:
        """Whether a batch, and with it all before it, is in the table."""
        last = read_sync_state(table).sink
        return last is not None and last.sink_id == self.sink_id and last.number >= batch_id


def _check_owner(table: Table, name: str, sink_id: str) -> None:
    last = read_sync_state(table).sink
    owner = table.properties.get(RUN) if last is None else last.sink_id
    if owner and owner != sink_id:
        raise InvalidRequest(
            f"table {name} was written by {owner}, not from this checkpoint: its rows "
            "would mix; name another table, or the checkpoint it was made with"
        )
