"""What the cleaner remembers of one log: its key indexes, its evidence, and how it fares.

Invariant  a failure is noted with the time of the next attempt, which doubles up to an hour. While
           the object store cannot tell the border of the cold tier, cleaning waits a minute at a
           time: that is no failure of the log, and its key indexes are built meanwhile.
Threads    the one that holds `is_busy`; `health`, `waits` and `look` are for any.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

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
from varve.commit_log import Log
from varve.commit_log.directory_failure import failures
from varve.commit_log.log_directory import LogDirectory
from varve.foundation.errors import Corrupt, StoreError, Unavailable, Unbalanced

logger = logging.getLogger(__name__)

_NONSENSE: Final = (Corrupt, Unbalanced, AssertionError, LookupError, ValueError, ArithmeticError)
"""What a key index that lies may lead to."""


@dataclass(slots=True)
class PartitionCleaner:
    """One log of the cleaner; `is_busy` is held by whoever works on it."""

    log: Log
    directory: LogDirectory
    indexes: SegmentKeyIndexes
    evidence: RemovalLog
    topic_id: bytes
    error: str | None = None
    failures: int = 0
    retry_ms: int | None = None
    waits_for: str = ""
    no_border: str | None = None
    border_retry_ms: int = 0
    is_busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def health(self) -> PartitionHealth:
        return PartitionHealth(
            self.log.topic_partition,
            tuple(self.indexes.holds.values()),
            self.error or self.no_border,
            self.failures,
            self.retry_ms if self.no_border is None else self.border_retry_ms,
            self.waits_for,
        )

    def waits(self, now_ms: int) -> bool:
        """Whether it failed, and the next attempt is not due yet."""
        return self.retry_ms is not None and now_ms < self.retry_ms

    def waits_for_border(self, now_ms: int) -> bool:
        """Whether nobody could tell the border of its cold tier a short while ago."""
        return self.no_border is not None and now_ms < self.border_retry_ms

    def note_no_border(self, error: StoreError, now_ms: int) -> None:
        self.no_border = f"waits for the object store: {type(error).__name__}: {error}"
        self.border_retry_ms = now_ms + RETRY_MIN_MS
        logger.warning(
            "cleaning waits for the object store",
            extra={"partition": str(self.log.topic_partition), "error": str(error)},
        )

    def note_selection(self, found: CleanableLog) -> None:
        """The border is known again; what waits for the copy is told in the health."""
        self.no_border = None
        self.waits_for = found.blocked_by if found.blocker is CleaningBound.COPY else ""

    def note_failure(self, error: Exception, now_ms: int) -> None:
        """Puts the next attempt off; an error that nobody foresaw is logged with its origin."""
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
        with failures(self.directory, doing):
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
        """For the holder of `is_busy`: as `look`, with the key indexes in doubt as well.

        What does not add up may come from them: the next attempt builds them again.
        """
        with self.look(doing):
            try:
                yield
            except _NONSENSE:
                self.indexes.distrust()
                raise
