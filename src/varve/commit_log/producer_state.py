"""What a log remembers of its producers: sequences, epochs, open transactions.

Invariant  state changes only in `apply` and the verbs after it, never while an append is checked.
           Ongoing and unreplicated transactions are keyed by first offset and never share one.
Crash      rebuilt from the newest snapshot and the batches after it.
Threads    all writers hold the log's lock; entries are values and are replaced, never changed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from varve.commit_log.producer_entry import (
    NONE,
    SEQUENCE_MAX,
    BatchSummary,
    CachedBatch,
    CompletedTransaction,
    Marker,
    OpenTransaction,
    Origin,
    ProducerEntry,
    ProducerShell,
)
from varve.commit_log.producer_snapshot import (
    SnapshotEntry,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from varve.foundation.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)

LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000

__all__ = [
    "LATE_TRANSACTION_BUFFER_MS",
    "AppendPlan",
    "BatchSummary",
    "CachedBatch",
    "CompletedTransaction",
    "Marker",
    "OpenTransaction",
    "Origin",
    "ProducerEntry",
    "ProducerShell",
    "ProducerStates",
]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AppendPlan:
    """What an append will change; with a `duplicate` the append has been done before."""

    duplicate: CachedBatch | None = None
    completed: list[CompletedTransaction] = field(default_factory=list)
    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)


class ProducerStates:
    """All producers of one log; `where` names the log in messages."""

    def __init__(self, where: str = "log") -> None:
        self._where = where
        self._ongoing: dict[int, int] = {}  # first offset -> producer id
        self._unreplicated: dict[int, int] = {}  # first offset -> marker offset
        self._first_unstable_offset: int | None = None
        self.entries: dict[int, ProducerEntry] = {}
        self.map_end_offset = 0

    def check_and_plan(self, batches: Sequence[BatchSummary], origin: Origin) -> AppendPlan:
        """Checks the batches of one append in order, each against the outcome of those before.

        Raises InvalidProducerEpoch, OutOfOrderSequence, InvalidTransactionState or
        CoordinatorFenced; under REPLICATION violations are logged and accepted.
        """
        plan = AppendPlan()
        for batch in batches:
            producer_id = batch.producer_id
            if producer_id < 0:
                continue
            known = self.entries.get(producer_id)
            if known is not None and origin is Origin.CLIENT:
                duplicate = known.find_duplicate(batch)
                if duplicate is not None:
                    return AppendPlan(duplicate=duplicate)
            entry = plan.entries.get(producer_id) or known or ProducerEntry(producer_id)
            if not batch.is_control:
                is_known = known is not None and known.epoch != NONE
                self._check_data(entry, batch, origin, is_known=is_known)
                plan.entries[producer_id] = entry.after_data(batch)
                if batch.is_transactional and entry.transaction_first_offset is None:
                    plan.opened[batch.base_offset] = producer_id
            elif batch.marker is not None:
                self._check_marker(entry, batch, batch.marker, origin)
                plan.entries[producer_id] = entry.after_marker(batch, batch.marker)
                if entry.transaction_first_offset is not None:
                    plan.completed.append(_completed(entry, batch, batch.marker))
        return plan

    def _check_data(
        self, entry: ProducerEntry, batch: BatchSummary, origin: Origin, *, is_known: bool
    ) -> None:
        self._check_epoch(entry, batch, origin)
        if origin is Origin.CLIENT:
            self._check_sequence(entry, batch, is_known=is_known)
        if entry.transaction_first_offset is not None and not batch.is_transactional:
            if origin is Origin.REPLICATION:
                logger.warning(
                    "non-transactional batch within a transaction",
                    extra=self._details(batch, current=entry.transaction_first_offset),
                )
                return
            raise InvalidTransactionState(
                f"{self._where}: producer {batch.producer_id} sent a batch outside its "
                f"transaction, which is open since offset {entry.transaction_first_offset}: "
                "end the transaction first"
            )

    def _check_epoch(self, entry: ProducerEntry, batch: BatchSummary, origin: Origin) -> None:
        if batch.producer_epoch >= entry.epoch:
            return
        if origin is Origin.REPLICATION:
            logger.warning("producer epoch went back", extra=self._details(batch, entry.epoch))
            return
        raise InvalidProducerEpoch(
            f"{self._where}: producer {batch.producer_id} wrote with epoch "
            f"{batch.producer_epoch}, the current one is {entry.epoch}: "
            "a newer instance of the producer is active"
        )

    def _check_sequence(self, entry: ProducerEntry, batch: BatchSummary, *, is_known: bool) -> None:
        if batch.producer_epoch != entry.epoch:
            if batch.base_sequence == 0 or entry.epoch == NONE:
                return
            expected = 0
        else:
            expected = _next_sequence(entry.last_sequence)
            if batch.base_sequence == expected or not is_known:
                return
        raise OutOfOrderSequence(
            f"{self._where}: producer {batch.producer_id} epoch {batch.producer_epoch} sent "
            f"sequence {batch.base_sequence}, expected {expected}"
        )

    def _check_marker(
        self, entry: ProducerEntry, batch: BatchSummary, marker: Marker, origin: Origin
    ) -> None:
        self._check_epoch(entry, batch, origin)
        if marker.coordinator_epoch >= entry.coordinator_epoch:
            return
        if origin is Origin.REPLICATION:
            logger.warning(
                "coordinator epoch went back",
                extra=self._details(batch, entry.coordinator_epoch),
            )
            return
        raise CoordinatorFenced(
            f"{self._where}: marker for producer {batch.producer_id} comes from coordinator "
            f"epoch {marker.coordinator_epoch}, the current one is {entry.coordinator_epoch}: "
            "a newer coordinator is active"
        )

    def _details(self, batch: BatchSummary, current: int) -> dict[str, object]:
        return {
            "log": self._where,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "offset": batch.base_offset,
            "current": current,
        }

    def apply(self, plan: AppendPlan) -> None:
        """Takes over what an append changed, once its bytes are written."""
        self.entries.update(plan.entries)
        if plan.opened:
            self._ongoing.update(plan.opened)
            self._note_first_unstable()

    def last_stable_offset_of(self, completed: CompletedTransaction) -> int:
        """Where readers of committed records could stand once this transaction has ended."""
        others = (first for first, owner in self._ongoing.items() if owner != completed.producer_id)
        return min(others, default=completed.last_offset + 1)

    def complete(self, completed: CompletedTransaction) -> None:
        """The transaction is no longer ongoing; it stays unstable until replicated."""
        if self._ongoing.pop(completed.first_offset, None) is not None:
            self._unreplicated[completed.first_offset] = completed.last_offset
            self._note_first_unstable()

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Forgets the completed transactions whose markers lie below."""
        if not self._unreplicated:
            return
        remaining = {
            first: marker
            for first, marker in self._unreplicated.items()
            if marker >= high_watermark
        }
        if len(remaining) != len(self._unreplicated):
            self._unreplicated = remaining
            self._note_first_unstable()

    def raise_log_start(self, offset: int) -> None:
        """Forgets completed transactions below the log start offset; producers are kept."""
        self.advance_high_watermark(offset)
        self.map_end_offset = max(self.map_end_offset, offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest undecided or unreplicated transaction; None without one.

        The caller clamps it to the log start offset and the high watermark.
        """
        return self._first_unstable_offset

    def _note_first_unstable(self) -> None:
        ongoing = min(self._ongoing, default=None)
        unreplicated = min(self._unreplicated, default=None)
        candidates = [first for first in (ongoing, unreplicated) if first is not None]
        self._first_unstable_offset = min(candidates, default=None)

    @property
    def ongoing(self) -> list[OpenTransaction]:
        """The open transactions by first offset."""
        return [
            OpenTransaction(producer_id, first, self.entries[producer_id].last_timestamp)
            for first, producer_id in sorted(self._ongoing.items())
        ]

    def find_late(self, now_ms: int, max_timeout_ms: int) -> list[OpenTransaction]:
        """Open transactions whose producer has been silent for longer than any timeout allows."""
        limit_ms = max_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        return [open for open in self.ongoing if now_ms - open.last_timestamp > limit_ms]

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drops the silent producers without an open transaction; returns how many."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.is_expired(now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    @property
    def is_empty(self) -> bool:
        return not self.entries

    def clear(self) -> None:
        """Forgets everything; `map_end_offset` stays for the caller to set."""
        self.entries = {}
        self._ongoing = {}
        self._unreplicated = {}
        self._first_unstable_offset = None

    def encode_snapshot(self) -> bytes:
        """The snapshot file's bytes: the last batch of each producer."""
        return encode_producer_snapshot(_to_snapshot(entry) for entry in self.entries.values())

    def load_snapshot(
        self, data: bytes, now_ms: int, expiration_ms: int, where: str = "producer snapshot"
    ) -> None:
        """Replaces all state by a snapshot less its expired producers.

        Raises Corrupt and changes nothing when the snapshot is broken.
        """
        loaded = [_from_snapshot(row) for row in decode_producer_snapshot(data, where)]
        self.clear()
        for entry in loaded:
            if not entry.is_expired(now_ms, expiration_ms):
                self.entries[entry.producer_id] = entry
        self._ongoing = {
            entry.transaction_first_offset: entry.producer_id
            for entry in self.entries.values()
            if entry.transaction_first_offset is not None
        }
        self._note_first_unstable()


def _completed(entry: ProducerEntry, batch: BatchSummary, marker: Marker) -> CompletedTransaction:
    assert entry.transaction_first_offset is not None
    return CompletedTransaction(
        entry.producer_id,
        entry.transaction_first_offset,
        batch.base_offset,
        not marker.committed,
    )


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


def _to_snapshot(entry: ProducerEntry) -> SnapshotEntry:
    last = entry.batches[-1] if entry.batches else CachedBatch(NONE, NONE, 0, NONE)
    first_offset = entry.transaction_first_offset
    return SnapshotEntry(
        producer_id=entry.producer_id,
        epoch=entry.epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        transaction_first_offset=NONE if first_offset is None else first_offset,
    )


def _from_snapshot(row: SnapshotEntry) -> ProducerEntry:
    last = CachedBatch(row.last_sequence, row.last_offset, row.offset_delta, row.timestamp)
    first_offset = row.transaction_first_offset
    return ProducerEntry(
        row.producer_id,
        row.epoch,
        (last,) if row.last_offset >= 0 else (),
        row.timestamp,
        row.coordinator_epoch,
        first_offset if first_offset >= 0 else None,
    )
