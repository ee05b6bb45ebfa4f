"""Compares the entries of a segment's indexes with its batches, table by table.

Invariant  an offset entry sends a scan to a batch start, early perhaps but never late; a time entry
           names the earliest batch with the largest timestamp so far.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.finding import FindingList, Severity
from varve.commit_log.segment_reader import BatchTable
from varve.kernels.batch_layout import BatchColumn

REBUILD: Final = "rebuild the index from its segment"

_UNSEEN: Final = -(2**63)
_FAR: Final = 2**62

Integers = npt.NDArray[np.int64]


class OffsetEntryCheck:
    """The entries of one offset index."""

    def __init__(self, entries: Integers) -> None:
        self.offsets = entries[:, 0]
        self.positions = entries[:, 1]
        count = len(entries)
        self._first_offsets = np.full(count, _UNSEEN, np.int64)
        self._last_offsets = np.full(count, _UNSEEN, np.int64)
        self._end_positions = np.full(count, _UNSEEN, np.int64)

    def observe(self, table: BatchTable) -> None:
        """Notes what the table's batches say about the entries."""
        rows = table.rows
        positions = rows[:, BatchColumn.POSITION]
        slots, hits = _matches(self.positions, positions)
        self._first_offsets[slots] = rows[hits, BatchColumn.BASE_OFFSET]
        self._last_offsets[slots] = rows[hits, BatchColumn.LAST_OFFSET]
        slots, hits = _matches(self.offsets, rows[:, BatchColumn.LAST_OFFSET])
        self._end_positions[slots] = positions[hits]

    def judge(self, found: FindingList, path: str, severity: Severity, *, end: int) -> None:
        """Adds what is wrong. Entries from `end` on were not compared and are passed over."""
        self._judge_order(found, path, severity)
        is_start = self._last_offsets != _UNSEEN
        known = self.positions < end
        for slot in np.flatnonzero(known & ~is_start).tolist():
            message = f"entry for offset {self.offsets[slot]}: no batch begins at its position"
            self._add(found, path, severity, "index-position", message, slot)
        next_positions = np.append(self.positions[1:], _FAR)
        ends_here = self._last_offsets == self.offsets
        # An append of several batches is indexed by its first position and its last offset.
        ends_later = (self._end_positions >= self.positions) & (
            self._end_positions < next_positions
        )
        for slot in np.flatnonzero(known & is_start & ~ends_here & ~ends_later).tolist():
            message = (
                f"entry names offset {self.offsets[slot]}, the batch there holds "
                f"{self._first_offsets[slot]}..{self._last_offsets[slot]}"
            )
            self._add(found, path, severity, "index-offset", message, slot)

    def _judge_order(self, found: FindingList, path: str, severity: Severity) -> None:
        falls = (np.diff(self.offsets) <= 0) | (np.diff(self.positions) <= 0)
        for slot in np.flatnonzero(falls).tolist():
            message = (
                f"entry ({self.offsets[slot + 1]}, {self.positions[slot + 1]}) does not ascend "
                f"from ({self.offsets[slot]}, {self.positions[slot]})"
            )
            self._add(found, path, severity, "index-order", message, slot + 1)

    def _add(
        self,
        found: FindingList,
        path: str,
        severity: Severity,
        rule: str,
        message: str,
        slot: int,
    ) -> None:
        found.add(severity, path, rule, message, position=slot * 8, repair=REBUILD)


class TimeEntryCheck:
    """The entries of one time index."""

    def __init__(self, entries: Integers) -> None:
        self.timestamps = entries[:, 0]
        self.offsets = entries[:, 1]
        count = len(entries)
        self._batch_timestamps = np.full(count, _UNSEEN, np.int64)
        self._earlier_timestamps = np.full(count, _UNSEEN, np.int64)
        self._last_offset = _UNSEEN
        self.max_timestamp = -1
        self.max_timestamp_offset = -1

    def observe(self, table: BatchTable) -> None:
        rows = table.rows
        timestamps = rows[:, BatchColumn.MAX_TIMESTAMP]
        last_offsets = rows[:, BatchColumn.LAST_OFFSET]
        before = np.empty(len(rows), np.int64)
        before[0] = self.max_timestamp
        np.maximum(np.maximum.accumulate(timestamps[:-1]), self.max_timestamp, out=before[1:])
        slots, hits = _matches(self.offsets, last_offsets)
        self._batch_timestamps[slots] = timestamps[hits]
        self._earlier_timestamps[slots] = before[hits]
        latest = int(np.argmax(timestamps))
        if timestamps[latest] > self.max_timestamp:
            self.max_timestamp = int(timestamps[latest])
            self.max_timestamp_offset = int(last_offsets[latest])
        self._last_offset = int(last_offsets[-1])

    def judge(self, found: FindingList, path: str, severity: Severity, *, is_whole: bool) -> None:
        """Adds what is wrong; with `is_whole` every batch of the segment was observed."""
        falls = (np.diff(self.timestamps) <= 0) | (np.diff(self.offsets) < 0)
        for slot in np.flatnonzero(falls).tolist():
            message = (
                f"entry ({self.timestamps[slot + 1]}, {self.offsets[slot + 1]}) does not ascend "
                f"from ({self.timestamps[slot]}, {self.offsets[slot]})"
            )
            self._add(found, path, severity, "timeindex-order", message, slot + 1)
        known = np.full(len(self.offsets), is_whole) | (self.offsets <= self._last_offset)
        is_end = self._batch_timestamps != _UNSEEN
        for slot in np.flatnonzero(known & ~is_end).tolist():
            message = f"no batch ends at the entry's offset {self.offsets[slot]}"
            self._add(found, path, severity, "timeindex-offset", message, slot)
        is_true = (self._batch_timestamps == self.timestamps) & (
            self._earlier_timestamps < self.timestamps
        )
        for slot in np.flatnonzero(known & is_end & ~is_true).tolist():
            message = (
                f"entry says that {self.timestamps[slot]} is first reached by the batch that ends "
                f"at offset {self.offsets[slot]}; that batch reaches "
                f"{self._batch_timestamps[slot]}, those before it {self._earlier_timestamps[slot]}"
            )
            self._add(found, path, severity, "timeindex-timestamp", message, slot)

    @property
    def lags(self) -> bool:
        """Whether the segment's largest timestamp is not in the index."""
        last = int(self.timestamps[-1]) if len(self.timestamps) else -1
        return last < self.max_timestamp

    def _add(
        self,
        found: FindingList,
        path: str,
        severity: Severity,
        rule: str,
        message: str,
        slot: int,
    ) -> None:
        found.add(severity, path, rule, message, position=slot * 12, repair=REBUILD)


def _matches(
    wanted: Integers, ascending: Integers
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Which of the wanted values stand in the ascending ones, and where."""
    near = np.flatnonzero((wanted >= ascending[0]) & (wanted <= ascending[-1]))
    places = np.minimum(np.searchsorted(ascending, wanted[near]), len(ascending) - 1)
    hit = ascending[places] == wanted[near]
    return near[hit], places[hit]
