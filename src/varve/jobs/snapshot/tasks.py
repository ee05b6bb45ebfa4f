"""The work of a snapshot that runs anywhere: read latest records, and write the files of buckets.

A reading task puts its rows, parted by buckets, into one object; a writing task takes the parts of
its buckets from all of them, and the file that the bucket had before.

Layout     an object of work: for each bucket a stream of Arrow's IPC format, one after another.
Invariant  a task that is run twice writes the same objects. Rows travel once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import ObjectNotFound, Unavailable
from varve.jobs.snapshot.document import SnapshotFile
from varve.jobs.snapshot.place import Opens
from varve.jobs.snapshot.rows import describe, make_columns, merge_rows, open_rows, write_rows
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.keys import TopicHash
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.read import TaskRead, read_rows
from varve.object_store import ObjectStore

Codes = npt.NDArray[np.int64]

_HALF: Final = np.uint64(32)


def bucket_of(hashes: npt.NDArray[np.uint64], buckets: int) -> Codes:
    """The bucket of each hash: ranges of its first word."""
    return (((hashes[:, 0] >> _HALF) * np.uint64(buckets)) >> _HALF).astype(np.int64)


@dataclass(frozen=True, slots=True)
class WorkPart:
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
    place: Opens
    key: str
    buckets: int

    def run(self, shared: None) -> list[WorkPart]:
        rows, codes = self._read()
        if not len(codes):
            return []
        order = np.argsort(codes, kind="stable")
        found, starts = np.unique(codes[order], return_index=True)
        ends = [*starts[1:].tolist(), len(codes)]
        streams: list[bytes] = []
        parts: list[WorkPart] = []
        position = 0
        for code, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            data = _write_stream(rows.take(pa.array(order[start:end])))
            partition, bucket = divmod(code, self.buckets)
            stop = position + len(data)
            parts.append(WorkPart(self.key, partition, bucket, position, stop, end - start))
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
class BucketWork:
    """One bucket to write: new rows, the file before, and where the log of the partition starts."""

    partition: int
    bucket: int
    start_offset: int
    parts: tuple[WorkPart, ...]
    previous: SnapshotFile | None

    @property
    def size(self) -> int:
        before = 0 if self.previous is None else self.previous.size
        return before + sum(part.end - part.start for part in self.parts)


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Writes the files of some buckets; a bucket without rows has none."""

    place: Opens
    works: tuple[BucketWork, ...]

    def run(self, shared: None) -> list[SnapshotFile]:
        objects = self.place.open()
        return [file for work in self.works for file in _write_bucket(objects, work)]


def _write_bucket(objects: ObjectStore, work: BucketWork) -> Iterator[SnapshotFile]:
    rows = merge_rows(list(_tables(objects, work)), start_offset=work.start_offset)
    if not len(rows):
        return
    data = write_rows(rows)
    file = describe(rows, data, partition=work.partition, bucket=work.bucket)
    objects.put(file.path, data)
    yield file


def _tables(objects: ObjectStore, work: BucketWork) -> Iterator[pa.Table]:
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


def pack_works(works: Sequence[BucketWork], *, split_bytes: int) -> list[tuple[BucketWork, ...]]:
    """Buckets in runs of about the same bytes, in their order."""
    runs: list[list[BucketWork]] = []
    size = split_bytes
    for work in works:
        if size >= split_bytes:
            runs.append([])
            size = 0
        runs[-1].append(work)
        size += work.size
    return [tuple(run) for run in runs]
