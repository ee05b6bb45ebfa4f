"""Brings a store to where its changelog is.

Invariant  the state does not depend on where the changelog is cut into batches, nor on how much of
           it was there already: entries are written under keys of their own.
Crash      goes on from the last checkpoint, or from the start; writing an entry again is harmless.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from varve.rocks.database import Put
from varve.windows.changelog import Changelog, ChangelogBatch
from varve.windows.segmented_store import SegmentedStore

BATCH_COUNT: Final = 10_000
"""Entries that are written together, at least, where there are so many."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far a restore has come: everything before `offset` is in the store."""

    offset: int
    end_offset: int
    written_count: int = 0
    expired_count: int = 0

    @property
    def lag(self) -> int:
        return self.end_offset - self.offset


def restore(
    store: SegmentedStore,
    changelog: Changelog,
    *,
    start_offset: int,
    on_progress: Callable[[RestoreProgress], None] | None = None,
    batch_count: int = BATCH_COUNT,
    count_max: int | None = None,
) -> RestoreProgress:
    """Write the changelog from `start_offset` on, to where it ends now, in big batches.

    With `count_max` it stops after about so many entries. Raises `OffsetOutOfRange` when the
    changelog does not reach back, or on, to the start.
    """
    if count_max is not None:
        batch_count = min(batch_count, count_max)
    end_offset = changelog.end_offset
    batches = changelog.read(start_offset)
    progress = RestoreProgress(start_offset, end_offset)
    for puts, next_offset in _gather(batches, batch_count):
        done = store.restore(puts)
        progress = RestoreProgress(
            offset=next_offset,
            end_offset=max(end_offset, next_offset),
            written_count=progress.written_count + done.written_count,
            expired_count=progress.expired_count + done.expired_count,
        )
        if on_progress is not None:
            on_progress(progress)
        if count_max is not None and _count(progress) >= count_max:
            return progress
    # Behind the last entry there may be offsets without one: holes, markers.
    return RestoreProgress(
        max(progress.offset, end_offset),
        max(progress.offset, end_offset),
        progress.written_count,
        progress.expired_count,
    )


def _gather(batches: Iterator[ChangelogBatch], count: int) -> Iterator[tuple[list[Put], int]]:
    """Join small batches until they have `count` entries."""
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


def _count(progress: RestoreProgress) -> int:
    return progress.written_count + progress.expired_count
