"""Replays the batches of a partition and compares snapshots, aborted transactions and epochs.

Invariant  a difference is reported only if the batches prove it: not before the log's first batch,
           not after gaps that compaction left, not for producers that may have expired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from varve.commit_log.check.findings import FindingList
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.offset_checkpoints import decode_checkpoint
from varve.commit_log.producer_snapshots import SnapshotEntry, load_snapshot, replay_batches
from varve.commit_log.producer_state import NONE, ProducerStateEntry, ProducerStateManager
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn

_NEVER_MS: Final = 2**62
REMOVE_SNAPSHOT: Final = "remove the snapshot; producer state is rebuilt from the batches"


@dataclass(frozen=True, slots=True)
class ProducerSnapshotFile:
    """A readable snapshot file."""

    path: str
    data: bytes
    entries: list[SnapshotEntry]


@dataclass(slots=True)
class ProducerCheck:
    """Compares the producer state of the batches with the snapshots."""

    findings: FindingList
    snapshots: Mapping[int, ProducerSnapshotFile]
    now_ms: int
    expiration_ms: int
    states: ProducerStateManager = field(default_factory=ProducerStateManager)
    is_complete: bool = False
    has_gaps: bool = False
    _next_offset: int = -1
    _log_start_offset: int = 0
    _pending: list[int] = field(default_factory=list)

    def begin(self, first_base_offset: int, log_start_offset: int) -> None:
        """Starts at the first segment, with its snapshot if there is one, else empty."""
        self._next_offset = first_base_offset
        self._log_start_offset = log_start_offset
        self._pending = sorted(o for o in self.snapshots if o > first_base_offset)
        first = self.snapshots.get(first_base_offset)
        if first is not None:
            load_snapshot(self.states, first.data, where=first.path)
        begins_here = first_base_offset == 0 or first is not None
        self.is_complete = begins_here and log_start_offset <= first_base_offset

    @property
    def is_exact(self) -> bool:
        """Whether the replayed state is complete."""
        return self.is_complete and not self.has_gaps

    def observe(self, table: BatchTable, txn_index: TransactionIndex, path: str) -> None:
        """Replays a table, and compares every snapshot when the replay reaches its offset."""
        self._record_gaps(table)
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
                self.findings.error(path, "control-batch", message)
                self.is_complete = False
            start = end

    def _record_gaps(self, table: BatchTable) -> None:
        rows = table.rows
        lasts = rows[:, BatchColumn.LAST_OFFSET]
        counts = lasts - rows[:, BatchColumn.BASE_OFFSET] + 1
        expected = np.concatenate([[self._next_offset], lasts[:-1] + 1])
        has_gap = (rows[:, BatchColumn.BASE_OFFSET] != expected).any()
        if has_gap or (rows[:, BatchColumn.RECORD_COUNT] != counts).any():
            self.has_gaps = True
        self._next_offset = int(lasts[-1]) + 1

    def finish(self, end_offset: int) -> None:
        """Compares the snapshots up to the log end; reports those beyond it."""
        self._compare_up_to(end_offset)
        for offset in self._pending:
            path = self.snapshots[offset].path
            message = f"snapshot at offset {offset}, the log ends at {end_offset}"
            self.findings.warning(path, "snapshot-beyond-end", message, repair=REMOVE_SNAPSHOT)
        self._pending = []

    def _compare_up_to(self, offset: int) -> None:
        while self._pending and self._pending[0] <= offset:
            snapshot_offset = self._pending.pop(0)
            snapshot = self.snapshots[snapshot_offset]
            for entry in snapshot.entries:
                self._compare_entry(snapshot.path, snapshot_offset, entry)
            self._report_missing(snapshot, snapshot_offset)

    def _compare_entry(self, path: str, snapshot_offset: int, entry: SnapshotEntry) -> None:
        latest = max(entry.last_offset, entry.transaction_first_offset)
        if latest >= snapshot_offset:
            message = f"producer {entry.producer_id} has offset {latest} in a snapshot up to "
            message += str(snapshot_offset)
            self.findings.error(path, "snapshot-untrue", message, repair=REMOVE_SNAPSHOT)
            return
        replayed = self.states.entries.get(entry.producer_id)
        if replayed is None:
            if self.is_exact:
                message = f"producer {entry.producer_id} never wrote to this log"
                self.findings.error(path, "snapshot-untrue", message, repair=REMOVE_SNAPSHOT)
            return
        difference = self.find_difference(entry, replayed)
        if difference:
            message = f"producer {entry.producer_id}: {difference}"
            self.findings.error(path, "snapshot-untrue", message, repair=REMOVE_SNAPSHOT)

    def find_difference(self, entry: SnapshotEntry, replayed: ProducerStateEntry) -> str:
        """How a snapshot's producer differs from the replayed one; empty when it does not."""
        pairs = [("epoch", entry.epoch, replayed.epoch)] if not self.has_gaps else []
        last = replayed.batches[-1] if replayed.batches and not self.has_gaps else None
        # Loading starts at the log start: of a producer with data below, only markers may remain.
        is_deleted = last is not None and last.last_offset < self._log_start_offset
        # An expired producer may have come back with a marker alone.
        is_expired = last is not None and (
            entry.timestamp - last.timestamp >= self.expiration_ms
            or self.now_ms - last.timestamp >= self.expiration_ms
        )
        is_unknown = entry.last_offset == NONE and (is_deleted or is_expired)
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
            # A producer that expired and came back may have no marker since.
            if entry.coordinator_epoch != NONE:
                expected = replayed.coordinator_epoch
                pairs.append(("coordinator epoch", entry.coordinator_epoch, expected))
        return ", ".join(
            f"{name} {stored}, the batches say {expected}"
            for name, stored, expected in pairs
            if stored != expected
        )

    def _report_missing(self, snapshot: ProducerSnapshotFile, snapshot_offset: int) -> None:
        if not self.is_exact:
            return
        listed = {entry.producer_id for entry in snapshot.entries}
        for producer_id, entry in self.states.entries.items():
            if producer_id in listed or entry.is_expired(self.now_ms, self.expiration_ms):
                continue
            message = f"producer {producer_id} wrote before offset {snapshot_offset} and is not in "
            message += "the snapshot"
            self.findings.warning(
                snapshot.path, "snapshot-incomplete", message, repair=REMOVE_SNAPSHOT
            )


def find_txn_difference(
    stored: list[AbortedTransaction],
    replayed: list[AbortedTransaction],
    *,
    base_offset: int,
    next_offset: int,
    is_exact: bool,
) -> str | None:
    """The first error in a segment's aborted transactions; None if none is certain."""
    if is_exact:
        if stored == replayed:
            return None
        for slot, (transaction, other) in enumerate(zip(stored, replayed, strict=False)):
            if transaction != other:
                return f"entry {slot} is {transaction}, the batches say {other}"
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


REBUILD_EPOCHS: Final = "rebuild the history from the batches"


class EpochCheck:
    """Compares the stored leader epochs with those of the batches."""

    def __init__(
        self,
        finding_list: FindingList,
        path: str,
        stored: LeaderEpochs | None,
        log_start_offset: int,
    ) -> None:
        self._findings = finding_list
        self._path = path
        self._stored = stored
        self._log_start_offset = log_start_offset
        self._latest = -1
        self.rebuilt = LeaderEpochs()

    def observe(self, table: BatchTable, path: str) -> None:
        """Compares the batches of a table, in runs of one epoch."""
        epochs = table.rows[:, BatchColumn.LEADER_EPOCH]
        starts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
        ends = np.append(starts[1:], len(epochs)) - 1
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            epoch = int(epochs[start])
            if epoch < 0:
                continue
            first = int(table.rows[start, BatchColumn.BASE_OFFSET])
            last = int(table.rows[end, BatchColumn.LAST_OFFSET])
            if epoch < self._latest:
                message = f"leader epoch {epoch} at offset {first} comes after {self._latest}"
                position = int(table.rows[start, BatchColumn.POSITION])
                self._findings.warning(path, "epoch-descends", message, position=position)
            else:
                self._assign(epoch, first)
                self._compare(epoch, first, last)

    def _assign(self, epoch: int, first: int) -> None:
        if epoch > self._latest and first >= 0:
            self.rebuilt.assign(epoch, first)
            self._latest = epoch

    def _compare(self, epoch: int, first: int, last: int) -> None:
        stored = self._stored
        if stored is None or last < self._log_start_offset:
            return
        for offset in (max(first, self._log_start_offset), last):
            stored_epoch = stored.epoch_for_offset(offset)
            if stored_epoch is None:
                message = f"no epoch for offset {offset}, written in epoch {epoch}"
                self._findings.warning(
                    self._path, "epochs-incomplete", message, repair=REBUILD_EPOCHS
                )
                return
            if stored_epoch != epoch:
                message = f"epoch {stored_epoch} for offset {offset}, written in epoch {epoch}"
                self._findings.error(self._path, "epochs-untrue", message, repair=REBUILD_EPOCHS)
                return

    def finish(self, end_offset: int) -> None:
        if self._stored is None:
            if self.rebuilt.entries and not self._findings.has("epochs-corrupt", self._path):
                message = "no history of leader epochs, but batches that have one"
                self._findings.warning(self._path, "missing-epochs", message, repair=REBUILD_EPOCHS)
            return
        for entry in self._stored.entries:
            if entry.start_offset > end_offset:
                message = f"epoch {entry.epoch} begins at offset {entry.start_offset}, the log "
                message += f"ends at {end_offset}"
                self._findings.warning(
                    self._path, "epochs-beyond-end", message, repair="drop the epoch"
                )


def read_epochs(fs: FileSystem, path: str, finding_list: FindingList) -> LeaderEpochs | None:
    """The stored leader epochs; None if the file is missing, or corrupt, which is reported."""
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    try:
        epochs = LeaderEpochs.decode(data, where=path)
        line_count = len(decode_checkpoint(data, path))
    except Corrupt as error:
        finding_list.add_corrupt(path, "epochs-corrupt", error, repair=REBUILD_EPOCHS)
        return None
    if len(epochs.entries) != line_count:
        message = "epochs or their start offsets do not ascend"
        finding_list.error(path, "epochs-order", message, repair=REBUILD_EPOCHS)
    return epochs
