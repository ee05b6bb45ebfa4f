"""A topic as a stream: the end of the next micro-batch, and whether the checkpoint matches the log.

Invariant  the offset of a stream (`StreamOffset`) names the first record that was not read. It only
           advances, never beyond decided records (read_committed), and a repeated batch reads the
           same offsets. A checkpoint of another log is refused: the topic, its id, the end of the
           log and the batch before the offset are checked.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

import varve
from varve.foundation.errors import (
    Corrupt,
    InconsistentTopicId,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
)
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.options import SourceFilters, SourceOptions
from varve.jobs.source.plan import SourcePlan, make_tasks
from varve.jobs.source.read import TaskRead, read_task
from varve.jobs.source.topic_source import PartitionSource, TopicSource
from varve.spark.columns import check_schema
from varve.spark.executor import check_version
from varve.topics import HistoryMark


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of each partition; topic and id are None in checkpoints of older versions."""

    topic: str | None
    topic_id: str | None
    offsets: Mapping[int, int]
    marks: Mapping[int, HistoryMark] = field(default_factory=dict)

    def check_topic(self, topic: str, topic_id: str) -> None:
        """Raises InconsistentTopicId where the checkpoint was written for another topic."""
        if self.topic is None or (self.topic, self.topic_id) == (topic, topic_id):
            return
        raise InconsistentTopicId(
            f"the checkpoint belongs to topic {self.topic} with id {self.topic_id}, the stream "
            f"reads topic {topic} with id {topic_id}: use a new checkpoint location for another "
            "topic, and for one that was deleted and created again"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "offsets": {str(number): self.offsets[number] for number in sorted(self.offsets)},
            "marks": {str(number): self.marks[number].to_json() for number in sorted(self.marks)},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Raises Corrupt for a document that is not an offset of a stream."""
        try:
            if "offsets" not in document:
                return cls(None, None, _decode_offsets(document))
            marks = {
                int(number): HistoryMark.from_json(mark)
                for number, mark in document["marks"].items()
            }
            offsets = _decode_offsets(document["offsets"])
            return cls(str(document["topic"]), str(document["topic_id"]), offsets, marks)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                f"the checkpoint holds {document!r:.200}, which is not an offset of a varve "
                f"stream: {error!s:.200}"
            ) from error


def _decode_offsets(document: Mapping[str, Any]) -> dict[int, int]:
    offsets = {}
    for number, offset in document.items():
        if type(offset) is not int or not 0 <= offset <= LONG_MAX:
            raise ValueError(f"offset {offset!r:.40} of partition {number!r:.40}")
        offsets[int(number)] = offset
    return offsets


# The reader


JsonObject = dict[str, Any]

_log = logging.getLogger(__name__)

_NO_FILTERS = SourceFilters()


class TaskPartition(InputPartition):
    """What one task of the data source reads, and the version of varve that planned it."""

    def __init__(self, task: TaskRead) -> None:
        super().__init__(None)
        self._version = varve.__version__
        self._task = task

    @property
    def task(self) -> TaskRead:
        """Raises VersionMismatch on an executor that has another varve than planned it."""
        check_version(self._version)
        return self._task


class VarveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; tasks read them as they read a batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        _check_options(options)
        self._options = options
        self._schema = schema
        self._topic = TopicSource(options)
        self._target: Mapping[int, int] | None = None
        self._planned_end: JsonObject | None = None

    def initialOffset(self) -> JsonObject:  # noqa: N802
        sources = self._topic.partitions()
        offsets = {source.number: source.find_range(_NO_FILTERS)[0] for source in sources}
        return _offset_of(sources, offsets).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {source.number: source.bounds()[1] for source in self._topic.partitions()}

    def reportLatestOffset(self) -> JsonObject:  # noqa: N802
        sources = self._topic.partitions()
        offsets = {source.number: source.bounds()[1] for source in sources}
        return _offset_of(sources, offsets).to_json()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> JsonObject:  # noqa: N802
        sources = self._topic.partitions()
        before = self._check_offset(StreamOffset.from_json(start), sources)
        ranges: dict[int, tuple[int, int]] = {}
        for source in sources:
            begin, end = before.offsets[source.number], source.bounds()[1]
            if self._target is not None:
                end = min(end, self._target.get(source.number, begin))
            ranges[source.number] = (begin, max(begin, end))
        offsets = _limit_offsets(sources, ranges, limit)
        marks = {
            source.number: mark
            for source in sources
            if (mark := _next_mark(source, before, offsets[source.number])) is not None
        }
        self._planned_end = _offset_of(sources, offsets, marks).to_json()
        return self._planned_end

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        sources = self._topic.partitions()
        before = self._check_offset(StreamOffset.from_json(start), sources)
        after = StreamOffset.from_json(end)
        if end != self._planned_end:
            # A batch of an earlier process that did not finish: its records must still exist.
            self._check_offset(after, sources)
        pieces = []
        for source in sources:
            if source.number in after.offsets:
                pieces += source.pieces(
                    start_offset=before.offsets[source.number],
                    end_offset=after.offsets[source.number],
                    filters=_NO_FILTERS,
                )
        plan = SourcePlan(sources[0].topic, sources[0].topic_id, tuple(pieces), 0)
        return [TaskPartition(task) for task in make_tasks(plan, self._options)]

    def _check_offset(
        self, offset: StreamOffset, sources: Sequence[PartitionSource]
    ) -> StreamOffset:
        """The offset to continue from, with new partitions at their beginning.

        Raises InconsistentTopicId for another topic, and OffsetOutOfRange where records were lost;
        with failOnDataLoss=false it continues with the remaining records.
        """
        offset.check_topic(sources[0].topic, sources[0].topic_id)
        missing = sorted({*offset.offsets} - {source.number for source in sources})
        if missing:
            raise NotFound(
                f"partitions {missing!r:.200} of topic {sources[0].topic} were read before and "
                "are missing now: name all directories of the topic, or use a new checkpoint "
                "location"
            )
        offsets = {source.number: self._check_partition(source, offset) for source in sources}
        return StreamOffset(sources[0].topic, sources[0].topic_id, offsets, offset.marks)

    def _check_partition(self, source: PartitionSource, offset: StreamOffset) -> int:
        first = source.bounds()[0]
        begin = offset.offsets.get(source.number, first)
        mark = offset.marks.get(source.number)
        loss = _find_loss(source, begin, mark)
        if loss is None:
            return begin
        if self._options.fails_on_data_loss:
            raise OffsetOutOfRange(
                f"{source.topic}-{source.number}: {loss}. Use a new checkpoint location to read "
                "the topic again, or set failOnDataLoss=false to continue without these records"
            )
        usable = min(max(begin, first), source.end_offset)
        _log.warning(
            "records of a stream were lost",
            extra={
                "topic": source.topic,
                "partition": source.number,
                "loss": loss,
                "offset": begin,
                "continued_at": usable,
            },
        )
        return usable

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            columns = ArrowColumns(self._schema.fieldNames())
            yield from read_task(partition.task, columns, self._options, _NO_FILTERS)


def _check_options(options: SourceOptions) -> None:
    if options.max_offsets_per_trigger and options.max_bytes_per_trigger:
        raise InvalidRequest("give maxOffsetsPerTrigger or maxBytesPerTrigger, not both")


def _offset_of(
    sources: Sequence[PartitionSource],
    offsets: Mapping[int, int],
    marks: Mapping[int, HistoryMark] | None = None,
) -> StreamOffset:
    return StreamOffset(sources[0].topic, sources[0].topic_id, offsets, marks or {})


def _find_loss(source: PartitionSource, begin: int, mark: HistoryMark | None) -> str | None:
    """Why the log does not continue the records that were read; None if it does.

    The batch before the offset is read only if records follow it.
    """
    first, end = source.bounds()
    if begin < first:
        return (
            f"offsets {begin} to {first - 1} expired before they were read: keep records for longer"
        )
    if begin > end and begin > source.end_offset:
        where = (
            "the log" if source.has_end else "the remote log, which may be behind the local one,"
        )
        return f"{where} ends at offset {source.end_offset}, and was read up to {begin} before"
    return source.find_break(begin, mark) if begin < end else None


def _next_mark(source: PartitionSource, before: StreamOffset, offset: int) -> HistoryMark | None:
    if offset == before.offsets[source.number]:
        return before.marks.get(source.number)
    return source.find_mark(offset)


def _limit_offsets(
    sources: Sequence[PartitionSource], ranges: Mapping[int, tuple[int, int]], limit: ReadLimit
) -> dict[int, int]:
    """The end offsets of the next batch: the same share of the pending offsets of each partition.

    Each partition with records advances by at least one offset, so that the stream progresses.
    """
    pending = sum(end - begin for begin, end in ranges.values())
    offsets = {number: end for number, (_, end) in ranges.items()}
    for source in sources:
        begin, end = ranges[source.number]
        if begin == end:
            continue
        match limit:
            case ReadMaxRows(max_rows):
                rows = max(1, (end - begin) * max_rows // pending)
                offsets[source.number] = min(end, begin + rows)
            case ReadMaxBytes(max_bytes):
                # Reads the sizes of the segments of this batch only, however many are pending.
                share = (end - begin) * max_bytes // pending
                offsets[source.number] = source.step(
                    start_offset=begin, end_offset=end, max_bytes=share
                )
    return offsets
