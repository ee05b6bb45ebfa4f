"""Staged batches: objects that tasks write and the commit appends to the log.

Layout     `<sink id>/<part>`: consecutive batches, in runs of one partition each. The commit
           message of the task has the runs and the checksum of the part.
           docs/reference/formats/sinks.md
Invariant  a part is used only if its size and checksum are those that were written.
Crash      parts of a killed task or commit are removed by the next commit of that sink, those of a
           single write by a later single write, after a week.
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
"""Rows collected before they are cut into batches; larger chunks give fuller batches."""
PART_BYTES: Final = 64 << 20
"""Size at which a part is complete; the commit reads one part at a time."""
ONCE_PREFIX: Final = "write-"
"""Prefix of the random id of the sink of a single write."""
ABANDONED_MS: Final = 7 * 24 * 60 * 60 * 1000
"""Age at which the parts of a single write count as abandoned, far longer than a write takes."""
_SUM_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Batches of one partition: their positions in the part and their number of records."""

    partition: int
    start: int
    end: int
    record_count: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One staged object of a task."""

    key: str
    size: int
    crc: int
    runs: tuple[StagedRun, ...]


@dataclass(frozen=True, slots=True)
class RowSummary:
    """Counts and sums that tell the rows of two epochs apart, independent of their order."""

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
        timestamps = rows.timestamps[rows.timestamps != NO_TIMESTAMP]
        total = int(timestamps.astype(np.uint64).sum()) % (1 << _SUM_BITS)
        return cls(len(rows), content, total)


@dataclass(frozen=True, slots=True)
class StagedTask:
    """The parts that one task staged, in the order of its rows."""

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
        """Stages the rows of a task; an error removes the parts that it wrote."""
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
        """The bytes of a part; raises Corrupt if they are not those that were written."""
        where = f"{self._objects.name}/{part.key}"
        try:
            data = self._objects.get(part.key)
        except ObjectNotFound as error:
            raise Corrupt(
                f"{where}: staged batches are missing: give option stagingUrl, an object store "
                "that executors and driver share, and do not delete staged batches before the "
                "commit"
            ) from error
        crc = crc32c(np.frombuffer(data, np.uint8), 0, len(data))
        if (len(data), crc) != (part.size, part.crc):
            raise Corrupt(
                f"{where}: staged batches of {part.size} bytes were changed (size "
                f"{len(data)}, CRC {crc:#010x}, not {part.crc:#010x}): write again"
            )
        return memoryview(data)

    def remove(self, parts: Iterable[StagedPart]) -> None:
        self._objects.delete([part.key for part in parts])

    def sweep(self) -> int:
        """Removes all parts of the sink; returns their number."""
        keys = [entry.key for entry in self._objects.list(self._folder)]
        self._objects.delete(keys)
        return len(keys)


def sweep_abandoned(objects: ObjectStore, now_ms: int) -> int:
    """Removes the folders of abandoned single writes; returns the number of parts.

    A retried write does not need them: it has a new folder.
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
    collected: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        collected.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(collected)
            collected, size = [], 0
    if any(batch.num_rows for batch in collected):
        yield pa.Table.from_batches(collected)


def _fill_parts(batches: Iterable[BuiltBatch]) -> Iterator[list[BuiltBatch]]:
    collected: list[BuiltBatch] = []
    size = 0
    for batch in batches:
        collected.append(batch)
        size += len(batch.data)
        if size >= PART_BYTES:
            yield collected
            collected, size = [], 0
    if collected:
        yield collected


def _find_runs(built: list[BuiltBatch]) -> Iterator[StagedRun]:
    start = end = record_count = 0
    for index, batch in enumerate(built):
        end += len(batch.data)
        record_count += batch.record_count
        if index + 1 == len(built) or built[index + 1].partition != batch.partition:
            yield StagedRun(batch.partition, start, end, record_count)
            start, record_count = end, 0
