"""Writes, lists and deletes the files of a table.

Layout     `<location>/data/<run id>/...parquet` data files of a run, and its staged files
           `<location>/varve/<run id>.json`      marker of a run under way.
           docs/reference/formats/table.md
Invariant  a file is complete before anything names it; no name is used twice. A data file of an
           appended table holds offsets of one partition, in order.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.fs as pafs  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import pyarrow as iceberg_io
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from varve.foundation.errors import Fenced
from varve.jobs.table.types import PARTITION

DATA: Final = "data"
RUN_MARKERS: Final = "varve"
_CODEC: Final = "zstd"
FILE_BYTES: Final = 128 << 20
"""Approximate size of the rows in one data file, before compression."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that exists, referenced by a snapshot or not."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FileStore:
    """Access to the files below a location; pickled with its credentials."""

    location: str
    properties: Mapping[str, str] = field(repr=False)

    def without_metadata(self) -> "FileStore":
        """The access alone, for tasks that only read files."""
        return FileStore(self.location, self.properties)

    def io(self) -> iceberg_io.PyArrowFileIO:
        return iceberg_io.PyArrowFileIO(dict(self.properties))

    def list_files(self, folder: str) -> list[ListedFile]:
        """Lists every file below a folder of the location; empty if there is no such folder."""
        io = self.io()
        scheme, netloc, path = io.parse_location(f"{self.location}/{folder}", io.properties)
        selector = pafs.FileSelector(path, recursive=True, allow_not_found=True)
        root = path.removesuffix(folder).rstrip("/")
        entries = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
        return [
            ListedFile(f"{self.location}/{entry.path.removeprefix(root).lstrip('/')}", entry.size)
            for entry in entries
            if entry.is_file
        ]

    def delete(self, paths: Iterable[str]) -> list[str]:
        """Deletes files; returns those that existed."""
        io, deleted = self.io(), []
        for path in paths:
            with suppress(FileNotFoundError):
                io.delete(path)
                deleted.append(path)
        return deleted


@dataclass(frozen=True, slots=True)
class TableFiles(FileStore):
    """The files of a table, and the metadata to read and write them."""

    metadata: TableMetadata

    @classmethod
    def of(cls, table: Table) -> "TableFiles":
        """Drops the snapshots of the metadata, which tasks do not need."""
        bare = table.metadata.model_copy(
            update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
        )
        return cls(bare.location.rstrip("/"), dict(table.io.properties), bare)

    @property
    def schema(self) -> Schema:
        return self.metadata.schema()

    def data_folder(self, run_id: str) -> str:
        return f"{self.location}/{DATA}/{run_id}"

    def new_path(self, run_id: str, name: str) -> str:
        """Returns a unique path: a repeated task does not overwrite its earlier files."""
        return f"{self.data_folder(run_id)}/{name}-{uuid.uuid4().hex[:12]}.parquet"

    def read(self, files: Sequence[DataFile], columns: Sequence[str] = ()) -> pa.Table:
        """Reads data files in the current schema, whichever schema wrote them."""
        projected = self.schema.select(*columns) if columns else self.schema
        scan = iceberg_io.ArrowScan(self.metadata, self.io(), projected, AlwaysTrue())
        return scan.to_table([FileScanTask(file) for file in files])

    def write_run_marker(self, run_id: str, text: bytes) -> None:
        path = f"{self.location}/{RUN_MARKERS}/{run_id}.json"
        with self.io().new_output(path).create(overwrite=True) as file:
            file.write(text)


class DataFileWriter:
    """Writes one data file; `finish` describes it for a commit."""

    def __init__(self, files: TableFiles, path: str, partition: Record) -> None:
        self.path = path
        self._files = files
        self._partition = partition
        self._schema: pa.Schema = iceberg_io.schema_to_pyarrow(files.schema, include_field_ids=True)
        self._output = files.io().new_output(path)
        self._stream = self._output.create()
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression=_CODEC)
        self.row_count = 0

    def write(self, rows: pa.Table) -> None:
        """Writes rows with the columns of the table, in any order."""
        arrays = [rows[column.name].cast(column.type) for column in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self.row_count += len(rows)

    def close(self) -> None:
        self._writer.close()
        self._stream.close()

    def finish(self) -> DataFile:
        """Returns the closed file with its statistics; raises Fenced if another run deleted it."""
        metadata = self._files.metadata
        try:
            size = len(self._output)
        except FileNotFoundError as error:
            raise Fenced(
                f"{self.path} was deleted by another run, which took over the table: this run need "
                "not be repeated"
            ) from error
        statistics = iceberg_io.data_file_statistics_from_parquet_metadata(
            parquet_metadata=self._writer.writer.metadata,
            stats_columns=iceberg_io.compute_statistics_plan(
                self._files.schema, metadata.properties
            ),
            parquet_column_mapping=iceberg_io.parquet_path_to_id_mapping(self._files.schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


class RowsWriter:
    """Writes rows to data files; starts another for each partition and above FILE_BYTES."""

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
        return sum(file.row_count for file in self._done)

    def __enter__(self) -> "RowsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, rows: pa.Table) -> None:
        """Writes rows of one Kafka partition, or of one bucket of any partitions."""
        if not len(rows):
            return
        number = None if self._partition is not None else rows[PARTITION][0].as_py()
        if self._open is None or number != self._number or self._size >= FILE_BYTES:
            self._close()
            path = self._files.new_path(self._run_id, self._name)
            self._open = DataFileWriter(self._files, path, self._partition or Record())
            self._number, self._size = number, 0
        self._open.write(rows)
        self._size += rows.nbytes

    def finish(self) -> tuple[DataFile, ...]:
        return tuple(file.finish() for file in self._done)

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._done.append(self._open)
            self._open = None


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Files of a task to commit: to the table, and as `bad` to its side table.

    `rows` counts the decoded records, `deleted_rows` those of them without a value; `removed_rows`
    counts the rows removed from the table, `single_rows` those that matched by offset alone.
    """

    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    bad: tuple[DataFile, ...] = ()
    rows: int = 0
    bad_rows: int = 0
    deleted_rows: int = 0
    removed_rows: int = 0
    single_rows: int = 0


def join_changes(parts: Sequence[FileChanges]) -> FileChanges:
    return FileChanges(
        added=tuple(file for part in parts for file in part.added),
        removed=tuple(file for part in parts for file in part.removed),
        bad=tuple(file for part in parts for file in part.bad),
        rows=sum(part.rows for part in parts),
        bad_rows=sum(part.bad_rows for part in parts),
        deleted_rows=sum(part.deleted_rows for part in parts),
        removed_rows=sum(part.removed_rows for part in parts),
        single_rows=sum(part.single_rows for part in parts),
    )
