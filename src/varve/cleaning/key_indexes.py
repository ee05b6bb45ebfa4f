"""The key indexes of one log: opened where they are whole, built where they are not.

Invariant  an index is used only after its checksum was verified or it was built here. A segment
           whose data is damaged is held: it is tried again after a time that doubles.
Threads    one at a time; the cleaner gives a partition to one thread.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from varve.cleaning.key_index import KeyIndexHeader, open_key_index
from varve.cleaning.key_index_build import build_key_index
from varve.cleaning.report import SegmentHold
from varve.cleaning.segment_keys import SegmentKeys
from varve.commit_log import Log
from varve.commit_log.names import KEYS, LOG
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import first_batch_timestamp
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, UnsupportedFormat

logger = logging.getLogger(__name__)

RETRY_MIN_MS: Final = 60_000
RETRY_MAX_MS: Final = 3_600_000


class KeyIndexes:
    """Key indexes and held segments of one log."""

    def __init__(self, fs: FileSystem, log: Log, *, topic_id: bytes, buffer_bytes: int) -> None:
        self._fs = fs
        self._log = log
        self._topic_id = topic_id
        self._buffer_bytes = buffer_bytes
        self._known: dict[Segment, KeyIndexHeader] = {}
        self.holds: dict[int, SegmentHold] = {}
        self.healed: set[int] = set()
        """Base offsets of segments that were held, until a run has cleaned them too."""

    def find(self, segment: Segment) -> SegmentKeys | None:
        """The index of a segment if a whole one is there; builds nothing.

        A damaged one is removed.
        """
        path = segment.path(KEYS)
        header = self._known.get(segment)
        if header is not None and self._fs.exists(path):
            return SegmentKeys(self._fs, path, header)
        try:
            index = open_key_index(self._fs, segment, topic_id=self._topic_id)
            if index is None:
                return None
            with index:
                index.verify()
                header = index.header
        except (Corrupt, UnsupportedFormat) as error:
            logger.warning("key index removed", extra={"path": path, "error": str(error)})
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(path)
            return None
        self._known[segment] = header
        return SegmentKeys(self._fs, path, header)

    def ensure(
        self, segment: Segment, next_offset: int, now_ms: int, pace: Callable[[int], None]
    ) -> SegmentKeys | None:
        """The index of a decided segment, built if need be; None while the segment is held."""
        found = self.find(segment)
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
            self.hold(segment, str(error), now_ms)
            return None
        self._known[segment] = header
        self._release(segment)
        return SegmentKeys(self._fs, segment.path(KEYS), header)

    def _release(self, segment: Segment) -> None:
        if self.holds.pop(segment.base_offset, None) is not None:
            self.healed.add(segment.base_offset)

    def hold(self, segment: Segment, reason: str, now_ms: int) -> None:
        """Leaves a damaged segment alone until the next attempt is due."""
        known = self.holds.get(segment.base_offset)
        attempts = known.attempts + 1 if known else 1
        wait_ms = min(RETRY_MIN_MS << min(attempts - 1, 20), RETRY_MAX_MS)
        self._known.pop(segment, None)
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
        self._known[segment] = header

    def forget_vanished(self) -> None:
        """Drops what is known of segments that are no longer in the log."""
        closed = set(self._log.view.closed)
        bases = {segment.base_offset for segment in closed}
        self._known = {one: header for one, header in self._known.items() if one in closed}
        self.holds = {base: hold for base, hold in self.holds.items() if base in bases}
        self.healed &= bases

    def needs_run(self, now_ms: int) -> bool:
        """Whether a segment that was held can be cleaned, or may be by now."""
        return bool(self.healed) or any(hold.retry_ms <= now_ms for hold in self.holds.values())
