"""Tasks of a table sync: read records, decode values, write files; the driver commits them.

Invariant  a record becomes a row either of the table or of its side table. An upserted table has
           one row for each key of a partition, the newest that could be decoded. The driver uses
           only the files in the result of a task; a repeated task writes new files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import Record

from varve.jobs.source.arrow_columns import ArrowColumns, keep_newest, split_by_bucket
from varve.jobs.source.options import SourceFilters, SourceOptions
from varve.jobs.source.read import TaskRead, read_task
from varve.jobs.table.catalog import translate_catalog_errors
from varve.jobs.table.data_files import FileChanges, RowsWriter, TableFiles
from varve.jobs.table.decoding import Decoder
from varve.jobs.table.rewrite import OffsetBounds
from varve.jobs.table.types import DELETED, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, VALUE
from varve.kernels.hashes import murmur3_cells

SOURCE: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns that are read from the topic."""

_ROW_KEY: Final = (PARTITION, KEY)
"""The unique key of an upserted table."""
NO_KEY: Final = "no key: an upserted table has one row for each key"


# Records as rows


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of the table, with `_deleted`, and of its side table."""

    good: pa.Table
    bad: pa.Table


def split_rows(batch: pa.RecordBatch, decoder: Decoder, *, is_keyed: bool) -> SplitRows:
    """Decodes a batch of the source; with `is_keyed`, records without a key are bad."""
    bad_at: list[npt.NDArray[np.int64]] = []
    reasons: list[str] = []
    rows = np.arange(len(batch), dtype=np.int64)
    if is_keyed:
        has_key = _flags(batch["key"].is_valid())
        bad_at.append(rows[~has_key])
        reasons += [NO_KEY] * len(bad_at[0])
        rows = rows[has_key]
    values = batch["value"]
    has_value = _flags(values.is_valid())[rows]
    filled, deleted = rows[has_value], rows[~has_value]
    decoded = decoder.decode(values.take(pa.array(filled)), batch["headers"].take(pa.array(filled)))
    bad_at.append(filled[decoded.is_bad])
    reasons += decoded.reasons
    kept = filled[~decoded.is_bad]
    columns = dict(zip(decoder.names, decoded.columns, strict=True))
    good = _assemble_rows(batch, kept, deleted, columns)
    return SplitRows(good, _make_bad(batch, np.concatenate(bad_at), reasons))


def _assemble_rows(
    batch: pa.RecordBatch,
    kept: npt.NDArray[np.int64],
    deleted: npt.NDArray[np.int64],
    columns: dict[str, pa.Array],
) -> pa.Table:
    """Assembles rows in the order of their records; deleted rows have null values."""
    order = np.sort(np.concatenate([kept, deleted]))
    if len(deleted):
        slots = np.searchsorted(kept, order)
        is_deleted = np.isin(order, deleted, assume_unique=True)
        positions = pa.array(np.where(is_deleted, 0, slots), mask=is_deleted)
        columns = {name: _take(array, positions) for name, array in columns.items()}
    else:
        is_deleted = np.zeros(len(order), np.bool_)
    record = {**_record_columns(batch, order), DELETED: pa.array(is_deleted)}
    return pa.table({**record, **columns})


def _take(array: pa.Array, positions: pa.Array) -> pa.Array:
    return pa.nulls(len(positions), array.type) if not len(array) else array.take(positions)


def _make_bad(batch: pa.RecordBatch, rows: npt.NDArray[np.int64], reasons: list[str]) -> pa.Table:
    order = np.argsort(rows, kind="stable")
    columns = _record_columns(batch, rows[order])
    columns[VALUE] = batch["value"].take(pa.array(rows[order]))
    columns[REASON] = pa.array([reasons[slot] for slot in order.tolist()], pa.string())
    return pa.table(columns)


def _record_columns(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    names = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp", KEY: "key"}
    is_all = len(rows) == len(batch)
    positions = pa.array(rows)
    return {
        column: batch[name] if is_all else batch[name].take(positions)
        for column, name in names.items()
    }


def find_buckets(keys: pa.ChunkedArray, count: int) -> npt.NDArray[np.int32]:
    """Computes Iceberg's bucket of each key; keys must not be null."""
    parts = [_hash(chunk) for chunk in keys.chunks]
    hashes = np.concatenate(parts) if parts else np.empty(0, np.uint32)
    return ((hashes & 0x7FFFFFFF) % count).astype(np.int32)


def _hash(keys: pa.Array) -> npt.NDArray[np.uint32]:
    small = keys.cast(pa.binary())
    hashes = np.empty(len(small), np.uint32)
    _, offsets, data = small.buffers()
    cells = np.frombuffer(offsets, np.int32)[small.offset : small.offset + len(small) + 1]
    bytes_ = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    murmur3_cells(bytes_, cells, hashes)
    return hashes


def _flags(array: pa.Array) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return flags


# Tasks


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A staged file of rows; `groups` pairs its row groups with their buckets."""

    written: FileChanges
    path: str | None = None
    groups: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TableRead:
    """The records that a task reads, and the tables that it writes to."""

    run_id: str
    name: str
    read: TaskRead
    options: SourceOptions
    files: TableFiles
    bad_files: TableFiles | None

    def parts(self, decoder: Decoder, *, is_keyed: bool) -> Iterator[SplitRows]:
        columns = ArrowColumns(SOURCE)
        for batch in read_task(self.read, columns, self.options, SourceFilters()):
            yield split_rows(batch, decoder, is_keyed=is_keyed)

    def bad_writer(self) -> "RowsWriter":
        return RowsWriter(self.bad_files or self.files, self.run_id, f"bad-{self.name}")


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Writes every record of some pieces as a row; the decoder is shared."""

    source: TableRead

    def run(self, shared: Decoder) -> FileChanges:
        source = self.source
        with (
            translate_catalog_errors(source.files.location),
            RowsWriter(source.files, source.run_id, source.name) as good,
            source.bad_writer() as bad,
        ):
            deleted = 0
            for part in source.parts(shared, is_keyed=False):
                good.write(part.good)
                bad.write(part.bad)
                deleted += pc.sum(part.good[DELETED]).as_py() or 0
        return FileChanges(good.finish(), (), bad.finish(), good.row_count, bad.row_count, deleted)


@dataclass(frozen=True, slots=True)
class StageTask:
    """Stages the newest record of each key of some pieces by bucket; the decoder is shared."""

    source: TableRead
    buckets: int

    def run(self, shared: Decoder) -> StagedRows:
        source = self.source
        parts: list[pa.Table] = []
        records = deleted = 0
        with translate_catalog_errors(source.files.location), source.bad_writer() as bad:
            for part in source.parts(shared, is_keyed=True):
                parts.append(part.good)
                bad.write(part.bad)
                records += len(part.good)
                deleted += pc.sum(part.good[DELETED]).as_py() or 0
            path, groups = self._stage_rows(pa.concat_tables(parts)) if records else (None, ())
        written = FileChanges((), (), bad.finish(), records, bad.row_count, deleted)
        return StagedRows(written, path, groups)

    def _stage_rows(self, rows: pa.Table) -> tuple[str, tuple[tuple[int, int], ...]]:
        source = self.source
        rows = keep_newest(rows, _ROW_KEY, offset=OFFSET)
        buckets = find_buckets(rows[KEY], self.buckets)
        path = source.files.new_path(source.run_id, f"staged-{source.name}")
        with (
            source.files.io().new_output(path).create() as stream,
            pq.ParquetWriter(stream, rows.schema, compression="lz4") as writer,
        ):
            groups: list[tuple[int, int]] = []
            for bucket, part in split_by_bucket(rows, buckets):
                writer.write_table(part, row_group_size=len(part))
                groups.append((len(groups), bucket))
        return path, tuple(groups)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merges the rows of one bucket with the staged rows.

    With `starts` only existing rows below the log start of their partition are kept.
    """

    run_id: str
    name: str
    files: TableFiles
    bucket: int
    existing: tuple[DataFile, ...]
    staged: tuple[tuple[str, int], ...]
    starts: Mapping[int, int] | None = None

    def run(self, shared: None) -> FileChanges:
        with translate_catalog_errors(self.files.location):
            rows = self._merge()
            removed = tuple(self.existing)
            if not len(rows):
                return FileChanges(removed=removed)
            with RowsWriter(self.files, self.run_id, self.name, Record(self.bucket)) as writer:
                writer.write(rows)
            return FileChanges(writer.finish(), removed)

    def _merge(self) -> pa.Table:
        old = self.files.read(self.existing)
        if self.starts is not None:
            below = OffsetBounds(self.starts).find(old[PARTITION], old[OFFSET])
            old = old.filter(pa.array(below))
        deleted = pa.array(np.zeros(len(old), np.bool_))
        parts = [old.append_column(DELETED, deleted)]
        io = self.files.io()
        for path, group in self.staged:
            with io.new_input(path).open() as stream:
                staged = pq.ParquetFile(stream).read_row_group(group)
            parts.append(_cast_like(staged, parts[0].schema))
        rows = keep_newest(pa.concat_tables(parts), _ROW_KEY, offset=OFFSET)
        return rows.filter(pc.invert(rows[DELETED]))


def _cast_like(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Converts rows to the column order and types of a schema."""
    return pa.table([rows[column.name].cast(column.type) for column in schema], schema=schema)
