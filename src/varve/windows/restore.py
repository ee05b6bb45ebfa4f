"""Restores a window store from its changelog, from its checkpoint or from the start.

Invariant  the state depends neither on how the changelog is split into batches, nor on how much of
           it was restored before: each entry has its own key.
Crash      a store is wiped and restored from the start if it is damaged, was created with other
           settings, or has a checkpoint outside the changelog.
Threads    one thread at a time.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import Corrupt, StoreError
from varve.rocks.database import Put
from varve.windows.changelog import Changelog, ChangelogBatch
from varve.windows.segmented_store import SegmentedStore

logger = logging.getLogger(__name__)

BATCH_COUNT: Final = 10_000
"""Entries that a restore writes in one batch."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of a restore: the changelog before `offset` is in the store."""

    offset: int = 0
    end_offset: int = 0
    written_count: int = 0
    expired_count: int = 0

    @property
    def lag(self) -> int:
        return self.end_offset - self.offset


OnProgress = Callable[[RestoreProgress], None]


def open_restored(
    store: SegmentedStore, changelog: Changelog, on_progress: OnProgress | None
) -> RestoreProgress:
    """Opens the segments and restores them to the end of the changelog."""
    start = changelog.start_offset
    try:
        checkpoint = store.open()
    except Corrupt as error:
        return rebuild(store, changelog, error, on_progress)
    if checkpoint is not None:
        start = checkpoint.changelog_offset
        if not changelog.start_offset <= start <= changelog.end_offset:
            store.close()
            reason = Corrupt(
                f"checkpoint at changelog offset {start}, but the changelog has "
                f"{changelog.start_offset} to {changelog.end_offset}"
            )
            return rebuild(store, changelog, reason, on_progress)
    progress = restore(store, changelog, start_offset=start, on_progress=on_progress)
    if not store.segments.lost_ids(store.stream_time_ms):
        return progress
    # A put that was not logged dropped them: by the changelog their entries are still visible.
    reason = Corrupt("segments were dropped by a put that was not logged")
    return rebuild(store, changelog, reason, on_progress)


def rebuild(
    store: SegmentedStore,
    changelog: Changelog,
    reason: StoreError,
    on_progress: OnProgress | None,
) -> RestoreProgress:
    """Wipes a store, open or not, and restores it from the start."""
    logger.warning(
        "store is wiped and restored from its changelog",
        extra={"store": store.name, "reason": str(reason)},
    )
    store.wipe()
    store.open()
    start = changelog.start_offset
    return restore(store, changelog, start_offset=start, on_progress=on_progress)


def restore(
    store: SegmentedStore,
    changelog: Changelog,
    *,
    start_offset: int,
    on_progress: OnProgress | None = None,
    batch_count: int = BATCH_COUNT,
) -> RestoreProgress:
    """Writes the changelog from `start_offset` to its current end, in large batches.

    Raises `OffsetOutOfRange` when the changelog does not have the start.
    """
    end_offset = changelog.end_offset
    batches = changelog.read(start_offset)
    progress = RestoreProgress(start_offset, end_offset)
    for puts, next_offset in _gather(batches, batch_count):
        restored = store.restore(puts)
        progress = RestoreProgress(
            offset=next_offset,
            end_offset=max(end_offset, next_offset),
            written_count=progress.written_count + restored.written_count,
            expired_count=progress.expired_count + restored.expired_count,
        )
        if on_progress is not None:
            on_progress(progress)
    # Offsets after the last entry may hold none: gaps and control batches.
    end_offset = max(progress.offset, end_offset)
    return RestoreProgress(end_offset, end_offset, progress.written_count, progress.expired_count)


def _gather(batches: Iterator[ChangelogBatch], count: int) -> Iterator[tuple[list[Put], int]]:
    """Joins small batches until they have `count` entries."""
    puts: list[Put] = []
    next_offset = 0
    for batch in batches:
        puts += batch.puts
        next_offset = batch.next_offset
        if len(puts) >= count:
            yield puts, next_offset
            puts = []
    if puts:
        yield puts, next_offset
