"""The deduplication job: a topic to a topic or a table, without duplicates.

docs/how-to/deduplicate-with-spark.md

Invariant  state, input offsets and output of a batch belong together: Spark repeats an unfinished
           batch with the same offsets, the same state before it and the same number, by which the
           output recognizes it.
Crash      a run may be killed anywhere; the next one continues from the checkpoint.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from varve.dedup.rules import make_routes
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.jobs.derived_outputs import (
    DerivedOutput,
    OutputKind,
    OutputRegistry,
    open_output_registry,
)
from varve.jobs.source.options import SourceOptions, parse_options
from varve.jobs.source.topic_source import open_partitions
from varve.jobs.tier.bucket import Bucket
from varve.spark.data_source import FORMAT
from varve.spark.deduplication.deduplicate import (
    METRICS,
    STATE_CONF,
    find_bucket_keys,
    judge_stream,
    make_id,
)
from varve.spark.deduplication.outputs import TableOutput, TableWriter, TopicOutput, TopicWriter
from varve.spark.deduplication.settings import (
    STATE_PARTITIONS_MAX,
    CheckpointSpec,
    DedupBatch,
    DedupResult,
    DedupSettings,
    DedupSpec,
    HadoopFiles,
    bind_checkpoint,
    read_counts,
)
from varve.spark.deduplication.state import DedupWindow, Judge
from varve.spark.session import is_connect

_POLL_SECONDS: Final = 1
_KEY_CANDIDATES: Final = 1 << 15
"""About 128 for each of STATE_PARTITIONS_MAX partitions, so that each gets a key."""

DedupOutput = TopicOutput | TableOutput
OnBatch = Callable[[DedupBatch], None]


class DedupWriter(Protocol):
    """Writes the records that a deduplication keeps."""

    def start(self, results: DataFrame) -> DataStreamWriter: ...


@dataclass(frozen=True, slots=True)
class DedupSource:
    """The topic that is read."""

    topic: str
    address: Bucket | None = None
    directories: tuple[str, ...] = ()

    def options(self, settings: DedupSettings) -> dict[str, str]:
        """The options of the data source."""
        options = {"topic": self.topic, "maxBytesPerTrigger": str(settings.batch_bytes)}
        if self.address is not None:
            options["url"] = self.address.url
            options |= {f"store.{name}": str(value) for name, value in self.address.settings}
            if self.address.cluster is not None:
                options["cluster"] = self.address.cluster
        if self.directories:
            options["directory"] = ",".join(self.directories)
        return {**options, **dict(settings.read_options)}


def dedup(
    source: DedupSource,
    output: DedupOutput,
    settings: DedupSettings,
    *,
    spark: SparkSession,
    checkpoint: str,
    interval_ms: int | None = None,
    on_batch: OnBatch | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    draw: Callable[[], int] = lambda: secrets.randbits(64),
    clock: Clock | None = None,
) -> DedupResult:
    """Deduplicates the available records and returns, or continues until `is_stopping`.

    With `interval_ms` a micro-batch starts at that interval. Raises InvalidRequest for a
    checkpoint of another deduplication, and changes nothing then. Spark's errors are raised
    unchanged; `explain_failure` translates them.
    """
    if is_connect(spark):
        raise Unavailable(
            "a deduplication cannot run over Spark Connect: its driver reads and writes the "
            "checkpoint; use a master other than sc://"
        )
    clock = clock or SystemClock()
    began_ms = clock.now_ms()
    read_options = source.options(settings)
    options = parse_options(read_options)
    topic = _get_topic(options)
    spec = _bind_checkpoint(spark, topic, output, settings, checkpoint, draw)
    _register_outputs(topic, output, settings, clock)
    _register_checkpoint(topic, output, checkpoint, clock)
    writer = _make_writer(output, settings, spec, topic.partition_count, options, clock)
    if isinstance(writer, TableWriter):
        _register_outputs(topic, output, settings, clock, writer.locations)
    conf = {**STATE_CONF, "spark.sql.shuffle.partitions": str(len(spec.bucket_keys))}
    with _temporary_conf(spark, conf):
        records = spark.readStream.format(FORMAT).options(**read_options).load()
        results = _judge(records, settings, spec)
        stream = writer.start(results).option("checkpointLocation", checkpoint)
        query = _trigger(stream, interval_ms).outputMode("append").start()
    result = DedupResult(
        topic=source.topic, output=str(output), state_partitions=len(spec.bucket_keys)
    )
    result = _follow(query, result, on_batch, is_stopping)
    return replace(result, duration_ms=clock.now_ms() - began_ms)


@dataclass(frozen=True, slots=True)
class _Topic:
    """The source topic, and the registry of outputs derived from it."""

    name: str
    id: str
    partition_count: int
    outputs: OutputRegistry


def _get_topic(options: SourceOptions) -> _Topic:
    """Raises NotFound."""
    sources = open_partitions(options)
    outputs = open_output_registry(options, sources)
    return _Topic(sources[0].topic, sources[0].topic_id, len(sources), outputs)


def _bind_checkpoint(
    spark: SparkSession,
    topic: _Topic,
    output: DedupOutput,
    settings: DedupSettings,
    checkpoint: str,
    draw: Callable[[], int],
) -> CheckpointSpec:
    count = settings.state_partitions or min(
        spark.sparkContext.defaultParallelism, STATE_PARTITIONS_MAX
    )
    return bind_checkpoint(
        HadoopFiles(spark, checkpoint),
        DedupSpec(
            topic=topic.name,
            topic_id=topic.id,
            output=str(output),
            by=str(settings.by),
            before_ms=settings.before_ms,
            after_ms=settings.after_ms,
            is_refreshing=settings.is_refreshing,
        ),
        where=checkpoint,
        partitions=settings.state_partitions,
        draw_secret=lambda: (draw(), draw()),
        draw_keys=lambda: find_bucket_keys(spark.range(_KEY_CANDIDATES), count),
    )


def _register_outputs(
    topic: _Topic,
    output: DedupOutput,
    settings: DedupSettings,
    clock: Clock,
    locations: tuple[str, ...] = (),
) -> None:
    """Registers the output and the topic of late records before anything is written to them."""
    names = [output.name]
    if settings.side_topic is not None:
        if isinstance(output, TableOutput):
            raise InvalidRequest(
                "a side topic needs a topic as output: for a table forward or drop late records"
            )
        names.append(settings.side_topic)
    for name in names:
        topic.outputs.note(
            DerivedOutput(
                kind=output.kind,
                topic=topic.name,
                topic_id=topic.id,
                place=output.place,
                name=name,
                how=output.how,
                noted_ms=clock.now_ms(),
                locations=locations,
            )
        )


def _register_checkpoint(topic: _Topic, output: DedupOutput, checkpoint: str, clock: Clock) -> None:
    topic.outputs.note(
        DerivedOutput(
            kind=OutputKind.CHECKPOINT,
            topic=topic.name,
            topic_id=topic.id,
            place=checkpoint if ":" in checkpoint else os.path.abspath(checkpoint),
            name=str(output),
            noted_ms=clock.now_ms(),
        )
    )


def _judge(records: DataFrame, settings: DedupSettings, spec: CheckpointSpec) -> DataFrame:
    window = DedupWindow(
        before_ms=settings.before_ms,
        after_ms=settings.after_ms,
        is_refreshing=settings.is_refreshing,
        secret=spec.secret,
    )
    return judge_stream(
        records,
        make_id(settings.by),
        Judge(window, settings.max_future_ms),
        make_routes(settings),
        bucket_keys=spec.bucket_keys,
        lateness_ms=settings.lateness_ms,
    )


def _make_writer(
    output: DedupOutput,
    settings: DedupSettings,
    spec: CheckpointSpec,
    partitions: int,
    options: SourceOptions,
    clock: Clock,
) -> DedupWriter:
    if isinstance(output, TopicOutput):
        return TopicWriter(
            output=output,
            side_topic=settings.side_topic,
            sink_id=spec.sink_id,
            partitions=partitions,
            bucket_keys=spec.bucket_keys,
        )
    return TableWriter.open(
        output, options, sink_id=spec.sink_id, bucket_keys=spec.bucket_keys, clock=clock
    )


@contextmanager
def _temporary_conf(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Changes settings of the session while a query starts; the query keeps them."""
    saved = {name: spark.conf.get(name, None) for name in conf}
    # Spark looks up source and sink in the active session of the Java thread, which may have none.
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, previous in saved.items():
            if previous is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, previous)


def _trigger(stream: DataStreamWriter, interval_ms: int | None) -> DataStreamWriter:
    if interval_ms is None:
        return stream.trigger(availableNow=True)
    return stream.trigger(processingTime=f"{interval_ms} milliseconds")


def _follow(
    query: StreamingQuery,
    result: DedupResult,
    on_batch: OnBatch | None,
    is_stopping: Callable[[], bool],
) -> DedupResult:
    """Waits for the end of the query, and adds up the counts of completed batches."""
    last_batch_id = -1
    is_done = False
    while not is_done:
        is_done = bool(query.awaitTermination(_POLL_SECONDS))
        if not is_done and is_stopping():
            query.stop()
            is_done = True
        for batch in _read_batches(query, last_batch_id):
            last_batch_id = batch.batch_id
            result = result.add(batch)
            if on_batch is not None:
                on_batch(batch)
    return result


def _read_batches(query: StreamingQuery, last_batch_id: int) -> Sequence[DedupBatch]:
    batches = []
    for progress in query.recentProgress:
        observed = progress.observedMetrics.get(METRICS)
        if progress.batchId > last_batch_id and observed is not None:
            batches.append(_read_batch(progress, observed.asDict()))
    return batches


def _read_batch(progress: Any, observed: dict[str, int | None]) -> DedupBatch:
    text = progress.eventTime.get("watermark", "1970-01-01T00:00:00.000Z")
    watermark = datetime.fromisoformat(text).astimezone(UTC)
    return DedupBatch(
        batch_id=progress.batchId,
        counts=read_counts(observed),
        watermark_ms=round(watermark.timestamp() * 1000),
        duration_ms=progress.durationMs.get("triggerExecution", 0),
    )
