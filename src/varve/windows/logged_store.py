"""A window store's writes with a changelog: first to the segments, then to the log.

Invariant  only what was written is logged. The checkpoint names an offset up to which the
           changelog is on disk and in the segments.
Crash      what was written since the last `commit` may be missing in the changelog, so the input
           is read again from there. A store that is damaged, that was made with other settings or
           that the changelog does not reach any more is wiped and restored from the start.
Threads    one thread at a time.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from varve.foundation.errors import Corrupt, RecordTooLarge, StoreError
from varve.rocks.state_files import Checkpoint, Source
from varve.windows.changelog import Changelog, LoggedWrite
from varve.windows.restore import RestoreProgress, restore
from varve.windows.segmented_store import SegmentedStore

logger = logging.getLogger(__name__)

PENDING_COUNT_MAX: Final = 1_000


class LoggedStore:
    """Writes to the segments and, many at a time, to a changelog."""

    def __init__(
        self,
        store: SegmentedStore,
        changelog: Changelog,
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
        """Open the segments and bring them to where the changelog ends."""
        start_offset = open_or_wipe(self.store, self._changelog)
        self._pending = []
        progress = self._restore(start_offset)
        if not self._has_lost():
            return progress
        # A put dropped them that the changelog does not know of, so they are still to be seen.
        return self.rebuild(Corrupt("segments were dropped by a put that was not logged"))

    def rebuild(self, reason: StoreError) -> RestoreProgress:
        """Wipe an open store and restore it from the start: for damage that a read came upon."""
        self._append_pending()
        return self._restore(_open_wiped(self.store, self._changelog, reason))

    def put(
        self, key: bytes, value: bytes | None, time_ms: int, source: Source | None = None
    ) -> bool:
        size, size_max = len(key) + len(value or b""), self._changelog.write_bytes_max
        if size > size_max:
            raise RecordTooLarge(
                f"store {self.store.name}: an entry of {size} bytes is too large for the "
                f"changelog, which takes {size_max}: raise max.message.bytes of its topic"
            )
        was_written = self.store.put(key, value, time_ms, source)
        self._log(LoggedWrite(key, value, time_ms), was_written)
        return was_written

    def remove(self, key: bytes, time_ms: int) -> bool:
        was_written = self.store.remove(key, time_ms)
        self._log(LoggedWrite(key, None, time_ms), was_written)
        return was_written

    def commit(self) -> int:
        """Bring all writes to the changelog, and the changelog to the disk; gives its end.

        After this the input may be committed: a restore gives all that was put.
        """
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

    def _restore(self, start_offset: int) -> RestoreProgress:
        return restore(
            self.store,
            self._changelog,
            start_offset=start_offset,
            on_progress=self._on_progress,
        )

    def _has_lost(self) -> bool:
        is_strict = self.store.settings.strict_reference
        return not is_strict and bool(self.store.segments.lost_ids(self.store.stream_time_ms))

    def _log(self, write: LoggedWrite, was_written: bool) -> None:
        if was_written or self.store.settings.strict_reference:
            self._pending.append(write)
            if len(self._pending) >= self._pending_count_max:
                self._append_pending()

    def _append_pending(self) -> None:
        if self._pending:
            self._changelog.append(self._pending)
            self._pending = []


def open_or_wipe(store: SegmentedStore, changelog: Changelog) -> int:
    """Open a store, wiped where it is of no use; gives the offset at which to restore."""
    if store.settings.strict_reference:
        return _restore_offset(store.open(), changelog)
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
