"""What the cleaner remembers of one log: its key indexes, its removal log, and its health.

Invariant  a failure is noted with the time of the next attempt, which doubles up to an hour. While
           the object store does not answer, cleaning of a tiered log waits a minute at a time: that
           is not a failure of the log, and its key indexes are built meanwhile.
Threads    the one that holds `is_busy`; `health`, `waits` and `look` are for any.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from varve.cleaning.compaction.cleanable_log import CleanableLog, CleaningBound
from varve.cleaning.key_index.segment_indexes import (
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    SegmentKeyIndexes,
    is_partition_failure,
    partition_failure,
)
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.report import PartitionHealth
from varve.cleaning.work_budget import WorkBudget
from varve.commit_log import Log
from varve.commit_log.log_directory import LogDirectory
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError, Unavailable, Unbalanced

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PartitionCleaner:
    """One log of the cleaner; `is_busy` is held by whoever works on it.

    `budget` is charged for every byte that its work reads and writes, and may raise to stop it.
    """

    log: Log
    directory: LogDirectory
    indexes: SegmentKeyIndexes
    removal_log: RemovalLog
    topic_id: bytes
    fs: FileSystem
    clock: Clock
    budget: WorkBudget
    buffer_bytes: int
    error: str | None = None
    failures: int = 0
    retry_ms: int | None = None
    waits_for: str = ""
    store_error: str | None = None
    store_retry_ms: int = 0
    is_busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def health(self) -> PartitionHealth:
        return PartitionHealth(
            self.log.topic_partition,
            tuple(self.indexes.holds.values()),
            self.error or self.store_error,
            self.failures,
            self.retry_ms if self.store_error is None else self.store_retry_ms,
            self.waits_for,
        )

    def waits(self, now_ms: int) -> bool:
        """Whether it failed, and the next attempt is not due yet."""
        return self.retry_ms is not None and now_ms < self.retry_ms

    def waits_for_store(self, now_ms: int) -> bool:
        """Whether the object store did not answer a short while ago."""
        return self.store_error is not None and now_ms < self.store_retry_ms

    def note_unknown_bounds(self, error: StoreError, now_ms: int) -> None:
        self.store_error = f"waits for the object store: {type(error).__name__}: {error}"
        self.store_retry_ms = now_ms + RETRY_MIN_MS
        logger.warning(
            "cleaning waits for the object store",
            extra={"partition": str(self.log.topic_partition), "error": str(error)},
        )

    def note_selection(self, log: CleanableLog) -> None:
        """The object store answers; what waits for the copy is shown in the health."""
        self.store_error = None
        self.waits_for = log.blocked_by if log.blocker is CleaningBound.COPY else ""

    def note_failure(self, error: Exception, now_ms: int) -> None:
        """Puts the next attempt off; an unexpected error is logged with its stack."""
        self.failures += 1
        self.error = f"{type(error).__name__}: {error}"
        self.retry_ms = now_ms + min(RETRY_MIN_MS << min(self.failures - 1, 20), RETRY_MAX_MS)
        logger.warning(
            "cleaning failed, will be tried again",
            extra={"partition": str(self.log.topic_partition), "error": str(error)},
            exc_info=None if isinstance(error, StoreError) else error,
        )

    def note_success(self) -> None:
        self.error, self.failures, self.retry_ms = None, 0, None

    @contextmanager
    def look(self, doing: str) -> Iterator[None]:
        """A missing file tells that the log changed meanwhile; other I/O errors are failures.

        Those of files that the log does not need are the partition's, others the directory's.
        """
        with self.directory.health.io(doing):
            try:
                yield
            except FileNotFoundError as error:
                self.indexes.forget()
                raise Unavailable(
                    f"{doing}: {error.filename} left the log meanwhile; try again"
                ) from error
            except OSError as error:
                if not is_partition_failure(error):
                    raise
                raise partition_failure(error, doing) from error

    @contextmanager
    def work(self, doing: str) -> Iterator[None]:
        """For the holder of `is_busy`: as `look`, and a wrong result deletes the key indexes.

        What does not add up may come from them: the next attempt builds them again.
        """
        with self.look(doing):
            try:
                yield
            except (Corrupt, Unbalanced):
                self.indexes.delete_all()
                raise
