"""The writes of a window store: first to the segments, then to its changelog, if it has one.

Invariant  only what was written is logged. The checkpoint has an offset up to which the changelog
           is on disk and in the segments. The state does not depend on how the changelog is cut
           into batches, nor on how much of it was restored before: each entry has its own key.
Crash      what was written since the last `commit` may be missing in the changelog, so the input
           is read again from there. A store that is damaged, that was made with other settings or
           that the changelog does not reach any more is wiped and restored from the start. Without
           a changelog it has what the last checkpoint or flush brought to the disk, and damage
           raises `Corrupt`.
Threads    one thread at a time.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import Corrupt, RecordTooLarge, StoreError
from varve.rocks.database import Put
from varve.rocks.state_files import Checkpoint
from varve.windows.changelog import Changelog, ChangelogBatch, LoggedWrite
from varve.windows.segmented_store import SegmentedStore

logger = logging.getLogger(__name__)

PENDING_COUNT_MAX: Final = 1_000
BATCH_COUNT: Final = 10_000
"""Entries that a restore writes together."""
_NO_CHANGELOG_OFFSET: Final = 0


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of a restore: everything before `offset` is in the store."""

    offset: int
    end_offset: int
    written_count: int = 0
    expired_count: int = 0

    @property
    def lag(self) -> int:
        return self.end_offset - self.offset


class LoggedStore:
    """Writes to the segments and, many at a time, to a changelog; None writes to the segments."""

    def __init__(
        self,
        store: SegmentedStore,
        changelog: Changelog | None,
        *,
        on_progress: Callable[[RestoreProgress], None] | None = None,
        pending_count_max: int = PENDING_COUNT_MAX,
    ) -> None:
        self.store = store
        self._changelog = changelog
        self._on_progress = on_progress
        self._pending_count_max = pending_count_max
        self._pending: list[LoggedWrite] = []

    def open(self) -> RestoreProgress:
        """Opens the segments and restores them to the end of the changelog."""
        if self._changelog is None:
            self.store.open()
            return RestoreProgress(_NO_CHANGELOG_OFFSET, _NO_CHANGELOG_OFFSET)
        start_offset = _open_or_wipe(self.store, self._changelog)
        self._pending = []
        progress = self._restore(self._changelog, start_offset)
        if not self.store.segments.lost_ids(self.store.stream_time_ms):
            return progress
        # A put dropped them that the changelog does not know of, so they are still to be seen.
        return self.rebuild(Corrupt("segments were dropped by a put that was not logged"))

    def rebuild(self, reason: StoreError) -> RestoreProgress:
        """Wipes an open store and restores it from the start: for damage that a read found.

        Raises the reason where there is no changelog.
        """
        if self._changelog is None:
            raise reason
        self._append_pending()
        return self._restore(self._changelog, _open_wiped(self.store, self._changelog, reason))

    def put(self, key: bytes, value: bytes | None, time_ms: int) -> bool:
        if self._changelog is not None:
            self._check_size(len(key) + len(value or b""), self._changelog.write_bytes_max)
        was_written = self.store.put(key, value, time_ms)
        if was_written:
            self._log(LoggedWrite(key, value, time_ms))
        return was_written

    def remove(self, key: bytes, time_ms: int) -> bool:
        was_written = self.store.remove(key, time_ms)
        if was_written:
            self._log(LoggedWrite(key, None, time_ms))
        return was_written

    def commit(self) -> int:
        """Brings all writes to the changelog, and the changelog to the disk; returns its end.

        After this the input may be committed: a restore gives all that was put.
        """
        if self._changelog is None:
            return _NO_CHANGELOG_OFFSET
        self._append_pending()
        self._changelog.flush()
        return self._changelog.end_offset

    def flush(self) -> None:
        self.commit()
        self.store.flush()

    def checkpoint(self) -> Checkpoint:
        return self.store.checkpoint(self.commit())

    def close(self) -> None:
        """Checkpoint and close the segments; the changelog stays open, it has its own owner."""
        if not self.store.segments.is_open:
            return
        try:
            self.checkpoint()
        except BaseException:
            with contextlib.suppress(StoreError):
                self.store.close()
            raise
        self.store.close()

    def _restore(self, changelog: Changelog, start_offset: int) -> RestoreProgress:
        return restore(
            self.store, changelog, start_offset=start_offset, on_progress=self._on_progress
        )

    def _check_size(self, size: int, size_max: int) -> None:
        if size > size_max:
            raise RecordTooLarge(
                f"store {self.store.name}: an entry of {size} bytes is too large for the "
                f"changelog, which takes {size_max}: raise max.message.bytes of its topic"
            )

    def _log(self, write: LoggedWrite) -> None:
        if self._changelog is None:
            return
        self._pending.append(write)
        if len(self._pending) >= self._pending_count_max:
            self._append_pending()

    def _append_pending(self) -> None:
        if self._pending and self._changelog is not None:
            self._changelog.append(self._pending)
            self._pending = []


def _open_or_wipe(store: SegmentedStore, changelog: Changelog) -> int:
    """Opens a store, wiped where it cannot be used; returns the offset to restore from."""
    try:
        checkpoint = store.open()
    except Corrupt as error:
        return _open_wiped(store, changelog, error)
    offset = _restore_offset(checkpoint, changelog)
    if checkpoint is not None and offset != checkpoint.changelog_offset:
        store.close()
        return _open_wiped(store, changelog, _unreachable(checkpoint, changelog))
    return offset


def _restore_offset(checkpoint: Checkpoint | None, changelog: Changelog) -> int:
    """The checkpoint's, if the changelog has it, else the start."""
    start = changelog.start_offset
    if checkpoint is None or not start <= checkpoint.changelog_offset <= changelog.end_offset:
        return start
    return checkpoint.changelog_offset


def _unreachable(checkpoint: Checkpoint, changelog: Changelog) -> Corrupt:
    return Corrupt(
        f"checkpoint at changelog offset {checkpoint.changelog_offset}, but the changelog has "
        f"{changelog.start_offset} to {changelog.end_offset}"
    )


def _open_wiped(store: SegmentedStore, changelog: Changelog, reason: StoreError) -> int:
    logger.warning(
        "store is wiped and restored from its changelog",
        extra={"store": store.name, "reason": str(reason)},
    )
    store.wipe()
    store.open()
    return changelog.start_offset


def restore(
    store: SegmentedStore,
    changelog: Changelog,
    *,
    start_offset: int,
    on_progress: Callable[[RestoreProgress], None] | None = None,
    batch_count: int = BATCH_COUNT,
) -> RestoreProgress:
    """Writes the changelog from `start_offset` to its current end, in large batches.

    Raises `OffsetOutOfRange` when the changelog does not have the start.
    """
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
    # Behind the last entry there may be offsets without one: gaps, markers.
    return RestoreProgress(
        max(progress.offset, end_offset),
        max(progress.offset, end_offset),
        progress.written_count,
        progress.expired_count,
    )


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
