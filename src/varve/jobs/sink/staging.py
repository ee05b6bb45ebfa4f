"""Where tasks put the batches they made, until the commit takes them into the log.

Layout     `<sink id>/<part>`: batches one behind the other, in runs of one partition each. What the
           runs are, and the checksum of the whole, travels in the commit message.
           docs/formats/sinks.md
Invariant  a part is read only as it was written: its size and checksum are compared first.
Crash      what a killed task or commit left is swept by the next commit of that sink, and what a
           single write left by a later one, after a week.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import Corrupt, ObjectNotFound
from varve.jobs.sink.batch_builder import (
    NO_TIMESTAMP,
    BatchBuilder,
    BuiltBatch,
    SinkRows,
    make_rows,
)
from varve.kernels.batch_layout import LENGTH_OVERHEAD
from varve.kernels.crc import crc32c
from varve.object_store import ObjectStore
from varve.records import decode_header

CHUNK_BYTES: Final = 32 << 20
"""Rows are collected up to this size before batches are cut, so that batches are big."""
PART_BYTES: Final = 64 << 20
ONCE_PREFIX: Final = "write-"
"""Before the random part of the id of a sink that is one write alone."""
ABANDONED_MS: Final = 7 * 24 * 60 * 60 * 1000
_SUM_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Batches of one partition: where they lie in their part, and how many records they hold."""

    partition: int
    start: int
    end: int
    record_count: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One object of a task."""

    key: str
    size: int
    crc: int
    runs: tuple[StagedRun, ...]


@dataclass(frozen=True, slots=True)
class RowSummary:
    """Distinguishes the rows of one epoch from another's, in any order: counts and sums."""

    rows: int = 0
    content_bytes: int = 0
    timestamp_sum: int = 0

    def __add__(self, other: "RowSummary") -> "RowSummary":
        return RowSummary(
            self.rows + other.rows,
            self.content_bytes + other.content_bytes,
            (self.timestamp_sum + other.timestamp_sum) % (1 << _SUM_BITS),
        )

    @classmethod
    def of(cls, rows: SinkRows) -> "RowSummary":
        cells = [column for column in (rows.keys, rows.values) if column is not None]
        content = sum(int(np.maximum(column.sizes, 0).sum()) for column in cells)
        known = rows.timestamps[rows.timestamps != NO_TIMESTAMP]
        total = int(known.astype(np.uint64).sum()) % (1 << _SUM_BITS)
        return cls(len(rows), content, total)


@dataclass(frozen=True, slots=True)
class StagedTask:
    """What one task staged, in the order of its rows."""

    parts: tuple[StagedPart, ...] = ()
    summary: RowSummary = RowSummary()


class Staging:
    """The folder of one sink in an object store."""

    def __init__(self, objects: ObjectStore, sink_id: str) -> None:
        self._objects = objects
        self._folder = f"{sink_id}/"

    def stage(
        self, batches: Iterable[pa.RecordBatch], builder: BatchBuilder, topic: str
    ) -> StagedTask:
        """Writes the rows of a task; when that fails, what it wrote is removed."""
        task = uuid4().hex
        parts: list[StagedPart] = []
        summary = RowSummary()
        try:
            for chunk in _chunks(batches):
                rows = make_rows(chunk, topic)
                summary += RowSummary.of(rows)
                for built in _fill_parts(builder.build(rows)):
                    key = f"{self._folder}{task}-{len(parts):06}"
                    parts.append(self._write(key, built))
        except BaseException:
            self.remove(parts)
            raise
        return StagedTask(tuple(parts), summary)

    def _write(self, key: str, built: list[BuiltBatch]) -> StagedPart:
        data = b"".join(batch.data for batch in built)
        self._objects.put(key, data)
        crc = crc32c(np.frombuffer(data, np.uint8), 0, len(data))
        return StagedPart(key, len(data), crc, tuple(_find_runs(built)))

    def read(self, part: StagedPart) -> memoryview:
        """The bytes of a part; raises Corrupt for others than were written."""
        where = f"{self._objects.name}/{part.key}"
        try:
            data = self._objects.get(part.key)
        except ObjectNotFound as error:
            raise Corrupt(
                f"{where}: staged batches are not there: executors on other machines need a place "
                "that the driver reads too, which option stagingUrl gives, and nothing may delete "
                "them before the commit"
            ) from error
        crc = crc32c(np.frombuffer(data, np.uint8), 0, len(data))
        if (len(data), crc) != (part.size, part.crc):
            raise Corrupt(
                f"{where}: staged batches of {part.size} bytes have become others (size "
                f"{len(data)}, CRC {crc:#010x}, not {part.crc:#010x}): write again"
            )
        return memoryview(data)

    def remove(self, parts: Iterable[StagedPart]) -> None:
        keys = [part.key for part in parts]
        if keys:
            self._objects.delete(keys)

    def sweep(self) -> int:
        """Removes all that lies there; gives how many parts."""
        keys = [entry.key for entry in self._objects.list(self._folder)]
        if keys:
            self._objects.delete(keys)
        return len(keys)


def sweep_abandoned(objects: ObjectStore, now_ms: int) -> int:
    """Removes the folders of single writes that were killed long ago; gives how many parts.

    Nobody comes back for them: a write that is tried again has another folder.
    """
    removed = 0
    for folder in objects.list_directories(""):
        if not folder.startswith(ONCE_PREFIX):
            continue
        entries = list(objects.list(f"{folder}/"))
        if all(now_ms - entry.modified_ms > ABANDONED_MS for entry in entries):
            objects.delete([entry.key for entry in entries])
            removed += len(entries)
    return removed


def split_batches(run: memoryview) -> Iterator[memoryview]:
    """The batches of a run, one by one."""
    position = 0
    while position < len(run):
        size = decode_header(run[position:]).batch_length + LENGTH_OVERHEAD
        yield run[position : position + size]
        position += size


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if any(one.num_rows for one in waiting):
        yield pa.Table.from_batches(waiting)


def _fill_parts(batches: Iterable[BuiltBatch]) -> Iterator[list[BuiltBatch]]:
    waiting: list[BuiltBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += len(batch.data)
        if size >= PART_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _find_runs(built: list[BuiltBatch]) -> Iterator[StagedRun]:
    start = end = record_count = 0
    for index, batch in enumerate(built):
        end += len(batch.data)
        record_count += batch.record_count
        if index + 1 == len(built) or built[index + 1].partition != batch.partition:
            yield StagedRun(batch.partition, start, end, record_count)
            start, record_count = end, 0
