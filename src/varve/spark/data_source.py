"""The data source `varve`: reads a topic as rows, and writes rows as records of a topic.

Remote segments are read from the object store, other records from a log directory or a server.

    spark.read.format("varve").option("url", "s3://bucket/prefix").option("topic", "orders").load()
    frame.write.format("varve").options(directory="data", topic="orders").mode("append").save()

Invariant  the driver plans from manifests and indexes; tasks read log data where it is stored.
           Filters are pushed down only with `pushFilters`: Spark reuses a plan with filters for
           later queries of the same DataFrame, also for queries without filters. Tasks of a write
           build complete batches and stage them; the driver's commit appends them as one
           transaction: readers of committed records see all rows of a write in a partition, or
           none.
Crash      a retried epoch is appended once: see `varve.jobs.sink.commit`.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from varve.embedded.topic import Packaging, packaging_for
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.jobs.data_source_options import OptionUse
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget
from varve.jobs.sink.commit import ServerCommit
from varve.jobs.sink.sink_state import CommitResult, EpochWrite
from varve.jobs.sink.staging import ONCE_PREFIX, StagedTask, Staging, sweep_abandoned
from varve.jobs.sink.target import (
    SinkOptions,
    check_sink_id,
    find_target,
    open_commit,
    open_directory,
    parse_sink_options,
)
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.options import Mode, SourceFilters, SourceOptions, learn_tier, parse_options
from varve.jobs.source.plan import plan_tasks
from varve.jobs.source.read import read_task
from varve.kafka_client.client import open_client
from varve.object_store import ObjectStore, RetryingObjectStore, open_object_store
from varve.spark.columns import check_schema, check_sink_schema, make_schema
from varve.spark.executor import freeze_objects_once
from varve.spark.stream_reader import TaskPartition, VarveStreamReader

FORMAT: Final = "varve"


class VarveDataSource(DataSource):
    """Created by Spark from the options of a read or a write."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return make_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> "VarveReader":
        options = learn_tier(parse_options(self.options, OptionUse.BATCH))
        return (FilteringReader if options.pushes_filters else VarveReader)(options, schema)

    def streamReader(self, schema: StructType) -> VarveStreamReader:  # noqa: N802
        options = learn_tier(parse_options(self.options, OptionUse.STREAM))
        return VarveStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "VarveWriter":
        return VarveWriter(
            parse_sink_options(self.options, OptionUse.BATCH), schema, overwrite=overwrite
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> "VarveStreamWriter":  # noqa: N802
        options = parse_sink_options(self.options, OptionUse.STREAM)
        return VarveStreamWriter(options, schema, overwrite=overwrite)


class VarveReader(DataSourceReader):
    """A batch read: the driver plans it, tasks read the rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._filters = SourceFilters()

    def partitions(self) -> Sequence[InputPartition]:
        planned = [TaskPartition(task) for task in plan_tasks(self._options, self._filters)]
        freeze_objects_once()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            columns = ArrowColumns(self._schema.fieldNames())
            yield from read_task(partition.task, columns, self._options, self._filters)
            freeze_objects_once()


class FilteringReader(VarveReader):
    """A batch read that is narrowed by the filters of its query before it is planned."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Applies filters that narrow the read; yields those that Spark must evaluate again.

        A read of the latest state is narrowed by partition and key only.
        """
        for filter_ in filters:
            narrowed, is_exact = apply_filter(self._filters, filter_)
            if self._options.mode is Mode.LATEST and not narrowed.is_of_keys(self._filters):
                yield filter_
                continue
            self._filters = narrowed
            if not is_exact:
                yield filter_


def apply_filter(filters: SourceFilters, filter: Filter) -> tuple[SourceFilters, bool]:
    """The filters narrowed by another one, and whether Spark need not evaluate that again."""
    match filter:
        case EqualTo((name,), value) | EqualNullSafe((name,), value):
            return filters.take_values(name, [value])
        case In((name,), values):
            return filters.take_values(name, list(values))
        case GreaterThanOrEqual((name,), value):
            return filters.take_from(name, value)
        case GreaterThan((name,), value):
            return filters.take_from(name, value, is_included=False)
        case LessThanOrEqual((name,), value):
            return filters.take_up_to(name, value)
        case LessThan((name,), value):
            return filters.take_up_to(name, value, is_included=False)
        case _:
            return filters, False


# Writing


QUERY_ID: Final = "sql.streaming.queryId"
"""The task property that identifies the query of a stream; Spark stores it in the checkpoint."""


@dataclass(frozen=True, slots=True)
class SinkMessage(WriterCommitMessage):
    """A task's message to the commit: the query, the topic, and the staged batches."""

    query: str | None
    target: SinkTarget
    task: StagedTask


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _open_staging(options: SinkOptions) -> ObjectStore:
    address = options.staging
    return RetryingObjectStore(open_object_store(address.url, dict(address.settings)))


def _make_packaging(options: SinkOptions, target: SinkTarget) -> Packaging:
    chosen = packaging_for(target.settings, options.codec)
    if options.batch_bytes is None or options.batch_bytes >= chosen.payload_bytes:
        return chosen
    return Packaging(chosen.codec, chosen.level, options.batch_bytes)


def _stage(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, target: SinkTarget, sink_id: str
) -> StagedTask:
    context = TaskContext.get()
    first = (0 if context is None else context.partitionId()) % target.partition_count
    builder = BatchBuilder(target, _make_packaging(options, target), first)
    return Staging(_open_staging(options), sink_id).stage(batches, builder, target.topic)


def _commit(options: SinkOptions, target: SinkTarget, write: EpochWrite) -> CommitResult | None:
    """Commits an epoch and clears its staging; None where there was nothing to commit."""
    if not write.summary.rows:
        return None
    objects = _open_staging(options)
    staging = Staging(objects, write.sink_id)
    result = _append(options, target, write, staging)
    staging.sweep()
    if write.is_once:
        sweep_abandoned(objects, SystemClock().now_ms())
    return result


def _append(
    options: SinkOptions, target: SinkTarget, write: EpochWrite, staging: Staging
) -> CommitResult:
    if options.server is not None:
        timeout_ms = options.transaction_timeout_ms
        server_commit = ServerCommit(
            open_client(options.server), clock=SystemClock(), timeout_ms=timeout_ms
        )
        return server_commit.commit(write, target, staging)
    with open_directory(options, _wait) as store:
        return open_commit(store, options, clock=SystemClock()).commit(write, target, staging)


def _check_append(schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest(
            "a log is appended to, never overwritten: write with mode append, a stream with output "
            "mode append"
        )
    check_sink_schema(schema)


class VarveWriter(DataSourceArrowWriter):
    """A batch write; its sink id is random unless the user gives an id and an epoch."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check_append(schema, overwrite=overwrite)
        if (options.sink_id is None) != (options.epoch is None):
            raise InvalidRequest(
                "a batch write needs both options sinkId and epoch, or neither: together they "
                "identify a write that is committed once, however often it is repeated"
            )
        self._options = options
        self._sink_id = options.sink_id or f"{ONCE_PREFIX}{uuid4().hex}"
        self._target = find_target(options, _wait)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        task = _stage(iterator, self._options, self._target, self._sink_id)
        return SinkMessage(None, self._target, task)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        write = EpochWrite(
            sink_id=self._sink_id,
            query=None,
            is_once=self._options.sink_id is None,
            epoch=self._options.epoch or 0,
            tasks=[message.task for message in messages if isinstance(message, SinkMessage)],
            skips_repeated=self._options.skips_repeated,
        )
        _commit(self._options, self._target, write)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        Staging(_open_staging(self._options), self._sink_id).sweep()


class VarveStreamWriter(DataSourceStreamArrowWriter):
    """A stream's writes, epoch by epoch; the sink is the user's id, the query's name or its id."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check_append(schema, overwrite=overwrite)
        if options.epoch is not None:
            raise InvalidRequest("option epoch is for batch writes: Spark counts those of a stream")
        self._options = options
        self._target = find_target(options, _wait)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if query is None:
            raise InvalidRequest(
                f"Spark does not name the query of this stream (property {QUERY_ID}), by which "
                "its epochs are distinguished from another's: write from a micro-batch query"
            )
        task = _stage(iterator, self._options, self._target, self._sink_id(query))
        return SinkMessage(query, self._target, task)

    def _sink_id(self, query: str) -> str:
        options = self._options
        if options.sink_id is not None or options.query_name is None:
            return options.sink_id or query
        try:
            return check_sink_id(options.query_name)
        except ValueError as error:
            raise InvalidRequest(
                f"queryName {options.query_name!r:.120} cannot name the sink: {error}; "
                "or give option sinkId"
            ) from error

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [message for message in messages if isinstance(message, SinkMessage)]
        owners = {
            (message.query, message.target) for message in staged if message.query is not None
        }
        if not owners:
            return
        # Spark creates a writer for each commit: the target is the one that the tasks wrote to.
        ((query, target),) = owners
        write = EpochWrite(
            sink_id=self._sink_id(query),
            query=query,
            is_once=False,
            epoch=batchId,
            tasks=[message.task for message in staged],
            skips_repeated=self._options.skips_repeated,
        )
        _commit(self._options, target, write)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [message for message in messages if isinstance(message, SinkMessage)]
        for query in {message.query for message in staged if message.query is not None}:
            Staging(_open_staging(self._options), self._sink_id(query)).sweep()


def register(spark: SparkSession) -> None:
    """Registers the format `varve` in a session that does not know it already."""
    if not _knows_format(spark):
        spark.dataSource.register(VarveDataSource)


def _knows_format(spark: SparkSession) -> bool:
    """Whether Spark found `pyspark_varve`; False over Spark Connect, where the server is not asked.

    Spark logs a warning where a format that it found is registered again.
    """
    session = getattr(spark, "_jsparkSession", None)
    return session is not None and bool(
        session.sessionState().dataSourceManager().dataSourceExists(FORMAT)
    )
