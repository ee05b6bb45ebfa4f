"""Metrics and health of an engine of shapes.

Invariant  gauges of topics are read from their feeds when they are collected.
Threads    any; collecting waits for no turn of a feed.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import Closed
from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge
from varve.shapes.feed.changes import FeedCounts

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from varve.shapes.engine import ShapeEngine

_TOPIC: Final = ("topic",)
RESULTS: Final = ("changes", "unchanged", "nothing", "skipped")
"""Results of reading a record of a topic; each record has one."""

SHAPES = gauge("varve_shapes", "Shapes of a topic.", unit="shapes", labels=_TOPIC)
DISK_BYTES = gauge(
    "varve_shapes_disk_bytes",
    "Bytes of the files of all shapes, when they were last measured.",
    unit="bytes",
)
READY = gauge(
    "varve_shapes_topic_ready",
    "1 once the table of a topic is loaded and its feed is open.",
    unit="boolean",
    labels=_TOPIC,
)
LAG = gauge(
    "varve_shapes_feed_lag_records",
    "Records of a topic that its feed has not read yet.",
    unit="records",
    labels=_TOPIC,
)
UNFLUSHED_ROWS = gauge(
    "varve_shapes_unflushed_rows",
    "Changed rows of a topic that wait for a checkpoint.",
    unit="rows",
    labels=_TOPIC,
)
CHANGES = counter(
    "varve_shapes_changes_total",
    "Changes of rows from a topic.",
    unit="changes",
    labels=_TOPIC,
)
ENTRIES = counter(
    "varve_shapes_entries_total",
    "Entries appended to the logs of a topic's shapes.",
    unit="entries",
    labels=_TOPIC,
)
RECORDS = counter(
    "varve_shapes_source_records_total",
    "Records read from a topic, by result.",
    unit="records",
    labels=("topic", "result"),
)
UNCERTAIN = counter(
    "varve_shapes_uncertain_changes_total",
    "Changes of rows whose previous row is not certain.",
    unit="changes",
    labels=_TOPIC,
)
UNFINISHED = counter(
    "varve_shapes_unfinished_transactions_total",
    "Transactions of a source that were published before their end was known.",
    unit="transactions",
    labels=_TOPIC,
)
RESETS = counter(
    "varve_shapes_resets_total",
    "Resets of a topic, which drop its shapes.",
    unit="resets",
    labels=_TOPIC,
)
SNAPSHOTS = counter("varve_shapes_snapshots_total", "Snapshots written.", unit="snapshots")
SNAPSHOT_ROWS = counter(
    "varve_shapes_snapshot_rows_total", "Rows written to snapshots.", unit="rows"
)
CREATED = counter("varve_shapes_created_total", "Shapes created.", unit="shapes")
DROPPED = counter(
    "varve_shapes_dropped_total", "Shapes dropped, by reason.", unit="shapes", labels=("reason",)
)
CHECKPOINTS = counter(
    "varve_shapes_checkpoints_total", "Checkpoints of topics.", unit="checkpoints"
)
COMPACTIONS = counter(
    "varve_shapes_compactions_total",
    "Compactions of logs, by outcome.",
    unit="compactions",
    labels=("outcome",),
)
COMPACTED_ENTRIES = counter(
    "varve_shapes_compaction_entries_in_total",
    "Entries that compactions read.",
    unit="entries",
)
REMAINING_ENTRIES = counter(
    "varve_shapes_compaction_entries_out_total",
    "Entries that compactions kept.",
    unit="entries",
)


@dataclass(frozen=True, slots=True)
class TopicHealth:
    """The state of a topic's feed; `error` is empty unless its last attempt failed."""

    topic: str
    is_ready: bool
    error: str


class FeedCounters:
    """Adds the counts of a feed since the last call to the counters of its topic.

    One thread at a time.
    """

    _METRICS: Final = {"uncertain": UNCERTAIN, "unfinished": UNFINISHED, "resets": RESETS}

    def __init__(self, table: MetricTable, topic: str) -> None:
        self._table = table
        self._topic = topic
        self._added = FeedCounts()

    def add(self, counts: FeedCounts) -> None:
        added = self._added
        if counts == added:
            return
        for result in RESULTS:
            amount = getattr(counts, result) - getattr(added, result)
            self._table.add(RECORDS, amount, self._topic, result)
        for name, metric in self._METRICS.items():
            self._table.add(metric, getattr(counts, name) - getattr(added, name), self._topic)
        self._added = replace(counts)


class EngineMetrics(MetricTable):
    """A collector for a registry of prometheus_client."""

    def __init__(self, engine: "ShapeEngine") -> None:
        super().__init__(declared_metrics(sys.modules[__name__]))
        self._engine = engine

    def collect(self) -> "Iterator[Family]":
        """Sets the gauges of topics to their present values first."""
        topics = self._engine.topics.all()
        lags: dict[tuple[str, ...], float] = {}
        unflushed_rows: dict[tuple[str, ...], float] = {}
        for topic in topics:
            feed = topic.find_feed()
            if feed is not None:
                with suppress(Closed):  # it was just lost
                    lags[topic.topic,], unflushed_rows[topic.topic,] = feed.lag, feed.unflushed_rows
        self.replace(DISK_BYTES, {(): self._engine.eviction.total_bytes})
        self.replace(SHAPES, {(topic.topic,): topic.shape_count for topic in topics})
        self.replace(READY, {(topic.topic,): (topic.topic,) in lags for topic in topics})
        self.replace(LAG, lags)
        self.replace(UNFLUSHED_ROWS, unflushed_rows)
        return super().collect()
