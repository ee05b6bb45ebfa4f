"""Builds the offset and the time index of a segment from its batches."""

import numpy as np
import numpy.typing as npt

from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.settings import LogSettings
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.foundation.errors import OffsetOverflow
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.batch_scan import (
    IndexBuildStatus,
    IndexState,
    build_index_entries,
    initial_index_state,
)


class SegmentIndexer:
    """Builds the indexes of one segment from its batches, table by table."""

    def __init__(self, base_offset: int, settings: LogSettings, where: str) -> None:
        self._settings = settings
        self._where = where
        self._state = initial_index_state(base_offset)
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.first_timestamp = -1
        self._offset_entries: list[npt.NDArray[np.int64]] = []
        self._time_entries: list[npt.NDArray[np.int64]] = []
        self.txn_index = TransactionIndex(base_offset)

    def add(self, table: BatchTable) -> int:
        """Takes the table's batches; gives how many.

        Fewer than all when the next one's offset does not ascend.

        Raises OffsetOverflow at a batch beyond the 32-bit range of the segment.
        """
        rows = table.rows
        if len(rows) and rows[0, BatchColumn.POSITION] == 0:
            self.first_timestamp = int(rows[0, BatchColumn.MAX_TIMESTAMP])
        offset_entries = np.empty((len(rows), 2), np.int64)
        time_entries = np.empty((len(rows), 2), np.int64)
        offset_count, time_count, status, done = build_index_entries(
            rows,
            self.base_offset,
            self._settings.index_interval_bytes,
            self._state,
            offset_entries,
            time_entries,
        )
        if status == IndexBuildStatus.OFFSET_OVERFLOW:
            raise OffsetOverflow(
                f"{self._where}: position {rows[done, BatchColumn.POSITION]}: last offset "
                f"{rows[done, BatchColumn.LAST_OFFSET]} lies beyond the 32-bit range of base "
                "offset "
                f"{self.base_offset}"
            )
        self._offset_entries.append(offset_entries[:offset_count])
        self._time_entries.append(time_entries[:time_count])
        if done:
            self.next_offset = int(rows[done - 1, BatchColumn.LAST_OFFSET]) + 1
        return done

    def offset_index(self) -> OffsetIndex:
        entries = np.concatenate([np.empty((0, 2), np.int64), *self._offset_entries])
        max_bytes = self._settings.segment_index_bytes
        return OffsetIndex.from_entries(entries, self.base_offset, max_bytes)

    def time_index(self) -> TimeIndex:
        """The time index with the final entry a closed segment has."""
        entries = np.concatenate([np.empty((0, 2), np.int64), *self._time_entries])
        state = self._state
        if state[IndexState.MAX_TIMESTAMP] > state[IndexState.INDEXED_TIMESTAMP]:
            final = state[[IndexState.MAX_TIMESTAMP, IndexState.MAX_TIMESTAMP_OFFSET]]
            entries = np.concatenate([entries, final.reshape(1, 2)])
        max_bytes = self._settings.segment_index_bytes
        return TimeIndex.from_entries(entries, self.base_offset, max_bytes)
