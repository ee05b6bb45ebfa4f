"""The key indexes of one log: opened where they are whole, built where they are not.

Invariant  an index is used only after its checksum was verified or it was built here, and while
           it judges the transactions as the log does: a truncation may have taken a marker, and
           another one decided otherwise. A segment whose data is damaged is held: it is tried
           again after a time that doubles.
Threads    one at a time, to whom the cleaner gives the partition; but `find`, `holds` and
           `needs_run` are for any.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.cleaning.damage import hold_reason
from varve.cleaning.key_index import (
    BATCH_ABORTED,
    CONTROL_NONE,
    KeyIndexHeader,
    Table,
    open_key_index,
)
from varve.cleaning.key_index_build import build_key_index
from varve.cleaning.key_tables import aborted_table
from varve.cleaning.report import SegmentHold
from varve.cleaning.segment_keys import SegmentKeys
from varve.commit_log import Log
from varve.commit_log.names import KEYS, LOG
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import first_batch_timestamp
from varve.commit_log.txn_index import AbortedTransaction
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_marks import find_aborted
from varve.kernels.batch_scan import FIELD_COUNT, Field

logger = logging.getLogger(__name__)

RETRY_MIN_MS: Final = 60_000
RETRY_MAX_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class _Known:
    """An index that may be used, and the aborted transactions it was last compared with."""

    header: KeyIndexHeader
    aborted: Sequence[AbortedTransaction] | None = None


class KeyIndexes:
    """Key indexes and held segments of one log."""

    def __init__(self, fs: FileSystem, log: Log, *, topic_id: bytes, buffer_bytes: int) -> None:
        self._fs = fs
        self._log = log
        self._topic_id = topic_id
        self._buffer_bytes = buffer_bytes
        self._known: dict[Segment, _Known] = {}
        self.holds: dict[int, SegmentHold] = {}
        self.healed: set[int] = set()
        """Base offsets of segments that were held, until a run has cleaned them too."""

    def find(self, segment: Segment, next_offset: int) -> SegmentKeys | None:
        """The index of a decided segment if a whole one is there; builds nothing.

        One that is damaged, or judges transactions otherwise than the log, is removed.
        `next_offset` is where the next segment begins.
        """
        path = segment.path(KEYS)
        known = self._known.get(segment)
        try:
            if known is None or not self._fs.exists(path):
                known = self._open(segment)
            if known is None:
                return None
            if known.header.mark_count:
                known = self._compare(segment, next_offset, known)
        except (Corrupt, UnsupportedFormat) as error:
            logger.warning("key index removed", extra={"path": path, "error": str(error)})
            self._remove(segment)
            return None
        self._known[segment] = known
        return SegmentKeys(self._fs, path, known.header)

    def _open(self, segment: Segment) -> _Known | None:
        index = open_key_index(self._fs, segment, topic_id=self._topic_id)
        if index is None:
            return None
        with index:
            index.verify()
            return _Known(index.header)

    def _compare(self, segment: Segment, next_offset: int, known: _Known) -> _Known:
        aborted = self._log.collect_aborted(segment.base_offset, next_offset)
        if aborted == known.aborted:
            return known
        with SegmentKeys(self._fs, segment.path(KEYS), known.header).open() as index:
            if not _judges_alike(index.batches(), index.marks(), segment.base_offset, aborted):
                raise Corrupt("transactions were decided otherwise since it was made")
        return _Known(known.header, aborted)

    def _remove(self, segment: Segment) -> None:
        self._known.pop(segment, None)
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(segment.path(KEYS))

    def ensure(
        self, segment: Segment, next_offset: int, now_ms: int, pace: Callable[[int], None]
    ) -> SegmentKeys | None:
        """The index of a decided segment, built if need be; None while the segment is held."""
        found = self.find(segment, next_offset)
        if found is not None:
            self._release(segment)
            return found
        hold = self.holds.get(segment.base_offset)
        if hold is not None and now_ms < hold.retry_ms:
            return None
        aborted = self._log.collect_aborted(segment.base_offset, next_offset)
        try:
            header = build_key_index(
                self._fs,
                segment,
                topic_id=self._topic_id,
                aborted=aborted,
                buffer_bytes=self._buffer_bytes,
                pace=pace,
            )
        except (Corrupt, UnsupportedFormat) as error:
            self.hold(segment, hold_reason(error), now_ms)
            return None
        self._known[segment] = _Known(header, aborted)
        self._release(segment)
        return SegmentKeys(self._fs, segment.path(KEYS), header)

    def _release(self, segment: Segment) -> None:
        if self.holds.pop(segment.base_offset, None) is not None:
            self.healed.add(segment.base_offset)

    def hold(self, segment: Segment, reason: str, now_ms: int) -> None:
        """Leaves a damaged segment alone until the next attempt is due.

        Its index goes: it speaks of bytes that can no longer be read, and is the proof of health.
        """
        known = self.holds.get(segment.base_offset)
        attempts = known.attempts + 1 if known else 1
        wait_ms = min(RETRY_MIN_MS << min(attempts - 1, 20), RETRY_MAX_MS)
        self._remove(segment)
        oldest_ms: int | None = None
        with contextlib.suppress(Corrupt, UnsupportedFormat):
            oldest_ms = first_batch_timestamp(segment, size=segment.size)
        self.holds[segment.base_offset] = SegmentHold(
            base_offset=segment.base_offset,
            bytes_held=segment.size,
            oldest_ms=oldest_ms if oldest_ms is not None and oldest_ms >= 0 else None,
            reason=reason,
            since_ms=known.since_ms if known else now_ms,
            attempts=attempts,
            retry_ms=now_ms + wait_ms,
        )
        logger.warning(
            "segment held back from cleaning",
            extra={"path": segment.path(LOG), "error": reason, "attempts": attempts},
        )

    def learn(self, segment: Segment, header: KeyIndexHeader) -> None:
        """Takes the index that was written together with a new segment."""
        self._known[segment] = _Known(header)

    def distrust(self) -> None:
        """Removes all indexes, for what they told led to nonsense; they are built again."""
        for segment in self._log.view.closed:
            self._remove(segment)

    def forget(self) -> None:
        """Has all indexes verified again before they are used."""
        self._known = {}

    def forget_vanished(self) -> None:
        """Drops what is known of segments that are no longer in the log."""
        closed = set(self._log.view.closed)
        bases = {segment.base_offset for segment in closed}
        known = list(self._known.items())  # at once: a look-up may add to it meanwhile
        self._known = {segment: one for segment, one in known if segment in closed}
        self.holds = {base: hold for base, hold in self.holds.items() if base in bases}
        self.healed &= bases

    def doubt(self) -> None:
        """Every index is verified again before its next use."""
        self._known = {}

    def needs_run(self, now_ms: int) -> bool:
        """Whether a segment that was held can be cleaned, or may be by now."""
        holds = list(self.holds.values())
        return bool(self.healed) or any(hold.retry_ms <= now_ms for hold in holds)


def _judges_alike(
    batches: Table, marks: Table, base_offset: int, aborted: Sequence[AbortedTransaction]
) -> bool:
    """Whether the batches that are flagged are those of the aborted transactions.

    Emptied ones do not count: nobody judges by them any more.
    """
    numbers = marks["batch"]
    if len(numbers) and int(numbers.max()) >= len(batches):
        return False
    candidates = (marks["control"] == CONTROL_NONE) & (batches["count"][numbers] > 0)
    rows = np.zeros((len(marks), FIELD_COUNT), np.int64)
    rows[:, Field.PRODUCER_ID] = marks["producer_id"]
    rows[:, Field.BASE_OFFSET] = base_offset + batches["base"][numbers].astype(np.int64)
    found = np.empty(len(marks), np.uint8)
    find_aborted(rows, candidates.view(np.uint8), aborted_table(aborted), found)
    flagged = batches["flags"][numbers] & BATCH_ABORTED != 0
    return not bool(np.any(candidates & (flagged != (found != 0))))
