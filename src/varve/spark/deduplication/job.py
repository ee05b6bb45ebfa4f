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
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from varve.dedup.rules import make_routes
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.jobs.derived_outputs import OutputKind, register_output
from varve.jobs.source.options import SourceOptions, parse_options
from varve.jobs.source.topic_source import open_partitions
from varve.spark.data_source import FORMAT
from varve.spark.deduplication.deduplicate import (
    METRICS,
    STATE_CONF,
    find_bucket_keys,
    judge_stream,
    make_id,
)
from varve.spark.deduplication.functions import DedupPlan
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


def run_dedup(
    plan: DedupPlan,
    spark: SparkSession,
    *,
    on_batch: OnBatch | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    draw: Callable[[], int] = lambda: secrets.randbits(64),
    clock: Clock | None = None,
) -> DedupResult:
    """Deduplicates the available records and returns, or continues until `is_stopping`.

    Raises InvalidRequest for a checkpoint of another deduplication, and changes nothing then.
    Spark's errors are raised unchanged; `explain_failure` translates them.
    """
    if is_connect(spark):
        raise Unavailable(
            "a deduplication cannot run over Spark Connect: its driver reads and writes the "
            "checkpoint; use a master other than sc://"
        )
    clock = clock or SystemClock()
    began_ms = clock.now_ms()
    source = _Source(parse_options(plan.read_options), clock)
    spec = _bind_checkpoint(spark, plan, source, draw)
    names = [plan.output.name]
    if plan.settings.side_topic is not None:
        if isinstance(plan.output, TableOutput):
            raise InvalidRequest(
                "a side topic needs a topic as output: for a table forward or drop late records"
            )
        names.append(plan.settings.side_topic)
    for name in names:
        source.register(plan.output, name)
    source.register_checkpoint(plan.output, plan.checkpoint)
    writer = _open_writer(plan, source, spec)
    conf = {**STATE_CONF, "spark.sql.shuffle.partitions": str(len(spec.bucket_keys))}
    with _temporary_conf(spark, conf):
        records = spark.readStream.format(FORMAT).options(**plan.read_options).load()
        results = _judge(records, plan.settings, spec)
        stream = writer.start(results).option("checkpointLocation", plan.checkpoint)
        query = _trigger(stream, plan.interval_ms).outputMode("append").start()
    result = DedupResult(
        topic=plan.topic, output=str(plan.output), state_partitions=len(spec.bucket_keys)
    )
    result = _follow(query, result, on_batch, is_stopping)
    return replace(result, duration_ms=clock.now_ms() - began_ms)


class _Source:
    """The opened source topic; registers the outputs derived from it. Raises NotFound."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self.options = options
        self.partitions = open_partitions(options)
        self.clock = clock

    def register(self, output: DedupOutput, name: str, locations: tuple[str, ...] = ()) -> None:
        """Registers an output before anything is written to it."""
        register_output(
            self.options,
            self.partitions,
            output.kind,
            place=output.place,
            name=name,
            noted_ms=self.clock.now_ms(),
            how=output.how,
            locations=locations,
        )

    def register_checkpoint(self, output: DedupOutput, checkpoint: str) -> None:
        register_output(
            self.options,
            self.partitions,
            OutputKind.CHECKPOINT,
            place=checkpoint if ":" in checkpoint else os.path.abspath(checkpoint),
            name=str(output),
            noted_ms=self.clock.now_ms(),
        )


def _bind_checkpoint(
    spark: SparkSession, plan: DedupPlan, source: _Source, draw: Callable[[], int]
) -> CheckpointSpec:
    settings = plan.settings
    count = settings.state_partitions or min(
        spark.sparkContext.defaultParallelism, STATE_PARTITIONS_MAX
    )
    return bind_checkpoint(
        HadoopFiles(spark, plan.checkpoint),
        DedupSpec(
            topic=source.partitions[0].topic,
            topic_id=source.partitions[0].topic_id,
            output=str(plan.output),
            by=str(settings.by),
            before_ms=settings.before_ms,
            after_ms=settings.after_ms,
            is_refreshing=settings.is_refreshing,
        ),
        where=plan.checkpoint,
        partitions=settings.state_partitions,
        draw_secret=lambda: (draw(), draw()),
        draw_keys=lambda: find_bucket_keys(spark.range(_KEY_CANDIDATES), count),
    )


def _open_writer(
    plan: DedupPlan, source: _Source, spec: CheckpointSpec
) -> TopicWriter | TableWriter:
    output = plan.output
    if isinstance(output, TopicOutput):
        return TopicWriter(
            output=output,
            side_topic=plan.settings.side_topic,
            sink_id=spec.sink_id,
            partitions=len(source.partitions),
            bucket_keys=spec.bucket_keys,
        )
    writer = TableWriter.open(
        output,
        source.options,
        sink_id=spec.sink_id,
        bucket_keys=spec.bucket_keys,
        clock=source.clock,
    )
    source.register(output, output.name, writer.tables.locations())
    return writer


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
