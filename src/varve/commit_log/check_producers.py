"""Replays the batches of a partition and compares snapshots and aborted transactions with it.

Invariant  what cannot be known is not judged: before the log's first batch, behind gaps that
           compaction left, and for producers that may have expired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from varve.commit_log.finding import FindingList
from varve.commit_log.producer_entry import NONE, ProducerEntry
from varve.commit_log.producer_replay import replay_batches
from varve.commit_log.producer_snapshot import SnapshotEntry
from varve.commit_log.producer_state import ProducerStates
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.txn_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn

_NEVER_MS: Final = 2**62
REMOVE_SNAPSHOT: Final = "remove the snapshot; producer state is rebuilt from the batches"


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A snapshot file that could be read."""

    path: str
    data: bytes
    entries: list[SnapshotEntry]


@dataclass(slots=True)
class ProducerCheck:
    """Producer state as the batches tell it, and what the snapshots make of it."""

    found: FindingList
    snapshots: Mapping[int, KnownSnapshot]
    now_ms: int
    expiration_ms: int
    states: ProducerStates = field(default_factory=ProducerStates)
    is_complete: bool = False
    has_gaps: bool = False
    _next_offset: int = -1
    _log_start_offset: int = 0
    _pending: list[int] = field(default_factory=list)

    def begin(self, first_base_offset: int, log_start_offset: int) -> None:
        """Starts at the first segment: from nothing, or from the snapshot taken there."""
        self._next_offset = first_base_offset
        self._log_start_offset = log_start_offset
        self._pending = sorted(o for o in self.snapshots if o > first_base_offset)
        first = self.snapshots.get(first_base_offset)
        if first is not None:
            self.states.load_snapshot(first.data, 0, _NEVER_MS, first.path)
        begins_here = first_base_offset == 0 or first is not None
        self.is_complete = begins_here and log_start_offset <= first_base_offset

    @property
    def is_exact(self) -> bool:
        """Whether the replayed state is all there is to know."""
        return self.is_complete and not self.has_gaps

    def observe(self, table: BatchTable, txn_index: TransactionIndex, path: str) -> None:
        """Replays a table, stopping at every snapshot on the way to compare it."""
        self._note_gaps(table)
        bases = table.rows[:, BatchColumn.BASE_OFFSET]
        start = 0
        while start < len(table.rows):
            self._compare_up_to(int(bases[start]))
            end = len(table.rows)
            if self._pending:
                end = max(int(np.searchsorted(bases, self._pending[0])), start + 1)
            part = BatchTable(table.rows[start:end], table.buffer, table.start, table.end)
            try:
                replay_batches(part, self.states, txn_index, where=path)
            except Corrupt as error:
                message = str(error).removeprefix(f"{path}: ")
                self.found.error(path, "control-batch", message)
                self.is_complete = False
            start = end

    def _note_gaps(self, table: BatchTable) -> None:
        rows = table.rows
        lasts = rows[:, BatchColumn.LAST_OFFSET]
        counts = lasts - rows[:, BatchColumn.BASE_OFFSET] + 1
        expected = np.concatenate([[self._next_offset], lasts[:-1] + 1])
        has_gap = (rows[:, BatchColumn.BASE_OFFSET] != expected).any()
        if has_gap or (rows[:, BatchColumn.RECORD_COUNT] != counts).any():
            self.has_gaps = True
        self._next_offset = int(lasts[-1]) + 1

    def finish(self, end_offset: int) -> None:
        """Compares the snapshots up to the log end; names those beyond it."""
        self._compare_up_to(end_offset)
        for offset in self._pending:
            path = self.snapshots[offset].path
            message = f"snapshot at offset {offset}, the log ends at {end_offset}"
            self.found.warning(path, "snapshot-beyond-end", message, repair=REMOVE_SNAPSHOT)
        self._pending = []

    def _compare_up_to(self, offset: int) -> None:
        while self._pending and self._pending[0] <= offset:
            at = self._pending.pop(0)
            snapshot = self.snapshots[at]
            for entry in snapshot.entries:
                self._compare_entry(snapshot.path, at, entry)
            self._find_missing(snapshot, at)

    def _compare_entry(self, path: str, at: int, entry: SnapshotEntry) -> None:
        latest = max(entry.last_offset, entry.transaction_first_offset)
        if latest >= at:
            message = f"producer {entry.producer_id} has offset {latest} in a snapshot up to {at}"
            self.found.error(path, "snapshot-untrue", message, repair=REMOVE_SNAPSHOT)
            return
        replayed = self.states.entries.get(entry.producer_id)
        if replayed is None:
            if self.is_exact:
                message = f"producer {entry.producer_id} never wrote to this log"
                self.found.error(path, "snapshot-untrue", message, repair=REMOVE_SNAPSHOT)
            return
        difference = self._difference(entry, replayed)
        if difference:
            message = f"producer {entry.producer_id}: {difference}"
            self.found.error(path, "snapshot-untrue", message, repair=REMOVE_SNAPSHOT)

    def _difference(self, entry: SnapshotEntry, replayed: ProducerEntry) -> str:
        """How a snapshot's producer differs from the replayed one; empty when it does not."""
        pairs = [("epoch", entry.epoch, replayed.epoch)] if not self.has_gaps else []
        last = replayed.batches[-1] if replayed.batches and not self.has_gaps else None
        # Loading starts at the log start: a producer whose data lies below may be known by markers.
        is_deleted = last is not None and last.last_offset < self._log_start_offset
        # A producer that was forgotten may be known again by a marker alone.
        is_forgotten = last is not None and (
            entry.timestamp - last.timestamp >= self.expiration_ms
            or self.now_ms - last.timestamp >= self.expiration_ms
        )
        is_unknown = entry.last_offset == NONE and (is_deleted or is_forgotten)
        if last is not None and not is_unknown:
            pairs += [
                ("last sequence", entry.last_sequence, last.last_sequence),
                ("last offset", entry.last_offset, last.last_offset),
                ("offset delta", entry.offset_delta, last.offset_delta),
            ]
        if self.is_exact:
            open_since = replayed.transaction_first_offset
            pairs.append(
                (
                    "open transaction",
                    entry.transaction_first_offset,
                    NONE if open_since is None else open_since,
                )
            )
            # One that was forgotten and came back has no marker of its present life.
            if entry.coordinator_epoch != NONE:
                known = replayed.coordinator_epoch
                pairs.append(("coordinator epoch", entry.coordinator_epoch, known))
        return ", ".join(
            f"{name} {stored}, the batches say {true}"
            for name, stored, true in pairs
            if stored != true
        )

    def _find_missing(self, snapshot: KnownSnapshot, at: int) -> None:
        if not self.is_exact:
            return
        listed = {entry.producer_id for entry in snapshot.entries}
        for producer_id, entry in self.states.entries.items():
            if producer_id in listed or entry.is_expired(self.now_ms, self.expiration_ms):
                continue
            message = f"producer {producer_id} wrote before offset {at} and is not in the snapshot"
            self.found.warning(
                snapshot.path, "snapshot-incomplete", message, repair=REMOVE_SNAPSHOT
            )

    def compare_live(self, live: ProducerStates, path: str) -> None:
        """Compares the state an open log holds in memory."""
        for producer_id, replayed in self.states.entries.items():
            entry = live.entries.get(producer_id)
            if entry is None:
                if self.is_exact and not replayed.is_expired(self.now_ms, self.expiration_ms):
                    message = f"producer {producer_id} is not known in memory"
                    self.found.error(path, "producer-state", message)
                continue
            difference = self._difference(_as_snapshot(entry), replayed)
            if difference:
                message = f"producer {producer_id} in memory: {difference}"
                self.found.error(path, "producer-state", message)


def _as_snapshot(entry: ProducerEntry) -> SnapshotEntry:
    last = entry.batches[-1] if entry.batches else None
    open_since = entry.transaction_first_offset
    return SnapshotEntry(
        producer_id=entry.producer_id,
        epoch=entry.epoch,
        last_sequence=NONE if last is None else last.last_sequence,
        last_offset=NONE if last is None else last.last_offset,
        offset_delta=0 if last is None else last.offset_delta,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        transaction_first_offset=NONE if open_since is None else open_since,
    )


def find_txn_difference(
    stored: list[AbortedTransaction],
    replayed: list[AbortedTransaction],
    *,
    base_offset: int,
    next_offset: int,
    is_exact: bool,
) -> str | None:
    """What is wrong with a segment's aborted transactions; None when nothing is known to be."""
    if is_exact:
        if stored == replayed:
            return None
        for slot, (one, other) in enumerate(zip(stored, replayed, strict=False)):
            if one != other:
                return f"entry {slot} is {one}, the batches say {other}"
        return f"{len(stored)} entries, the batches say {len(replayed)}"
    previous = NONE
    for entry in stored:
        is_inside = base_offset <= entry.last_offset < next_offset
        if not is_inside or not 0 <= entry.first_offset <= entry.last_offset:
            return f"{entry} does not lie in {base_offset}..{next_offset - 1}"
        if entry.last_offset <= previous:
            return f"markers do not ascend at offset {entry.last_offset}"
        previous = entry.last_offset
    return None
