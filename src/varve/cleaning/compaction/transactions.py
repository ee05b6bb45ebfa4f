"""Follows transactions through a cleaning run and finds the markers that are no longer needed.

A marker is needed while a batch of its transaction exists. A batch that is seen in this run keeps
its marker, even if the run removes the batch. From an offset on, readers of the remote tier may
need markers, whose batches a local run does not see.

Invariant  all segments of a run are added once, in offset order. An aborted transaction is kept
           while its marker is needed. From the first held segment on all markers stay: their
           transactions may have records in it.
Threads    one; a run has its own.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.settings import LONG_MAX
from varve.kernels.batch_layout import CONTROL_BIT, TRANSACTIONAL_BIT
from varve.records.control import ControlType

Table = npt.NDArray[Any]
"""Rows of a key index: its batches or its marks. docs/reference/formats/keys.md"""


@dataclass(frozen=True, slots=True)
class MarkVerdicts:
    """Of one segment: per mark whether its marker is discardable, False for a data batch.

    `aborted_kept` goes into the transaction index of the segment that replaces this one.
    """

    discardable: npt.NDArray[np.bool_]
    aborted_kept: list[AbortedTransaction]


class TransactionTracker:
    """The transactions of a run; `aborted` are those that touch its range, in any order.

    Markers at `keep_markers_from_offset` and after it are all needed, and nothing is judged in
    segments from `first_held_offset` on.
    """

    def __init__(
        self,
        aborted: Sequence[AbortedTransaction],
        keep_markers_from_offset: int = LONG_MAX,
        first_held_offset: int = LONG_MAX,
    ) -> None:
        self._kept_from = keep_markers_from_offset
        self._held_from = first_held_offset
        self._aborted = sorted(aborted, key=lambda transaction: transaction.first_offset)
        self._begun = 0
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen_aborted: set[int] = set()
        self._seen_committed: set[int] = set()
        self._next_offset = -1

    def judge(
        self, base_offset: int, next_offset: int, batches: Table, marks: Table
    ) -> MarkVerdicts:
        """Judges the marks of the next segment, which ends before `next_offset`."""
        assert base_offset >= self._next_offset, "segments of a run are fed in offset order"
        if base_offset >= self._held_from:
            decided = self._decided_between(base_offset, next_offset)
            return MarkVerdicts(np.zeros(len(marks), np.bool_), decided)
        numbers = marks["batch"]
        attributes = batches["attributes"][numbers]
        verdicts = MarkVerdicts(np.zeros(len(marks), np.bool_), [])
        rows = zip(
            (base_offset + batches["last"][numbers].astype(np.int64)).tolist(),
            (attributes & CONTROL_BIT != 0).tolist(),
            (attributes & TRANSACTIONAL_BIT != 0).tolist(),
            (batches["count"][numbers] == 0).tolist(),
            marks["control"].tolist(),
            marks["producer_id"].tolist(),
            strict=True,
        )
        for slot, (last, is_control, is_transactional, is_empty, control, producer_id) in enumerate(
            rows
        ):
            self._begin_up_to(last)
            if is_control:
                verdicts.discardable[slot] = is_empty or self._is_discardable(
                    control, producer_id, verdicts.aborted_kept, is_kept=last >= self._kept_from
                )
            elif is_transactional:
                self._see(producer_id)
        if len(batches):
            self._next_offset = base_offset + int(batches["last"][-1]) + 1
        return verdicts

    def _decided_between(self, start: int, end: int) -> list[AbortedTransaction]:
        return [
            transaction for transaction in self._aborted if start <= transaction.last_offset < end
        ]

    def fork(self, base_offset: int, next_offset: int) -> "TransactionTracker":
        """A tracker that can judge only the next segment, for another process."""
        fork = TransactionTracker((), self._kept_from, self._held_from)
        if base_offset >= self._held_from:
            fork._aborted = self._decided_between(base_offset, next_offset)
            return fork
        end = bisect_left(
            self._aborted, next_offset, key=lambda transaction: transaction.first_offset
        )
        fork._aborted = self._aborted[self._begun : end]
        fork._ongoing = dict(self._ongoing)
        fork._seen_aborted = set(self._seen_aborted)
        fork._seen_committed = set(self._seen_committed)
        fork._next_offset = self._next_offset
        return fork

    def _begin_up_to(self, offset: int) -> None:
        """Aborted transactions that have begun are ongoing until their producer's next ABORT."""
        aborted = self._aborted
        while self._begun < len(aborted) and aborted[self._begun].first_offset <= offset:
            transaction = aborted[self._begun]
            self._ongoing.setdefault(transaction.producer_id, transaction)
            self._begun += 1

    def _see(self, producer_id: int) -> None:
        if producer_id in self._ongoing:
            self._seen_aborted.add(producer_id)
        else:
            self._seen_committed.add(producer_id)

    def _is_discardable(
        self,
        control: int,
        producer_id: int,
        aborted_kept: list[AbortedTransaction],
        *,
        is_kept: bool,
    ) -> bool:
        """Whether a marker is discardable; ends its producer's transaction."""
        if control == ControlType.ABORT:
            transaction = self._ongoing.pop(producer_id, None)
            is_needed = is_kept or producer_id in self._seen_aborted
            if transaction is None or not is_needed:
                return not is_kept
            self._seen_aborted.discard(producer_id)
            aborted_kept.append(transaction)
            return False
        if control == ControlType.COMMIT:
            is_needed = is_kept or producer_id in self._seen_committed
            self._seen_committed.discard(producer_id)
            return not is_needed
        return False
