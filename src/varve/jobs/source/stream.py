"""A topic as a stream: offsets by partition that Spark keeps, and how far the next batch goes.

Invariant  an offset names, by partition, the first record that was not read: {"0": 17}. It goes
           only forward, never beyond what is decided (read_committed), and a batch that is
           repeated reads the same offsets.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from varve.foundation.errors import InvalidRequest, OffsetOutOfRange
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.columns import check_schema
from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.options import Mode, SourceOptions
from varve.jobs.source.partition import TaskPartition
from varve.jobs.source.plan import PartitionSource, SourcePlan, make_tasks, open_partitions
from varve.jobs.source.read import read_task

Offsets = dict[str, int]

_EVERYTHING = SourceFilters()


class VarveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; tasks read them as they read a batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        _check_options(options)
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        return {
            str(one.number): one.wanted(_EVERYTHING)[0] for one in open_partitions(self._options)
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return {str(one.number): one.bounds()[1] for one in open_partitions(self._options)}

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> Offsets:  # noqa: N802
        ranges: dict[str, tuple[int, int]] = {}
        sources = open_partitions(self._options)
        for source in sources:
            name = str(source.number)
            begin, end = _next_range(source, start)
            if self._target is not None:
                end = min(end, self._target.get(name, begin))
            ranges[name] = (begin, max(begin, end))
        share = _share(sources, ranges, limit)
        return {**start, **{name: _step(*bounds, share) for name, bounds in ranges.items()}}

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Sequence[InputPartition]:
        pieces = []
        topic = topic_id = ""
        for source in open_partitions(self._options):
            name = str(source.number)
            if name in end:
                begin = _next_range(source, start)[0]
                pieces += source.pieces(
                    start_offset=begin, end_offset=end[name], filters=_EVERYTHING
                )
                topic, topic_id = source.topic, source.topic_id
        plan = SourcePlan(topic, topic_id, tuple(pieces), 0)
        return [TaskPartition(task) for task in make_tasks(plan, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            columns = ArrowColumns(self._schema)
            yield from read_task(partition.task, columns, self._options, _EVERYTHING)


def _check_options(options: SourceOptions) -> None:
    if options.mode is not Mode.HISTORY:
        raise InvalidRequest("a stream reads the history: the latest state has no end to wait for")
    if options.version is not None or options.as_of_ms is not None:
        raise InvalidRequest("a stream reads by the newest manifest: leave out version and asOf")
    if options.max_offsets_per_trigger and options.max_bytes_per_trigger:
        raise InvalidRequest("give maxOffsetsPerTrigger or maxBytesPerTrigger, not both")


def _next_range(source: PartitionSource, start: Mapping[str, int]) -> tuple[int, int]:
    """From where a partition was read to the end there is; a new one from its beginning."""
    first, end = source.bounds()
    begin = start.get(str(source.number), first)
    if begin < first:
        raise OffsetOutOfRange(
            f"{source.topic}-{source.number}: offsets {begin} to {first - 1} expired before they "
            "were read: begin anew with another checkpoint location, or keep records for longer"
        )
    return begin, end


def _share(
    sources: Sequence[PartitionSource], ranges: Mapping[str, tuple[int, int]], limit: ReadLimit
) -> float:
    """How much of what is there the next batch takes, the same share of every partition."""
    match limit:
        case ReadMaxRows(max_rows):
            waiting = sum(end - begin for begin, end in ranges.values())
            return max_rows / max(waiting, 1)
        case ReadMaxBytes(max_bytes):
            size = 0
            for source in sources:
                begin, end = ranges[str(source.number)]
                pieces = source.pieces(start_offset=begin, end_offset=end, filters=_EVERYTHING)
                size += sum(piece.size for piece in pieces)
            return max_bytes / max(size, 1)
        case _:
            return 1.0


def _step(begin: int, end: int, share: float) -> int:
    """At least one offset on, if there is one: a share of nothing would never end."""
    if share >= 1.0 or begin >= end:
        return end
    return min(end, begin + max(1, int((end - begin) * share)))
