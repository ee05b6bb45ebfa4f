"""Tasks of a snapshot: read the latest records, and merge them into the files of buckets.

A read task stores its rows, split by bucket, in one work object; a merge task reads its buckets
from all work objects, and the previous file of each bucket.

Layout     a work object: one stream in Arrow's IPC format for each bucket, one after another.
Invariant  a task that runs twice writes the same objects. Each row is staged once. The rows of a
           file are sorted by key, and each key occurs once; the same version of the Parquet writer
           writes the same bytes for the same rows.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.jobs.snapshot.document import DATA_FOLDER, SnapshotFile
from varve.jobs.source.arrow_columns import (
    STANDARD_COLUMNS,
    ArrowColumns,
    keep_newest,
    split_by_bucket,
)
from varve.jobs.source.options import SourceFilters, SourceOptions
from varve.jobs.source.read import TaskRead, TopicHash, read_rows
from varve.jobs.tasks import pack_by_size
from varve.jobs.tier.bucket import BucketAccess
from varve.object_store import ObjectStore

Codes = npt.NDArray[np.int64]

_HALF_BITS: Final = np.uint64(32)
_ROW_GROUP_BYTES: Final = 16 << 20
"""Approximate bytes of a Parquet row group before compression: the memory of a reader."""
_ROW_GROUP_ROWS_MIN: Final = 1024
"""Large rows share a row group, since each row group has statistics for each column."""
_COMPRESSION: Final = "zstd"
_STATISTICS: Final = ["partition", "offset", "timestamp", "key"]


def bucket_of(hashes: npt.NDArray[np.uint64], buckets: int) -> Codes:
    """Returns the bucket of each hash; a bucket is a range of the high word."""
    return (((hashes[:, 0] >> _HALF_BITS) * np.uint64(buckets)) >> _HALF_BITS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class StagedBuckets:
    """The work object of a read task, with one stream for each bucket.

    `codes` number the buckets of all partitions and ascend; the stream of `codes[n]` is at
    [positions[n], positions[n + 1]). Arrays save memory: the driver has one of each per task.
    """

    key: str
    codes: Codes
    positions: Codes
    row_count: int

    def select(self, start: int, end: int) -> "StagedBuckets | None":
        """Selects the codes in [start, end), with a row count of 0; None if there are none."""
        first, last = np.searchsorted(self.codes, [start, end]).tolist()
        if first == last:
            return None
        codes, positions = self.codes[first:last], self.positions[first : last + 1]
        return StagedBuckets(self.key, codes.copy(), positions.copy(), 0)

    def find_range(self, code: int) -> tuple[int, int] | None:
        """Finds the positions of a bucket's stream; None if the object has no rows of it."""
        slot = int(np.searchsorted(self.codes, code))
        if slot == len(self.codes) or self.codes[slot] != code:
            return None
        return int(self.positions[slot]), int(self.positions[slot + 1])


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads the latest records of some pieces, and stages them by bucket."""

    read: TaskRead
    options: SourceOptions
    store: BucketAccess
    key: str
    buckets: int

    def run(self, shared: None) -> StagedBuckets:
        rows, codes = self._read()
        parts = list(split_by_bucket(rows, codes))
        streams = [_write_stream(part) for _, part in parts]
        positions = np.cumsum([0, *map(len, streams)], dtype=np.int64)
        if streams:
            self.store.objects().put_parts(self.key, streams, size=int(positions[-1]))
        numbers = np.array([code for code, _ in parts], np.int64)
        return StagedBuckets(self.key, numbers, positions, len(codes))

    def _read(self) -> tuple[pa.Table, Codes]:
        """Returns the rows, and the code of the bucket of each row."""
        columns, hashed = make_columns(), TopicHash.of(self.read.topic_id)
        batches: list[pa.RecordBatch] = []
        codes: list[Codes] = [np.empty(0, np.int64)]
        for block, chosen in read_rows(self.read, self.options, SourceFilters()):
            numbers = np.flatnonzero(chosen)
            if not len(numbers):
                continue
            partition = block.partition
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
    """One bucket to write: its code, its previous file, and the log start offset.

    `size` is the approximate number of bytes to read.
    """

    code: int
    partition: int
    bucket: int
    start_offset: int
    previous: SnapshotFile | None
    size: int


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Writes the files of consecutive buckets; a bucket without rows has no file."""

    store: BucketAccess
    merges: tuple[BucketMerge, ...]
    staged: tuple[StagedBuckets, ...]

    def run(self, shared: None) -> list[SnapshotFile]:
        objects = self.store.objects()
        files = (self._write(objects, merge) for merge in self.merges)
        return [file for file in files if file is not None]

    def _write(self, objects: ObjectStore, merge: BucketMerge) -> SnapshotFile | None:
        rows = merge_rows(list(self._read(objects, merge)), start_offset=merge.start_offset)
        if not len(rows):
            return None
        data = write_rows(rows)
        file = describe(rows, data, partition=merge.partition, bucket=merge.bucket)
        objects.put(file.path, data)
        return file

    def _read(self, objects: ObjectStore, merge: BucketMerge) -> Iterator[pa.Table]:
        try:
            if merge.previous is not None:
                data = objects.get(merge.previous.path)
                yield open_rows(data, merge.previous, objects.name).read()
            for staged in self.staged:
                positions = staged.find_range(merge.code)
                if positions is not None:
                    with pa.ipc.open_stream(objects.get_range(staged.key, *positions)) as stream:
                        yield stream.read_all()
        except ObjectNotFound as error:
            raise Unavailable(
                f"{error}; it was removed while the snapshot was taken: take it again"
            ) from error


def make_merge_tasks(
    store: BucketAccess,
    merges: Sequence[BucketMerge],
    staged: Sequence[StagedBuckets],
    *,
    split_bytes: int,
) -> list[MergeTask]:
    """Creates tasks of about `split_bytes`, each with the staged parts of its buckets."""
    tasks = []
    for run in pack_by_size(merges, lambda merge: merge.size, target_bytes=split_bytes):
        parts = (part.select(run[0].code, run[-1].code + 1) for part in staged)
        tasks.append(MergeTask(store, tuple(run), tuple(part for part in parts if part)))
    return tasks


# Rows


def make_columns() -> ArrowColumns:
    """Returns the columns of a snapshot: all columns of a topic except its name."""
    return ArrowColumns(name for name in STANDARD_COLUMNS if name != "topic")


def column_types() -> dict[str, str]:
    """Returns the Arrow type of each column, by name."""
    return {field.name: str(field.type) for field in make_columns().schema}


def merge_rows(tables: Sequence[pa.Table], *, start_offset: int) -> pa.Table:
    """Returns the latest row of each key, sorted by key, without tombstones and expired rows."""
    rows = keep_newest(pa.concat_tables(tables), ["key"], offset="offset")
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("key", "ascending")]))
    has_value = pc.is_valid(rows.column("value"))
    return rows.filter(pc.and_(has_value, pc.greater_equal(rows.column("offset"), start_offset)))


def write_rows(rows: pa.Table) -> bytes:
    """Encodes rows as a Parquet file."""
    rows = rows.combine_chunks()
    group_rows = max(_ROW_GROUP_ROWS_MIN, _ROW_GROUP_BYTES * len(rows) // max(rows.nbytes, 1))
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
    """Describes a file for a document; its name is derived from its bytes."""
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
    """Opens a file after checking its digest; raises Corrupt."""
    digest = sha256(data).hexdigest()
    if digest != file.sha256:
        raise Corrupt(
            f"{where}: {file.path!r} has SHA-256 {digest[:16]}… and {len(data)} bytes, its "
            f"snapshot says {file.sha256[:16]}… and {file.size}: restore it from a copy, or take "
            "a full snapshot (--full), from which later ones continue"
        )
    return pq.ParquetFile(pa.BufferReader(data))
