"""Metrics of a deduplication, by partition of its input.

Invariant  counters start with the process; the counts since the first run are in the progress.
Threads    one thread at a time calls `update`; any thread may collect.
"""

import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from varve.dedup.rules import Counts
from varve.dedup.task import TaskState
from varve.dedup.topics import DedupTopics
from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

_PARTITION: Final = ("name", "topic", "partition")

RECORDS = counter(
    "varve_dedup_records_total",
    "Records of the input that were judged and committed, by verdict.",
    unit="records",
    labels=(*_PARTITION, "verdict"),
)
POSITION = gauge(
    "varve_dedup_position",
    "The next offset of the input: all records below it are processed and committed.",
    unit="offset",
    labels=_PARTITION,
)
LAG = gauge(
    "varve_dedup_lag_records",
    "Committed offsets of the input that are not processed yet.",
    unit="records",
    labels=_PARTITION,
)
STREAM_TIME = gauge(
    "varve_dedup_stream_time_seconds",
    "The largest time of a record so far that is not from the future, in seconds since 1970.",
    unit="seconds",
    labels=_PARTITION,
)
RESTORE_LEFT = gauge(
    "varve_dedup_restore_left_records",
    "Offsets of the changelog that are not restored yet.",
    unit="records",
    labels=_PARTITION,
)


class DedupMetrics:
    """A collector for a registry of prometheus_client."""

    def __init__(self, topics: DedupTopics) -> None:
        self._labels = (topics.name, topics.input)
        self._table = MetricTable(declared_metrics(sys.modules[__name__]))
        self._last_counts: dict[int, Counts] = {}

    def update(self, state: TaskState) -> None:
        """Updates the metrics of a partition from its state."""
        labels = (*self._labels, str(state.partition))
        previous = self._last_counts.get(state.partition)
        self._last_counts[state.partition] = state.counts
        for field in fields(Counts):
            total = getattr(state.counts, field.name)
            added = total - getattr(state.counts if previous is None else previous, field.name)
            self._table.add(RECORDS, added, *labels, field.name)
        self._table.set(POSITION, state.position, *labels)
        self._table.set(LAG, state.lag, *labels)
        self._table.set(STREAM_TIME, max(0, state.stream_time_ms) / 1000, *labels)
        self._table.set(RESTORE_LEFT, max(0, state.restore_end - state.restored), *labels)

    def value(self, verdict: str, partition: int) -> int:
        """Records of a partition with this verdict, since the process began."""
        return int(self._table.value(RECORDS, *self._labels, str(partition), verdict))

    def collect(self) -> "Iterator[Family]":
        """Called by prometheus_client."""
        yield from self._table.collect()
