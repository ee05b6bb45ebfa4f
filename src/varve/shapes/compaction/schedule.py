"""Which shapes are compacted when.

Each shape is looked at once a period, at a moment moved by chance, so that shapes made together are
not compacted together. One of which too little would go is looked at again when twice as much is
there: what is read in vain stays a part of what is written.

Threads    `run_once` by one thread.
"""

from collections.abc import Callable, Iterable
from random import Random

from varve.foundation.errors import Closed, StoreError, Unavailable
from varve.shapes.compaction.compact import Compactor
from varve.shapes.compaction.report import CompactionReport, Outcome
from varve.shapes.storage.storage import ShapeStorage

Storages = Callable[[], Iterable[ShapeStorage]]
"""The shapes that are open."""
Failed = Callable[[ShapeStorage, Exception], None]
"""Told of a shape whose compaction failed: one whose storage has failed is to be dropped."""


class CompactionSchedule:
    """Compacts what is due."""

    def __init__(
        self, compactor: Compactor, storages: Storages, *, failed: Failed, random: Random
    ) -> None:
        self._compactor = compactor
        self._storages = storages
        self._failed = failed
        self._random = random
        self._due_ms: dict[str, int] = {}
        self._wanted_bytes: dict[str, int] = {}

    def run_once(self, now_ms: int) -> list[CompactionReport]:
        """Looks at every shape whose time has come; the reports of those whose log was read.

        A failure is handed to `failed` and does not keep the others waiting. A round ends with the
        compactor.
        """
        reports = []
        storages = {storage.handle: storage for storage in self._storages()}
        for handle in self._take_due(storages.keys(), now_ms):
            if self._compactor.is_ended:
                break
            storage = storages[handle]
            try:
                report = self._look(storage, now_ms)
            except (StoreError, OSError) as error:
                # One that can be written to, and is unavailable, is being compacted on demand; all
                # are closed when the compactor has ended.
                if storage.failure is not None or not isinstance(error, Unavailable | Closed):
                    self._failed(storage, error)
                continue
            if report is not None and report.outcome is not Outcome.NOTHING:
                reports.append(report)
        return reports

    def _look(self, storage: ShapeStorage, now_ms: int) -> CompactionReport | None:
        settings = self._compactor.settings
        target = storage.compaction_target(settings.keep_chunks)
        size = storage.live_bytes if target is None else target[1]
        wanted = self._wanted_bytes.get(storage.handle, 0)
        if size < (max(wanted, settings.whole_bytes) if target is None else wanted):
            return None
        report = self._compactor.compact(storage, now_ms=now_ms)
        if report.outcome is Outcome.NOT_WORTH:
            self._wanted_bytes[storage.handle] = 2 * report.position
        else:
            self._wanted_bytes.pop(storage.handle, None)
        return report

    def _take_due(self, handles: Iterable[str], now_ms: int) -> list[str]:
        """The shapes to look at now, and when to look at each the next time."""
        known = set(handles)
        for handle in self._due_ms.keys() - known:
            del self._due_ms[handle]
            self._wanted_bytes.pop(handle, None)
        due = []
        for handle in sorted(known):
            due_ms = self._due_ms.get(handle)
            if due_ms is not None and now_ms < due_ms:
                continue
            self._due_ms[handle] = now_ms + self._period_ms()
            if due_ms is not None:
                due.append(handle)
        return due

    def _period_ms(self) -> int:
        settings = self._compactor.settings
        factor = 1 + settings.jitter * self._random.uniform(-1, 1)
        return max(1, round(settings.period_ms * factor))
