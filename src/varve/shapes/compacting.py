"""Which of an engine's logs are compacted, and what follows from it.

Invariant  a shape in which what is gone outweighs what is there is dropped, so that its clients
           begin with a snapshot of what is there: a log stays bounded by its state.
Threads    one runs the schedule; any may ask for one shape.
"""

import logging
from collections.abc import Callable, Iterable
from random import Random

from varve.foundation.errors import Corrupt, NotFound, StoreError, Unavailable
from varve.foundation.metrics import MetricTable
from varve.shapes.catalog import Catalog
from varve.shapes.compaction.compact import Compactor
from varve.shapes.compaction.report import CompactionReport
from varve.shapes.compaction.schedule import CompactionSchedule
from varve.shapes.compaction.settings import CompactionSettings
from varve.shapes.metrics import COMPACTED_ENTRIES, COMPACTIONS, REMAINING_ENTRIES
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.storage import ShapeStorage

logger = logging.getLogger(__name__)


class Compacting:
    """The compactions of one engine."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        settings: CompactionSettings,
        random: Random,
        metrics: MetricTable,
        drop: Callable[[Shape, DropReason], None],
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._metrics = metrics
        self._drop = drop
        self._compactor = Compactor(settings, random)
        self._schedule = CompactionSchedule(
            self._compactor, self._open_storages, failed=self._failed, random=random
        )

    def compact(self, shape: Shape, now_ms: int) -> CompactionReport:
        """Compacts all of a log that is durable; raises Closed if the engine ends meanwhile, and
        NotFound if the shape goes.

        It goes if it is damaged, and if the disk fails while the new log is put in place.
        """
        storage = shape.open()
        try:
            report = self._compactor.compact(storage, now_ms=now_ms, is_forced=True)
        except OSError as error:
            if shape.is_dropped:
                raise NotFound(
                    f"shape {shape.handle} was dropped while it was compacted"
                ) from error
            raise Unavailable(
                f"shape {shape.handle} was not compacted, and is as before: {error.filename}: "
                f"{error.strerror}; mend that and try again"
            ) from error
        except StoreError as error:
            if not self._is_lost(storage, error):
                raise
            self._failed(storage, error)
            raise NotFound(
                f"shape {shape.handle} could not be compacted and was dropped: {error}"
            ) from error
        self._note([report])
        return report

    def run_once(self, now_ms: int) -> None:
        """Compacts the logs whose time has come."""
        self._note(self._schedule.run_once(now_ms))

    def end(self) -> None:
        """Lets those under way end soon, and none begin."""
        self._compactor.end()

    def join(self) -> None:
        """Returns when none is under way. Behind `end`."""
        self._compactor.join()

    def _note(self, reports: Iterable[CompactionReport]) -> None:
        for report in reports:
            self._metrics.add(COMPACTIONS, 1, report.outcome)
            self._metrics.add(COMPACTED_ENTRIES, report.balance.entries_in)
            self._metrics.add(REMAINING_ENTRIES, report.balance.entries_out)
            shape = self._catalog.find(report.handle)
            if shape is not None and report.is_to_be_made_anew(self._settings):
                self._drop(shape, DropReason.OUTGROWN)

    def _open_storages(self) -> list[ShapeStorage]:
        shapes = [shape for shape in self._catalog.shapes() if shape.is_snapshot_complete]
        found = [shape.find_storage() for shape in shapes]
        return [storage for storage in found if storage is not None]

    def _failed(self, storage: ShapeStorage, error: Exception) -> None:
        shape = self._catalog.find(storage.handle)
        if shape is None:
            return  # dropped meanwhile, with its files
        logger.error(
            "compaction of a shape failed", exc_info=error, extra={"handle": storage.handle}
        )
        if self._is_lost(storage, error):
            self._drop(shape, DropReason.STORAGE_FAILED)

    def _is_lost(self, storage: ShapeStorage, error: Exception) -> bool:
        """Whether a shape can go on no more after a compaction that failed."""
        return isinstance(error, Corrupt) or storage.failure is not None
