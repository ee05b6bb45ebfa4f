"""The records that a deduplication keeps, appended to an Iceberg table.

Invariant  a batch is committed once: its number stands in the commit, as the run `SINK-NUMBER`, and
           numbers only go up. The side table of bad values is committed first, with the same run.
Crash      files of a batch that was not committed are swept when it comes again.
"""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from varve.foundation.errors import InvalidRequest
from varve.jobs.dedup.plan import unpack_rows
from varve.jobs.dedup.rows import split_by_partition
from varve.jobs.outputs.notes import OutputKind
from varve.jobs.source.columns import make_schema
from varve.jobs.source.options import SourceOptions
from varve.jobs.table.catalog import CatalogAddress, find_table, get_table, told_errors
from varve.jobs.table.commit import commit
from varve.jobs.table.decode import Decoder
from varve.jobs.table.decoders import define, make_decoder
from varve.jobs.table.definition import BAD, check_fits, create, create_bad, read_definition
from varve.jobs.table.files import TableFiles
from varve.jobs.table.plan import plan_table
from varve.jobs.table.rows import split_rows
from varve.jobs.table.runs import sweep
from varve.jobs.table.settings import TableSettings
from varve.jobs.table.state import RUN, Progress, read_progress
from varve.jobs.table.tasks import RowsWriter, Written, join_written

_TASK_TYPES: Final = "written binary, offsets binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """A table in append mode; it is made where there is none."""

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
        """One row of _TASK_TYPES: the files, and the largest offset of each partition."""
        offsets: dict[int, int] = {}
        with (
            told_errors(self.files.location),
            RowsWriter(self.files, self.run_id, "rows") as good,
            RowsWriter(self.bad_files or self.files, self.run_id, "bad") as bad,
        ):
            for batch in batches:
                for partition, part in split_by_partition(batch):
                    split = split_rows(part, self.decoder, is_keyed=False)
                    good.write(split.good)
                    bad.write(split.bad)
                    offsets[partition] = max(
                        offsets.get(partition, 0), int(part.column("offset").to_numpy().max()) + 1
                    )
        written = Written(good.finish(), (), bad.finish(), good.row_count, bad.row_count)
        cells = [pickle.dumps(written), pickle.dumps(offsets)]
        arrays = [pa.array([cell], pa.binary()) for cell in cells]
        yield pa.RecordBatch.from_arrays(arrays, names=["written", "offsets"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriter:
    """Writes one stream of results, batch by batch."""

    output: TableOutput
    catalog: Catalog
    decoder: Decoder
    has_bad: bool
    sink_id: str
    bucket_keys: tuple[int, ...]

    @classmethod
    def open(
        cls,
        output: TableOutput,
        options: SourceOptions,
        *,
        sink_id: str,
        bucket_keys: tuple[int, ...],
    ) -> "TableWriter":
        """The table and its side table, made if need be; raises InvalidRequest for another one."""
        catalog = output.catalog.open()
        table = find_table(catalog, output.name)
        plan = plan_table(options, Progress({}, {}))
        if table is None:
            table = create(catalog, output.name, define(plan, options, output.settings)[0])
        definition = read_definition(table)
        check_fits(definition, output.name, plan.topic_id, output.settings)
        if definition.is_keyed:
            raise InvalidRequest(
                f"table {output.name} keeps the latest row of each key: records without duplicates "
                "are appended, so name another table"
            )
        owner = _find_run(table)
        if owner and owner.rpartition("-")[0] != sink_id:
            raise InvalidRequest(
                f"table {output.name} was written by {owner}, not from this checkpoint: its rows "
                "would mix; name another table, or the checkpoint it was made with"
            )
        if definition.has_bad and find_table(catalog, f"{output.name}{BAD}") is None:
            create_bad(catalog, output.name, definition)
        return cls(
            output=output,
            catalog=catalog,
            decoder=make_decoder(definition, output.settings),
            has_bad=definition.has_bad,
            sink_id=sink_id,
            bucket_keys=bucket_keys,
        )

    @property
    def locations(self) -> tuple[str, ...]:
        """Where the files of the table and its side table are."""
        names = [self.output.name, *([f"{self.output.name}{BAD}"] if self.has_bad else [])]
        return tuple(get_table(self.catalog, one).location() for one in names)

    def start(self, results: DataFrame) -> DataStreamWriter:
        """The stream to be started."""
        return results.writeStream.foreachBatch(self._write)

    def _write(self, results: DataFrame, batch_id: int) -> None:
        table = get_table(self.catalog, self.output.name)
        bad = get_table(self.catalog, f"{self.output.name}{BAD}") if self.has_bad else None
        if self._has(table, batch_id):
            # The rows are there, but Spark wants the state of the batch as well.
            results.write.format("noop").mode("append").save()
            return
        run_id = f"{self.sink_id}-{batch_id}"
        for one in (table, bad):
            if one is not None:
                sweep(one, run_id)
        task = TableTask(
            run_id,
            self.decoder,
            TableFiles.of(table),
            None if bad is None else TableFiles.of(bad),
        )
        rows = unpack_rows(results, make_schema(), is_late=False, bucket_keys=self.bucket_keys)
        told = rows.mapInArrow(task.write, _TASK_TYPES).collect()
        written = join_written([pickle.loads(row["written"]) for row in told])
        offsets = [pickle.loads(row["offsets"]) for row in told]
        if bad is not None and written.bad and not self._has(bad, batch_id):
            commit(bad, progress=read_progress(bad), run_id=run_id, added=written.bad)
        before = read_progress(table)
        after = {number: end for part in offsets for number, end in part.items()}
        progress = Progress({**before.offsets, **after}, before.starts)
        commit(table, progress=progress, run_id=run_id, added=written.added)

    def _has(self, table: Table, batch_id: int) -> bool:
        """Whether a batch is in the table; those before it are then, too."""
        owner, _, number = _find_run(table).rpartition("-")
        return owner == self.sink_id and int(number) >= batch_id


def _find_run(table: Table) -> str:
    """The run that committed last, or nothing."""
    return str(table.properties.get(RUN, ""))
