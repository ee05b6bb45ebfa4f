"""Tells the metrics, where there are any, what the cleaner saw and did."""

from collections.abc import Mapping, Sequence

from varve.cleaning.compaction.cleanable_log import CleanableLog
from varve.cleaning.metrics import CleanerMetrics
from varve.cleaning.report import CleanReport, PartitionHealth
from varve.foundation.worker import WorkerHealth


class CleanerObserver:
    """The cleaner's side of its metrics, which may be left out."""

    def __init__(self, metrics: CleanerMetrics | None) -> None:
        self._metrics = metrics

    def note_report(self, report: CleanReport, thread: int) -> None:
        if self._metrics is not None:
            self._metrics.observe_clean(report, thread=thread)

    def note_selection(self, found: Sequence[CleanableLog], now_ms: int) -> None:
        if self._metrics is not None:
            self._metrics.observe_selection(
                now_ms=now_ms,
                max_dirty_ratio=max((one.ratio for one in found), default=0.0),
                max_delay_ms=max((one.delay_ms for one in found), default=0),
            )

    def note_health(
        self, by_path: Mapping[str, Sequence[PartitionHealth]], workers: Sequence[WorkerHealth]
    ) -> None:
        """How cleaning fares with the partitions of each log directory."""
        if self._metrics is not None:
            dead = sum(not worker.is_running for worker in workers)
            self._metrics.set_health(by_path, dead_threads=dead)
