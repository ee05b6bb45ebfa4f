"""The work of a snapshot that runs anywhere: read latest records, and write the files of buckets.

A reading task puts its rows, split by bucket, into one object; a merging task takes the parts of
its buckets from all of them, and the file that the bucket had before.

Layout     an object of work: for each bucket a stream of Arrow's IPC format, one after another.
Invariant  a task that is run twice writes the same objects. Rows travel once. The rows of a file
           are sorted by key, each of which occurs once; the same rows give the same bytes, as long
           as the Parquet writer is the same.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.jobs.snapshot.document import DATA_FOLDER, SnapshotFile
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.columns import STANDARD_COLUMNS
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.keys import TopicHash
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.read import TaskRead, read_rows
from varve.object_store import ObjectStore

Codes = npt.NDArray[np.int64]

_HALF: Final = np.uint64(32)
_GROUP_BYTES: Final = 16 << 20
_GROUP_ROWS_MIN: Final = 1024
_COMPRESSION: Final = "zstd"
_STATISTICS: Final = ["partition", "offset", "timestamp", "key"]


class StoreOpener(Protocol):
    """StoreOpener the store of snapshots; it travels to other processes."""

    def open(self) -> ObjectStore: ...


def bucket_of(hashes: npt.NDArray[np.uint64], buckets: int) -> Codes:
    """The bucket of each hash: ranges of its first word."""
    return (((hashes[:, 0] >> _HALF) * np.uint64(buckets)) >> _HALF).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BucketPart:
    """The rows of one bucket in an object of work, at [start, end)."""

    key: str
    partition: int
    bucket: int
    start: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads what one task of the latest state reads, and puts it away by buckets."""

    read: TaskRead
    options: SourceOptions
    place: StoreOpener
    key: str
    buckets: int

    def run(self, shared: None) -> list[BucketPart]:
        rows, codes = self._read()
        if not len(codes):
            return []
        order = np.argsort(codes, kind="stable")
        distinct, starts = np.unique(codes[order], return_index=True)
        ends = [*starts[1:].tolist(), len(codes)]
        streams: list[bytes] = []
        parts: list[BucketPart] = []
        position = 0
        for code, start, end in zip(distinct.tolist(), starts.tolist(), ends, strict=True):
            data = _write_stream(rows.take(pa.array(order[start:end])))
            partition, bucket = divmod(code, self.buckets)
            stop = position + len(data)
            parts.append(BucketPart(self.key, partition, bucket, position, stop, end - start))
            streams.append(data)
            position = stop
        self.place.open().put_parts(self.key, streams, size=position)
        return parts

    def _read(self) -> tuple[pa.Table, Codes]:
        """The rows, and for each the number of its bucket among those of all partitions."""
        columns, hashed = make_columns(), TopicHash.of(self.read.topic_id)
        batches: list[pa.RecordBatch] = []
        codes: list[Codes] = [np.empty(0, np.int64)]
        for block, chosen in read_rows(self.read, self.options, SourceFilters()):
            numbers = np.flatnonzero(chosen)
            if not len(numbers):
                continue
            partition = block.stretch.partition
            batches += columns.batches(block, numbers, topic=self.read.topic, partition=partition)
            hashes = hashed.hash_block(replace(block, records=block.records[numbers]))
            codes.append(bucket_of(hashes, self.buckets) + partition * self.buckets)
        return pa.Table.from_batches(batches, columns.schema), np.concatenate(codes)


def _write_stream(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(out, rows.schema, options=options) as writer:
        writer.write_table(rows)
    data: bytes = out.getvalue().to_pybytes()
    return data


@dataclass(frozen=True, slots=True)
class BucketMerge:
    """One bucket to write: new rows, the file before, and where the log of the partition starts."""

    partition: int
    bucket: int
    start_offset: int
    parts: tuple[BucketPart, ...]
    previous: SnapshotFile | None

    @property
    def size(self) -> int:
        before = 0 if self.previous is None else self.previous.size
        return before + sum(part.end - part.start for part in self.parts)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Writes the files of some buckets; a bucket without rows has none."""

    place: StoreOpener
    works: tuple[BucketMerge, ...]

    def run(self, shared: None) -> list[SnapshotFile]:
        objects = self.place.open()
        return [file for work in self.works for file in _write_bucket(objects, work)]


def _write_bucket(objects: ObjectStore, work: BucketMerge) -> Iterator[SnapshotFile]:
    rows = merge_rows(list(_tables(objects, work)), start_offset=work.start_offset)
    if not len(rows):
        return
    data = write_rows(rows)
    file = describe(rows, data, partition=work.partition, bucket=work.bucket)
    objects.put(file.path, data)
    yield file


def _tables(objects: ObjectStore, work: BucketMerge) -> Iterator[pa.Table]:
    try:
        if work.previous is not None:
            data = objects.get(work.previous.path)
            yield open_rows(data, work.previous, objects.name).read()
        for part in work.parts:
            with pa.ipc.open_stream(objects.get_range(part.key, part.start, part.end)) as stream:
                yield stream.read_all()
    except ObjectNotFound as error:
        raise Unavailable(
            f"{error}; it was removed while a snapshot was made of it: take it again"
        ) from error


def pack_merges(works: Sequence[BucketMerge], *, split_bytes: int) -> list[tuple[BucketMerge, ...]]:
    """Buckets in runs of about the same bytes, in their order."""
    runs: list[list[BucketMerge]] = []
    size = split_bytes
    for work in works:
        if size >= split_bytes:
            runs.append([])
            size = 0
        runs[-1].append(work)
        size += work.size
    return [tuple(run) for run in runs]


# Rows


def make_columns() -> ArrowColumns:
    """Builds rows: all columns of a topic but its name."""
    return ArrowColumns(name for name in STANDARD_COLUMNS if name != "topic")


def column_types() -> dict[str, str]:
    """The columns by name, with their types in Arrow's words."""
    return {field.name: str(field.type) for field in make_columns().schema}


def merge_rows(tables: Sequence[pa.Table], *, start_offset: int) -> pa.Table:
    """The latest row of each key, by key; without tombstones and without rows below the start."""
    rows = pa.concat_tables(tables)
    order = pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("offset", "descending")])
    rows = rows.take(order)
    keys = rows.column("key").combine_chunks()
    if len(keys) > 1:
        is_other = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        is_first = pa.concat_arrays([pa.array([True]), _flat(is_other)])
        rows = rows.filter(is_first)
    is_there = pc.is_valid(rows.column("value"))
    return rows.filter(pc.and_(is_there, pc.greater_equal(rows.column("offset"), start_offset)))


def _flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def write_rows(rows: pa.Table) -> bytes:
    """Rows as a Parquet file."""
    rows = rows.combine_chunks()
    group_rows = max(_GROUP_ROWS_MIN, _GROUP_BYTES * len(rows) // max(rows.nbytes, 1))
    out = io.BytesIO()
    pq.write_table(
        rows,
        out,
        row_group_size=group_rows,
        compression=_COMPRESSION,
        use_dictionary=["partition", "timestampType"],
        write_statistics=_STATISTICS,
    )
    return out.getvalue()


def describe(rows: pa.Table, data: bytes, *, partition: int, bucket: int) -> SnapshotFile:
    """What a document says of a file; its name is derived from its bytes."""
    digest = sha256(data).hexdigest()
    offsets = pc.min_max(rows.column("offset")).as_py()
    return SnapshotFile(
        path=f"{DATA_FOLDER}/{partition:05}-{bucket:05}-{digest[:32]}.parquet",
        partition=partition,
        bucket=bucket,
        rows=len(rows),
        size=len(data),
        sha256=digest,
        min_offset=offsets["min"],
        max_offset=offsets["max"],
    )


def open_rows(data: bytes, file: SnapshotFile, where: str) -> pq.ParquetFile:
    """A file whose bytes are those that its document names; raises Corrupt."""
    digest = sha256(data).hexdigest()
    if digest != file.sha256:
        raise Corrupt(
            f"{where}: {file.path!r} has SHA-256 {digest[:16]}… and {len(data)} bytes, its "
            f"snapshot says {file.sha256[:16]}… and {file.size}: put it back from a copy, or "
            "take a full snapshot (--full), from which later ones go on"
        )
    return pq.ParquetFile(pa.BufferReader(data))
