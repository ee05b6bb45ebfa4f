"""What an engine of shapes reports: its metrics and its health.

Invariant  gauges of topics are read from their feeds when they are collected.
Threads    any; collecting waits for no turn of a feed.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from varve.foundation.errors import Closed
from varve.foundation.metrics import Metric, MetricTable, counter, declared_metrics, gauge
from varve.shapes.feed.changes import FeedCounts

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from varve.shapes.topic import ShapeTopic
    from varve.shapes.topics import TopicMap

_TOPIC: Final = ("topic",)
_OUTCOMES: Final = (
    "changes",
    "unchanged",
    "nothing",
    "skipped",
    "uncertain",
    "unfinished",
    "resets",
)

SHAPES = gauge("varve_shapes", "Shapes of a topic.", unit="shapes", labels=_TOPIC)
READY = gauge(
    "varve_shapes_topic_ready",
    "1 once a topic's table is filled and its feed is open.",
    unit="boolean",
    labels=_TOPIC,
)
LAG = gauge(
    "varve_shapes_feed_lag_records",
    "Records of a topic that its feed has not taken yet.",
    unit="records",
    labels=_TOPIC,
)
PENDING_ROWS = gauge(
    "varve_shapes_pending_rows",
    "Changed rows of a topic that wait for a checkpoint.",
    unit="rows",
    labels=_TOPIC,
)
CHANGES = gauge(
    "varve_shapes_feed_changes",
    "Changes of rows that a topic's feed gave since it was opened.",
    unit="changes",
    labels=_TOPIC,
)
ENTRIES = gauge(
    "varve_shapes_entries",
    "Entries that the shapes of a topic were given since it was opened.",
    unit="entries",
    labels=_TOPIC,
)
RECORDS = gauge(
    "varve_shapes_feed_records",
    "Records that a topic's feed has read since it was made, by what they came to.",
    unit="records",
    labels=("topic", "outcome"),
)
SNAPSHOTS = counter("varve_shapes_snapshots_total", "Snapshots written.", unit="snapshots")
SNAPSHOT_ROWS = counter(
    "varve_shapes_snapshot_rows_total", "Rows written to snapshots.", unit="rows"
)
CREATED = counter("varve_shapes_created_total", "Shapes made.", unit="shapes")
DROPPED = counter(
    "varve_shapes_dropped_total", "Shapes dropped, by reason.", unit="shapes", labels=("reason",)
)
CHECKPOINTS = counter(
    "varve_shapes_checkpoints_total", "Checkpoints of topics.", unit="checkpoints"
)
COMPACTIONS = counter(
    "varve_shapes_compactions_total",
    "Compactions of logs, by how they ended.",
    unit="compactions",
    labels=("outcome",),
)
COMPACTED_ENTRIES = counter(
    "varve_shapes_compacted_entries_total",
    "Entries that compactions have read.",
    unit="entries",
)
REMAINING_ENTRIES = counter(
    "varve_shapes_remaining_entries_total",
    "Entries that compactions have left.",
    unit="entries",
)


@dataclass(frozen=True, slots=True)
class TopicHealth:
    """The state of a topic's feed; `error` is empty unless its last attempt failed."""

    topic: str
    is_ready: bool
    error: str


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`status` is active, starting (a topic is still being opened) or waiting (one fails)."""

    status: str
    topics: list[TopicHealth]


def engine_health(topics: Sequence[TopicHealth]) -> EngineHealth:
    """The state of all topics: one that fails weighs more than one being opened."""
    status = "active"
    if any(topic.error for topic in topics):
        status = "waiting"
    elif not all(topic.is_ready for topic in topics):
        status = "starting"
    return EngineHealth(status, list(topics))


class _FeedFigures(NamedTuple):
    """The figures of an open feed."""

    lag: int
    pending_rows: int
    counts: FeedCounts


class EngineMetrics:
    """A collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self.topics: TopicMap | None = None
        """The topics of the engine, once it was opened."""

    def collect(self) -> "Iterator[Family]":
        if self.topics is not None:
            self._update(self.topics.all())
        return self.table.collect()

    def _update(self, topics: "Sequence[ShapeTopic]") -> None:
        """Sets the gauges of topics to their present values."""
        feeds = {
            topic.topic: figures
            for topic in topics
            if (figures := _find_figures(topic)) is not None
        }
        self._replace(SHAPES, {topic.topic: topic.shape_count for topic in topics})
        self._replace(READY, {topic.topic: int(topic.topic in feeds) for topic in topics})
        self._replace(CHANGES, {topic.topic: topic.changes for topic in topics})
        self._replace(ENTRIES, {topic.topic: topic.entries for topic in topics})
        self._replace(LAG, {name: feed.lag for name, feed in feeds.items()})
        self._replace(PENDING_ROWS, {name: feed.pending_rows for name, feed in feeds.items()})
        counted: dict[tuple[str, ...], float] = {
            (name, outcome): float(getattr(feed.counts, outcome))
            for name, feed in feeds.items()
            for outcome in _OUTCOMES
        }
        self.table.replace(RECORDS, counted)

    def _replace(self, metric: Metric, values: Mapping[str, int]) -> None:
        self.table.replace(metric, {(name,): float(value) for name, value in values.items()})


def _find_figures(topic: "ShapeTopic") -> _FeedFigures | None:
    """None for a feed that is not open, or was just lost."""
    feed = topic.find_feed()
    try:
        return None if feed is None else _FeedFigures(feed.lag, feed.unflushed_rows, feed.counts)
    except Closed:
        return None
