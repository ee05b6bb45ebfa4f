"""What an engine of shapes measures.

Invariant  figures of topics are those of their feeds at the time of asking; counters begin anew
           when the engine is opened.
Threads    any.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from varve.foundation.errors import Closed
from varve.foundation.metrics import Metric, MetricTable, counter, declared_metrics, gauge
from varve.shapes.feed.counts import FeedCounts
from varve.shapes.topic_shapes import TopicShapes

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

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


class _Feed(NamedTuple):
    """The figures of an open feed."""

    lag: int
    pending_rows: int
    counts: FeedCounts


class EngineMetrics:
    """A collector for a registry of prometheus_client."""

    def __init__(self, topics: Callable[[], Sequence[TopicShapes]]) -> None:
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self._topics = topics

    def collect(self) -> "Iterator[Family]":
        self._look()
        return self.table.collect()

    def _look(self) -> None:
        """Puts the gauges of topics where they are now."""
        topics = self._topics()
        found = {one.topic: look for one in topics if (look := _look_at(one)) is not None}
        self._replace(SHAPES, {one.topic: one.shape_count for one in topics})
        self._replace(READY, {one.topic: int(one.topic in found) for one in topics})
        self._replace(CHANGES, {one.topic: one.changes for one in topics})
        self._replace(ENTRIES, {one.topic: one.entries for one in topics})
        self._replace(LAG, {name: feed.lag for name, feed in found.items()})
        self._replace(PENDING_ROWS, {name: feed.pending_rows for name, feed in found.items()})
        counted: dict[tuple[str, ...], float] = {
            (name, outcome): float(getattr(feed.counts, outcome))
            for name, feed in found.items()
            for outcome in _OUTCOMES
        }
        self.table.replace(RECORDS, counted)

    def _replace(self, metric: Metric, values: Mapping[str, int]) -> None:
        self.table.replace(metric, {(name,): float(value) for name, value in values.items()})


def _look_at(topic: TopicShapes) -> _Feed | None:
    """What a feed tells; None for one that is not open, or is lost just now."""
    feed = topic.find_feed()
    try:
        return None if feed is None else _Feed(feed.lag, feed.overlay_count, feed.counts)
    except Closed:
        return None
