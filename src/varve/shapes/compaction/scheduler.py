"""Schedules the compaction of an engine's logs, and drops shapes that outgrow their rows.

Each shape is examined once a period, at a time with some jitter, so that shapes created together
are not compacted together. A log of which too little would be removed is examined again at twice
its size, so that useless reads stay a fraction of the writes.

Invariant  a shape in which deleted rows outweigh the present ones is dropped, so that its clients
           start with a snapshot of the present rows: the size of a log is bounded by its rows.
Threads    one thread runs the schedule; any thread may compact one shape.
"""

import logging
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from varve.foundation.errors import Closed, Corrupt, NotFound, StoreError, Unavailable
from varve.foundation.metrics import MetricTable
from varve.shapes.compaction.compactor import CompactionOutcome, CompactionReport, Compactor
from varve.shapes.metrics import COMPACTED_ENTRIES, COMPACTIONS, REMAINING_ENTRIES
from varve.shapes.settings import CompactionSettings
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.shape_storage import ShapeStorage

if TYPE_CHECKING:
    from varve.shapes.registry import ShapeRegistry
    from varve.shapes.removal import ShapeRemoval

logger = logging.getLogger(__name__)


class CompactionScheduler:
    """Compacts the logs of one engine, when they are due or on demand."""

    def __init__(
        self,
        registry: "ShapeRegistry",
        removal: "ShapeRemoval",
        *,
        settings: CompactionSettings,
        random: Random,
        metrics: MetricTable,
    ) -> None:
        self._registry = registry
        self._removal = removal
        self._settings = settings
        self._random = random
        self._metrics = metrics
        self.compactor = Compactor(settings, random)
        self._due_ms: dict[str, int] = {}
        self._bytes_min: dict[str, int] = {}

    def compact(self, shape: Shape, now_ms: int) -> CompactionReport:
        """Compacts all of a log that is durable; raises Closed if the engine closes meanwhile, and
        NotFound if the shape is dropped.

        It is dropped if it is damaged, or if the disk fails while the new log replaces the old one.
        """
        storage = shape.open()
        try:
            report = self.compactor.compact(storage, now_ms=now_ms, is_forced=True)
        except OSError as error:
            if shape.is_dropped:
                raise NotFound(
                    f"shape {shape.handle} was dropped while it was compacted"
                ) from error
            raise Unavailable(
                f"shape {shape.handle} was not compacted, and is as before: {error.filename}: "
                f"{error.strerror}; fix that and try again"
            ) from error
        except StoreError as error:
            if not _is_fatal(storage, error):
                raise
            self._handle_failure(storage, error)
            raise NotFound(
                f"shape {shape.handle} could not be compacted and was dropped: {error}"
            ) from error
        self._apply([report])
        return report

    def run_once(self, now_ms: int) -> list[CompactionReport]:
        """Examines every shape that is due; returns the reports of those whose log was read.

        A failure affects that shape alone. A round ends early with `end`.
        """
        reports = []
        storages = self._open_storages()
        for handle in self._take_due(storages.keys(), now_ms):
            if self.compactor.is_ended:
                break
            report = self._try_compact(storages[handle], now_ms)
            if report is not None and report.outcome is not CompactionOutcome.NOTHING:
                reports.append(report)
        self._apply(reports)
        return reports

    def _open_storages(self) -> dict[str, ShapeStorage]:
        return {
            shape.handle: storage
            for shape in self._registry.shapes()
            if shape.is_snapshot_complete and (storage := shape.find_storage()) is not None
        }

    def _try_compact(self, storage: ShapeStorage, now_ms: int) -> CompactionReport | None:
        try:
            return self._compact_if_worth(storage, now_ms)
        except (StoreError, OSError) as error:
            # A shape that is unavailable but can be written is being compacted on demand; after
            # `end` all are closed.
            if storage.failure is not None or not isinstance(error, Unavailable | Closed):
                self._handle_failure(storage, error)
            return None

    def _compact_if_worth(self, storage: ShapeStorage, now_ms: int) -> CompactionReport | None:
        target = storage.compaction_target(self._settings.keep_chunks)
        size = storage.live_bytes if target is None else target[1]
        bytes_min = self._bytes_min.get(storage.handle, 0)
        if size < (max(bytes_min, self._settings.min_bytes) if target is None else bytes_min):
            return None
        report = self.compactor.compact(storage, now_ms=now_ms)
        if report.outcome is CompactionOutcome.NOT_WORTH:
            self._bytes_min[storage.handle] = 2 * report.position
        else:
            self._bytes_min.pop(storage.handle, None)
        return report

    def _take_due(self, handles: Iterable[str], now_ms: int) -> list[str]:
        """The shapes to examine now; sets the next time of each."""
        open_handles = set(handles)
        for handle in self._due_ms.keys() - open_handles:
            del self._due_ms[handle]
            self._bytes_min.pop(handle, None)
        due = []
        for handle in sorted(open_handles):
            due_ms = self._due_ms.get(handle)
            if due_ms is not None and now_ms < due_ms:
                continue
            self._due_ms[handle] = now_ms + self._period_ms()
            if due_ms is not None:
                due.append(handle)
        return due

    def _period_ms(self) -> int:
        factor = 1 + self._settings.jitter * self._random.uniform(-1, 1)
        return max(1, round(self._settings.period_ms * factor))

    def _apply(self, reports: Iterable[CompactionReport]) -> None:
        """Counts compactions, and drops shapes that have outgrown their state."""
        for report in reports:
            self._metrics.add(COMPACTIONS, 1, report.outcome)
            self._metrics.add(COMPACTED_ENTRIES, report.balance.entries_in)
            self._metrics.add(REMAINING_ENTRIES, report.balance.entries_out)
            shape = self._registry.find(report.handle)
            if shape is not None and report.needs_new_snapshot(self._settings):
                self._removal.drop([shape], DropReason.OUTGROWN)

    def _handle_failure(self, storage: ShapeStorage, error: Exception) -> None:
        shape = self._registry.find(storage.handle)
        if shape is None:
            return  # dropped meanwhile, with its files
        logger.error(
            "compaction of a shape failed", exc_info=error, extra={"handle": storage.handle}
        )
        if _is_fatal(storage, error):
            self._removal.drop([shape], DropReason.STORAGE_FAILED)


def _is_fatal(storage: ShapeStorage, error: Exception) -> bool:
    """Whether a shape cannot be used after a compaction that failed."""
    return isinstance(error, Corrupt) or storage.failure is not None
