"""What executors do for a table: read records, open values, write files; the driver commits them.

Invariant  a task writes files that nobody knows until it has told of them; a repeated task writes
           others. A data file of an appended table holds offsets of one partition, in order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import Record

from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.read import TaskRead, read_task
from varve.jobs.table.catalog import told_errors
from varve.jobs.table.decode import Decoder
from varve.jobs.table.files import DataFileWriter, TableFiles
from varve.jobs.table.rows import SOURCE, SplitRows, find_buckets, keep_newest, split_rows
from varve.jobs.table.schema import DELETED, KEY, OFFSET, PARTITION

FILE_BYTES: Final = 128 << 20
"""About what one data file holds, before it is packed."""


@dataclass(frozen=True, slots=True)
class Written:
    """Files of a task, to be committed: of the table, of its side table.

    `rows` are records that could be read, `deleted_rows` those of them without a value; `gone_rows`
    are rows of the table that were removed.
    """

    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    bad: tuple[DataFile, ...] = ()
    rows: int = 0
    bad_rows: int = 0
    deleted_rows: int = 0
    gone_rows: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows put aside: one file, and which of its row groups belong to a bucket."""

    written: Written
    path: str | None = None
    groups: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TableRead:
    """What a task reads of the topic, and how values are opened."""

    run_id: str
    name: str
    read: TaskRead
    options: SourceOptions
    decoder: Decoder
    files: TableFiles
    bad_files: TableFiles | None

    def parts(self, *, is_keyed: bool) -> Iterator[SplitRows]:
        columns = ArrowColumns(SOURCE)
        for batch in read_task(self.read, columns, self.options, SourceFilters()):
            yield split_rows(batch, self.decoder, is_keyed=is_keyed)

    def bad_writer(self) -> "RowsWriter":
        return RowsWriter(self.bad_files or self.files, self.run_id, f"bad-{self.name}")


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Every record of some pieces becomes a row."""

    source: TableRead

    def run(self, shared: None) -> Written:
        source = self.source
        with (
            told_errors(source.files.location),
            RowsWriter(source.files, source.run_id, source.name) as good,
            source.bad_writer() as bad,
        ):
            deleted = 0
            for part in source.parts(is_keyed=False):
                good.write(part.good)
                bad.write(part.bad)
                deleted += pc.sum(part.good[DELETED]).as_py() or 0
        return Written(good.finish(), (), bad.finish(), good.row_count, bad.row_count, deleted)


@dataclass(frozen=True, slots=True)
class StageTask:
    """The newest record of each key of some pieces, put aside by bucket."""

    source: TableRead
    buckets: int

    def run(self, shared: None) -> Staged:
        source = self.source
        parts: list[pa.Table] = []
        records = deleted = 0
        with told_errors(source.files.location), source.bad_writer() as bad:
            for part in source.parts(is_keyed=True):
                parts.append(part.good)
                bad.write(part.bad)
                records += len(part.good)
                deleted += pc.sum(part.good[DELETED]).as_py() or 0
            path, groups = self._put_aside(pa.concat_tables(parts)) if records else (None, ())
        written = Written((), (), bad.finish(), records, bad.row_count, deleted)
        return Staged(written, path, groups)

    def _put_aside(self, rows: pa.Table) -> tuple[str, tuple[tuple[int, int], ...]]:
        source = self.source
        rows = keep_newest(rows)
        buckets = find_buckets(rows[KEY], self.buckets)
        order = np.argsort(buckets, kind="stable")
        rows, buckets = rows.take(pa.array(order)), buckets[order]
        numbers, starts = np.unique(buckets, return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        path = source.files.new_path(source.run_id, f"staged-{source.name}")
        with (
            source.files.io().new_output(path).create() as stream,
            pq.ParquetWriter(stream, rows.schema, compression="lz4") as writer,
        ):
            groups: list[tuple[int, int]] = []
            for bucket, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
                part = rows.slice(start, end - start)
                writer.write_table(part, row_group_size=len(part))
                groups.append((len(groups), bucket))
        return path, tuple(groups)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One bucket: its rows, changed by what was put aside.

    With `starts` only rows below the log start of their partition are left of what it had.
    """

    run_id: str
    name: str
    files: TableFiles
    bucket: int
    existing: tuple[DataFile, ...]
    staged: tuple[tuple[str, int], ...]
    starts: Mapping[int, int] | None = None

    def run(self, shared: None) -> Written:
        with told_errors(self.files.location):
            rows = self._merge()
            removed = tuple(self.existing)
            if not len(rows):
                return Written(removed=removed)
            with RowsWriter(self.files, self.run_id, self.name, Record(self.bucket)) as writer:
                writer.write(rows)
            return Written(writer.finish(), removed)

    def _merge(self) -> pa.Table:
        old = self.files.read(self.existing)
        if self.starts is not None:
            old = old.filter(_find_below(old, self.starts))
        deleted = pa.array(np.zeros(len(old), np.bool_))
        parts = [old.append_column(DELETED, deleted)]
        io = self.files.io()
        for path, group in self.staged:
            with io.new_input(path).open() as stream:
                found = pq.ParquetFile(stream).read_row_group(group)
            parts.append(_like(found, parts[0].schema))
        rows = keep_newest(pa.concat_tables(parts))
        return rows.filter(pc.invert(rows[DELETED]))


def _find_below(rows: pa.Table, starts: Mapping[int, int]) -> pa.Array:
    """Which rows lie below an offset of their partition."""
    numbers, slots = np.unique(rows[PARTITION].to_numpy(), return_inverse=True)
    limits = np.array([starts.get(int(one), 0) for one in numbers], np.int64)
    return pa.array(rows[OFFSET].to_numpy() < limits[slots], pa.bool_())


class RowsWriter:
    """Writes rows to data files: another one for each partition, and when one is large."""

    def __init__(
        self, files: TableFiles, run_id: str, name: str, partition: Record | None = None
    ) -> None:
        self._files = files
        self._run_id = run_id
        self._name = name
        self._partition = partition
        self._open: DataFileWriter | None = None
        self._number: object = None
        self._size = 0
        self._done: list[DataFileWriter] = []

    @property
    def row_count(self) -> int:
        return sum(one.row_count for one in self._done)

    def __enter__(self) -> "RowsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def write(self, rows: pa.Table) -> None:
        """Rows of one partition, or in a bucket of any."""
        if not len(rows):
            return
        number = None if self._partition is not None else rows[PARTITION][0].as_py()
        if self._open is None or number != self._number or self._size >= FILE_BYTES:
            self._close()
            path = self._files.new_path(self._run_id, self._name)
            self._open = self._files.writer(path, self._partition)
            self._number, self._size = number, 0
        self._open.write(rows)
        self._size += rows.nbytes

    def finish(self) -> tuple[DataFile, ...]:
        return tuple(one.finish() for one in self._done)

    def _close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._done.append(self._open)
            self._open = None


def join_written(parts: Sequence[Written]) -> Written:
    return Written(
        added=tuple(file for part in parts for file in part.added),
        removed=tuple(file for part in parts for file in part.removed),
        bad=tuple(file for part in parts for file in part.bad),
        rows=sum(part.rows for part in parts),
        bad_rows=sum(part.bad_rows for part in parts),
        deleted_rows=sum(part.deleted_rows for part in parts),
        gone_rows=sum(part.gone_rows for part in parts),
    )


def _like(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same columns in the order and types of another table."""
    return pa.table([rows[one.name].cast(one.type) for one in schema], schema=schema)
