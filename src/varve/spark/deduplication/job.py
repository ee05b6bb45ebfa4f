"""The deduplication job: a topic to a topic or a table, without duplicates.

docs/how-to/deduplicate-with-spark.md

Layout     `varve-dedup.json` in the checkpoint directory, beside Spark's own files, written when
           the first run begins. docs/reference/formats/dedup-state.md
Invariant  a checkpoint is bound to one definition of a duplicate, one topic, one output and one
           number of state partitions. A run with others is refused before it changes anything.
           State, input offsets and output of a batch belong together: Spark repeats an unfinished
           batch with the same offsets, the same state before it and the same number, by which the
           output recognizes it.
Crash      a run may be killed anywhere; the next one continues from the checkpoint. Its file is
           written under another name and renamed, before Spark writes its first file.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from varve.dedup.rules import Counts, make_routes
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import Corrupt, InvalidRequest, Unavailable
from varve.jobs.derived_outputs import register_output
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
from varve.spark.deduplication.functions import (
    STATE_PARTITIONS_MAX,
    DedupBatch,
    DedupPlan,
    DedupResult,
    DedupSettings,
)
from varve.spark.deduplication.outputs import TableOutput, TableWriter, TopicOutput, TopicWriter
from varve.spark.deduplication.state import DedupWindow, Judge
from varve.spark.session import is_connect
from varve.topics.outputs import OutputKind

_POLL_SECONDS: Final = 1
_KEY_CANDIDATES: Final = 1 << 15
"""About 128 for each of STATE_PARTITIONS_MAX partitions, so that each gets a key."""

DedupOutput = TopicOutput | TableOutput
OnBatch = Callable[[DedupBatch], None]


# The file that binds the checkpoint


FILE: Final = "varve-dedup.json"
SPARK_METADATA_FILE: Final = "metadata"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSpec:
    """The properties of a deduplication that its checkpoint fixes."""

    topic: str
    topic_id: str
    output: str
    by: str
    before_ms: int
    after_ms: int
    is_refreshing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """The content of the file: the deduplication, and the secret and keys drawn for it."""

    spec: DedupSpec
    secret: tuple[int, int]
    bucket_keys: tuple[int, ...]

    @property
    def sink_id(self) -> str:
        """The same for all runs of a checkpoint."""
        return f"dedup-{self.secret[0] ^ self.secret[1]:016x}"


class CheckpointFiles(Protocol):
    """The files of a checkpoint directory, wherever Spark keeps it."""

    def find(self, name: str) -> bytes | None: ...
    def put(self, name: str, data: bytes) -> None: ...


class HadoopFiles:
    """The files through the Hadoop file system of the Spark session."""

    def __init__(self, spark: Any, location: str) -> None:
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._location = location
        directory = self._hadoop.Path(location)
        self._fs = directory.getFileSystem(spark._jsc.hadoopConfiguration())
        self._io_utils = spark._jvm.org.apache.commons.io.IOUtils

    def find(self, name: str) -> bytes | None:
        path = self._hadoop.Path(self._location, name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return bytes(self._io_utils.toByteArray(stream))
        finally:
            stream.close()

    def put(self, name: str, data: bytes) -> None:
        temporary = self._hadoop.Path(self._location, f".{name}.tmp")
        stream = self._fs.create(temporary, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        self._fs.rename(temporary, self._hadoop.Path(self._location, name))


def bind_checkpoint(
    files: CheckpointFiles,
    spec: DedupSpec,
    *,
    where: str,
    partitions: int | None,
    new_secret: tuple[int, int],
    draw_keys: Callable[[], Sequence[int]],
) -> CheckpointSpec:
    """Reads the file, or writes it to a new checkpoint; raises InvalidRequest if it differs."""
    data = files.find(FILE)
    if data is None:
        if files.find(SPARK_METADATA_FILE) is not None:
            raise InvalidRequest(
                f"{where} is the checkpoint of another query ({FILE} is missing): name another "
                "directory"
            )
        bound = CheckpointSpec(spec=spec, secret=new_secret, bucket_keys=tuple(draw_keys()))
        files.put(FILE, encode_spec(bound))
        return bound
    bound = decode_spec(data, f"{where}/{FILE}")
    for declared in fields(DedupSpec):
        stored, requested = getattr(bound.spec, declared.name), getattr(spec, declared.name)
        if stored != requested:
            raise InvalidRequest(
                f"the checkpoint {where} was created with {declared.name}={stored!r:.200}, and "
                f"cannot continue with {requested!r:.200}: use the same value, or a new checkpoint"
            )
    if partitions is not None and partitions != len(bound.bucket_keys):
        raise InvalidRequest(
            f"the checkpoint {where} has {len(bound.bucket_keys)} partitions of state, and cannot "
            f"continue with {partitions}: leave the number out, or use a new checkpoint"
        )
    return bound


def encode_spec(bound: CheckpointSpec) -> bytes:
    document = {
        "format": _FORMAT,
        **asdict(bound.spec),
        "secret": [f"{word:016x}" for word in bound.secret],
        "bucket_keys": list(bound.bucket_keys),
    }
    return json.dumps(document, indent=1).encode()


def decode_spec(data: bytes, where: str) -> CheckpointSpec:
    """Raises Corrupt for a file that is not of this format."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, this varve reads {_FORMAT}")
        first, second = (int(word, 16) for word in document["secret"])
        return CheckpointSpec(
            spec=DedupSpec(
                **{declared.name: document[declared.name] for declared in fields(DedupSpec)}
            ),
            secret=(first, second),
            bucket_keys=tuple(int(key) for key in document["bucket_keys"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where} cannot be read ({error}): restore it from a copy, or start with a new "
            "checkpoint"
        ) from error


# A run


def run_dedup(
    plan: DedupPlan,
    spark: SparkSession,
    *,
    on_batch: OnBatch | None = None,
) -> DedupResult:
    """Deduplicates the available records and returns, or continues until the query is stopped.

    Raises InvalidRequest for a checkpoint of another deduplication, and changes nothing then.
    Spark's errors are raised unchanged; `explain_failure` translates them.
    """
    if is_connect(spark):
        raise Unavailable(
            "a deduplication cannot run over Spark Connect: its driver reads and writes the "
            "checkpoint; use a master other than sc://"
        )
    clock = SystemClock()
    began_ms = clock.now_ms()
    source = _Source(parse_options(plan.read_options), clock)
    spec = _bind_checkpoint(spark, plan, source)
    names = [plan.output.name]
    if plan.settings.side_topic is not None:
        if isinstance(plan.output, TableOutput):
            raise InvalidRequest(
                "a side topic needs a topic as output: for a table forward or drop late records"
            )
        names.append(plan.settings.side_topic)
    output = plan.output
    for name in names:
        source.register(output.kind, output.place, name, output.how)
    source.register(OutputKind.CHECKPOINT, plan.checkpoint, str(output))
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
    result = _follow(query, result, on_batch)
    return replace(result, duration_ms=clock.now_ms() - began_ms)


class _Source:
    """The opened source topic; registers the outputs derived from it. Raises NotFound."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self.options = options
        self.partitions = open_partitions(options)
        self.clock = clock

    def register(
        self,
        kind: OutputKind,
        place: str,
        name: str,
        how: tuple[tuple[str, str], ...] = (),
        locations: tuple[str, ...] = (),
    ) -> None:
        """Registers an output before anything is written to it."""
        register_output(
            self.options,
            self.partitions,
            kind,
            place=place,
            name=name,
            noted_ms=self.clock.now_ms(),
            how=how,
            locations=locations,
        )


def _bind_checkpoint(spark: SparkSession, plan: DedupPlan, source: _Source) -> CheckpointSpec:
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
        new_secret=(secrets.randbits(64), secrets.randbits(64)),
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
    source.register(output.kind, output.place, output.name, output.how, writer.tables.locations())
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


def _follow(query: StreamingQuery, result: DedupResult, on_batch: OnBatch | None) -> DedupResult:
    """Waits for the end of the query, and adds up the counts of completed batches."""
    last_batch_id = -1
    is_done = False
    while not is_done:
        is_done = bool(query.awaitTermination(_POLL_SECONDS))
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


def read_counts(observed: Mapping[str, int | None]) -> Counts:
    """The counts that Spark observed: null where a batch had no records."""
    return Counts(**{name: count or 0 for name, count in observed.items()})
