"""`vs.dedup`: a topic without its duplicates, as another topic or as a table; settings, results."""

import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from varve.dedup.rules import Counts, DedupRules, LatePolicy, RuleOptions, build_rules
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import parse_duration
from varve.jobs.results import JSON_NAME, JobResult, JsonFields, encode_fields
from varve.jobs.source.options import parse_options
from varve.jobs.source.topic_source import open_partitions
from varve.jobs.table.catalog import CatalogAddress, split_name
from varve.jobs.table.definition import TableSettings, ValueFormat
from varve.jobs.tier.location import TopicLocation
from varve.spark.functions import find_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varve.spark.deduplication.job import DedupOutput, OnBatch

BATCH_BYTES: Final = 256 << 20
STATE_PARTITIONS_MAX: Final = 256
"""The number of a state partition is a byte in `deal_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings(DedupRules):
    """The rules of a stream; the policy for late records also applies to those from the future.

    `side_topic` gets late records under LatePolicy.SIDE. The checkpoint fixes `state_partitions`
    and all rules that decide which records are duplicates.
    """

    side_topic: str | None = None
    batch_bytes: int = BATCH_BYTES
    state_partitions: int | None = None
    read_options: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def of_rules(cls, rules: DedupRules, **others: Any) -> "DedupSettings":
        """The rules, with the fields that only a stream has."""
        return cls(**{part.name: getattr(rules, part.name) for part in fields(rules)}, **others)

    def __post_init__(self) -> None:
        DedupRules.__post_init__(self)
        object.__setattr__(self, "future", self.late)
        if (self.late is LatePolicy.SIDE) != (self.side_topic is not None):
            raise InvalidRequest(
                "a side topic requires the policy side for late records, and vice versa: give both"
            )
        count = self.state_partitions
        if count is not None and not 1 <= count <= STATE_PARTITIONS_MAX:
            raise InvalidRequest(
                f"state_partitions is {count}, it must be 1 to {STATE_PARTITIONS_MAX}"
            )
        if self.batch_bytes < 1:
            raise InvalidRequest(f"batch_bytes is {self.batch_bytes}, it must be at least 1")


# Results


BATCHES_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupBatch(JsonFields):
    """One batch; its late records are those below `watermark_ms`."""

    batch_id: int
    counts: Counts = field(metadata={JSON_NAME: None})
    watermark_ms: int
    duration_ms: int

    def to_json(self) -> dict[str, Any]:
        return {**encode_counts(self.counts), **encode_fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupResult(JobResult):
    """One run. `batches` holds the last ones, `batch_count` counts all."""

    topic: str
    output: str
    counts: Counts = field(default_factory=Counts, metadata={JSON_NAME: None})
    batch_count: int = 0
    batches: tuple[DedupBatch, ...] = ()
    state_partitions: int = 0
    duration_ms: int = 0

    def add(self, batch: DedupBatch) -> "DedupResult":
        return replace(
            self,
            counts=self.counts + batch.counts,
            batch_count=self.batch_count + 1,
            batches=(*self.batches, batch)[-BATCHES_SHOWN:],
        )

    def to_json(self) -> dict[str, Any]:
        return {**encode_counts(self.counts), **encode_fields(self)}


def encode_counts(counts: Counts) -> dict[str, int]:
    """The counts for JSON; a stream counts records without a timestamp as late."""
    by_name = asdict(counts)
    del by_name["missing"]
    return {"records": counts.total, **by_name}


# The function


_TABLE: Final = "table:"

Duration = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupPlan:
    """A deduplication whose arguments are checked; Spark is needed to run it.

    With `interval_ms` a micro-batch starts at that interval, until the query is stopped.
    """

    location: TopicLocation
    topic: str
    output: "DedupOutput"
    settings: DedupSettings
    checkpoint: str
    interval_ms: int | None = None

    @property
    def read_options(self) -> dict[str, str]:
        """The options of the data source."""
        options = {"topic": self.topic, "maxBytesPerTrigger": str(self.settings.batch_bytes)}
        return {**options, **self.location.options(), **dict(self.settings.read_options)}

    def run(self, spark: "SparkSession", *, on_batch: "OnBatch | None" = None) -> DedupResult:
        from varve.spark.deduplication.job import run_dedup

        return run_dedup(self, spark, on_batch=on_batch)


def dedup(
    spark: "SparkSession",
    location: TopicLocation,
    topic: str,
    *,
    to: str,
    by: str,
    window: Duration | None = None,
    before: Duration | None = None,
    after: Duration | None = None,
    lateness: Duration | None = None,
    late: str = "forward",
    no_id: str = "forward",
    refresh: bool = False,
    max_future: Duration = "1h",
    checkpoint: str,
    interval: Duration | None = None,
    batch_bytes: int | None = None,
    state_partitions: int | None = None,
    catalog: CatalogAddress | None = None,
    format: str = "raw",
    on_batch: "OnBatch | None" = None,
) -> DedupResult:
    """Copies a topic without its duplicates to the topic `to`, or to the table `table:NS.NAME`.

    `by` is `key`, `header:NAME` or `field:PATH`. Returns at the end of the topic; with `interval` a
    batch follows every interval until the query is stopped.
    """
    rules = build_rules(
        by,
        window=_to_ms(window, "window"),
        before=_to_ms(before, "before"),
        after=_to_ms(after, "after"),
        lateness=_to_ms(lateness, "lateness"),
        late=late,
        no_id=no_id,
        refresh=refresh,
        max_future=_to_ms(max_future, "max_future") or 0,
    )
    plan = plan_dedup(
        location,
        topic,
        to=to,
        rules=rules,
        checkpoint=checkpoint,
        interval=interval,
        batch_bytes=batch_bytes,
        state_partitions=state_partitions,
        catalog=catalog,
        format=format,
    )
    return plan.run(spark, on_batch=on_batch)


def plan_dedup(
    location: TopicLocation,
    topic: str,
    *,
    to: str,
    rules: RuleOptions,
    checkpoint: str,
    interval: Duration | None = None,
    batch_bytes: int | None = None,
    state_partitions: int | None = None,
    catalog: CatalogAddress | None = None,
    format: str = "raw",
) -> DedupPlan:
    """Raises InvalidRequest for wrong arguments, and NotFound for a topic that is not there."""
    settings = DedupSettings.of_rules(
        rules.rules,
        side_topic=rules.side_topic,
        batch_bytes=batch_bytes or BATCH_BYTES,
        state_partitions=state_partitions,
    )
    output = _make_output(location, to, catalog, format)
    open_partitions(parse_options({"topic": topic, **location.options()}))
    return DedupPlan(
        location=location,
        topic=topic,
        output=output,
        settings=settings,
        # A path without a scheme is on this machine, wherever Spark runs.
        checkpoint=checkpoint if "://" in checkpoint else os.path.abspath(checkpoint),
        interval_ms=_to_ms(interval, "interval"),
    )


def _make_output(
    location: TopicLocation, to: str, catalog: CatalogAddress | None, format: str
) -> "DedupOutput":
    from varve.spark.deduplication.outputs import TableOutput, TopicOutput

    if not to.startswith(_TABLE):
        if not location.directories:
            raise InvalidRequest("--dir (dir=) is missing: the log directory of the output topic")
        return TopicOutput(directories=location.directories, topic=to)
    name = to.removeprefix(_TABLE)
    split_name(name)
    return TableOutput(
        catalog=find_catalog(location, catalog),
        name=name,
        settings=TableSettings(format=ValueFormat(format)),
    )


def _to_ms(duration: Duration | None, name: str) -> int | None:
    return parse_duration(duration, name=name) if isinstance(duration, str) else duration
