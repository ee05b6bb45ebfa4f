"""Producer state of a log: sequences, epochs and open transactions of each producer.

Invariant  state changes only in `apply` and the methods after it, never while an append is checked.
           Ongoing and unreplicated transactions are keyed by first offset and never share one.
           An entry has at most five batches, all of its epoch; entries are values.
Crash      rebuilt from the newest snapshot and the batches after it.
Threads    all writers hold the log's lock; entries are replaced, never modified.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from varve.kernels.batch_layout import CONTROL_BIT, INT32_MAX, TRANSACTIONAL_BIT, BatchColumn
from varve.records import increment_sequence

CACHED_BATCH_COUNT = 5  # as Kafka: a producer has at most five requests in flight
NONE = -1
SEQUENCE_MAX = INT32_MAX

# Plain ints: an enum member as a list index costs a call, and these run for every append.
_BASE_OFFSET = int(BatchColumn.BASE_OFFSET)
_LAST_OFFSET = int(BatchColumn.LAST_OFFSET)
_ATTRIBUTES = int(BatchColumn.ATTRIBUTES)
_PRODUCER_ID = int(BatchColumn.PRODUCER_ID)
_PRODUCER_EPOCH = int(BatchColumn.PRODUCER_EPOCH)
_BASE_SEQUENCE = int(BatchColumn.BASE_SEQUENCE)


class AppendOrigin(StrEnum):
    """Who appends; decides which violations are rejected and which are only logged."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True)
class Marker:
    """The transaction marker of a control batch."""

    committed: bool
    coordinator_epoch: int


class BatchSummary(NamedTuple):
    """The fields of a batch that producer state needs; `marker` is None for data batches and for
    control batches without a record.
    """

    # A tuple, like the values below: every append of an idempotent producer creates one.

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    max_timestamp: int
    is_transactional: bool
    is_control: bool
    marker: Marker | None = None

    @classmethod
    def of_batch(
        cls, row: Sequence[int], *, base_offset: int, max_timestamp: int, marker: Marker | None
    ) -> Self:
        """The summary of a batch from its row of `BatchColumn` and its base offset in the log.

        `max_timestamp` may differ from the row's, as the log may set it.
        """
        delta = row[_LAST_OFFSET] - row[_BASE_OFFSET]
        base_sequence, attributes = row[_BASE_SEQUENCE], row[_ATTRIBUTES]
        return cls(
            base_offset=base_offset,
            last_offset=base_offset + delta,
            producer_id=row[_PRODUCER_ID],
            producer_epoch=row[_PRODUCER_EPOCH],
            base_sequence=base_sequence,
            last_sequence=-1 if base_sequence < 0 else increment_sequence(base_sequence, delta),
            max_timestamp=max_timestamp,
            is_transactional=bool(attributes & TRANSACTIONAL_BIT),
            is_control=bool(attributes & CONTROL_BIT),
            marker=marker,
        )


class BatchMetadata(NamedTuple):
    """One of a producer's latest batches, kept to detect duplicates."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % (SEQUENCE_MAX + 1)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class LastRecord(NamedTuple):
    """The end of a producer's data: compaction keeps that batch, even without records."""

    epoch: int
    last_data_offset: int | None


class ProducerStateEntry(NamedTuple):
    """One producer; `transaction_first_offset` is None when no transaction is open."""

    producer_id: int
    epoch: int = NONE
    batches: tuple[BatchMetadata, ...] = ()
    last_timestamp: int = NONE
    coordinator_epoch: int = NONE
    transaction_first_offset: int | None = None

    @property
    def last_offset(self) -> int:
        """The end of its last data batch; -1 when none is cached."""
        return self.batches[-1].last_offset if self.batches else NONE

    @property
    def last_sequence(self) -> int:
        """-1 when no data batch of this epoch is cached."""
        return self.batches[-1].last_sequence if self.batches else NONE

    @property
    def last_record(self) -> LastRecord:
        last = self.batches[-1].last_offset if self.batches else None
        return LastRecord(self.epoch, last)

    def after_data(self, batch: BatchSummary) -> "ProducerStateEntry":
        """The entry after a data batch is appended: a new epoch drops the cached batches."""
        kept = self.batches[1 - CACHED_BATCH_COUNT :] if batch.producer_epoch == self.epoch else ()
        first_offset = self.transaction_first_offset
        if first_offset is None and batch.is_transactional:
            first_offset = batch.base_offset
        offset_delta = batch.last_offset - batch.base_offset
        cached = BatchMetadata(
            batch.last_sequence, batch.last_offset, offset_delta, batch.max_timestamp
        )
        return ProducerStateEntry(
            self.producer_id,
            batch.producer_epoch,
            (*kept, cached),
            batch.max_timestamp,
            self.coordinator_epoch,
            first_offset,
        )

    def after_marker(self, batch: BatchSummary, marker: Marker) -> "ProducerStateEntry":
        """The entry after a marker is appended: no transaction is open."""
        return ProducerStateEntry(
            self.producer_id,
            batch.producer_epoch,
            self.batches if batch.producer_epoch == self.epoch else (),
            batch.max_timestamp,
            marker.coordinator_epoch,
            None,
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether it has been idle for the expiration time; never with an open transaction."""
        is_idle = now_ms - self.last_timestamp >= expiration_ms
        return is_idle and self.transaction_first_offset is None

    def find_duplicate(self, batch: BatchSummary) -> BatchMetadata | None:
        """The cached batch with the same epoch and sequences."""
        if batch.producer_epoch != self.epoch:
            return None
        for cached in self.batches:
            if (
                cached.last_sequence == batch.last_sequence
                and cached.first_sequence == batch.base_sequence
            ):
                return cached
        return None


class CompletedTransaction(NamedTuple):
    """A transaction that has its marker; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class OpenTransaction(NamedTuple):
    """A transaction without a marker yet."""

    producer_id: int
    first_offset: int
    last_timestamp: int


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProducerAppendInfo:
    """The changes of an append to producer state; a `duplicate` has been appended before."""

    duplicate: BatchMetadata | None = None
    completed: list[CompletedTransaction] = field(default_factory=list)
    entries: dict[int, ProducerStateEntry] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)


class ProducerStateManager:
    """All producers of one log; `where` names the log in messages."""

    def __init__(self, where: str = "log") -> None:
        self._where = where
        self._ongoing: dict[int, int] = {}  # first offset -> producer id
        self._unreplicated: dict[int, int] = {}  # first offset -> marker offset
        self._first_unstable_offset: int | None = None
        self.entries: dict[int, ProducerStateEntry] = {}
        self.map_end_offset = 0

    def check_and_plan(
        self, batches: Sequence[BatchSummary], origin: AppendOrigin
    ) -> ProducerAppendInfo:
        """Checks the batches of one append in order, each against the state after those before it.

        Raises InvalidProducerEpoch, OutOfOrderSequence, InvalidTransactionState or
        CoordinatorFenced; under REPLICATION violations are logged and accepted.
        """
        plan = ProducerAppendInfo()
        for batch in batches:
            producer_id = batch.producer_id
            if producer_id < 0:
                continue
            current = self.entries.get(producer_id)
            if current is not None and origin is AppendOrigin.CLIENT:
                duplicate = current.find_duplicate(batch)
                if duplicate is not None:
                    return ProducerAppendInfo(duplicate=duplicate)
            entry = plan.entries.get(producer_id) or current or ProducerStateEntry(producer_id)
            if not batch.is_control:
                is_known = current is not None and current.epoch != NONE
                self._check_data(entry, batch, origin, is_known=is_known)
                plan.entries[producer_id] = entry.after_data(batch)
                if batch.is_transactional and entry.transaction_first_offset is None:
                    plan.opened[batch.base_offset] = producer_id
            elif batch.marker is not None:
                self._check_marker(entry, batch, batch.marker, origin)
                plan.entries[producer_id] = entry.after_marker(batch, batch.marker)
                if entry.transaction_first_offset is not None:
                    plan.completed.append(
                        CompletedTransaction(
                            producer_id,
                            entry.transaction_first_offset,
                            batch.base_offset,
                            is_aborted=not batch.marker.committed,
                        )
                    )
        return plan

    def _check_data(
        self,
        entry: ProducerStateEntry,
        batch: BatchSummary,
        origin: AppendOrigin,
        *,
        is_known: bool,
    ) -> None:
        self._check_epoch(entry, batch, origin)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, batch, is_known=is_known)
        if entry.transaction_first_offset is not None and not batch.is_transactional:
            if origin is AppendOrigin.REPLICATION:
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

    def _check_epoch(
        self, entry: ProducerStateEntry, batch: BatchSummary, origin: AppendOrigin
    ) -> None:
        if batch.producer_epoch >= entry.epoch:
            return
        if origin is AppendOrigin.REPLICATION:
            logger.warning("producer epoch went back", extra=self._details(batch, entry.epoch))
            return
        raise InvalidProducerEpoch(
            f"{self._where}: producer {batch.producer_id} wrote with epoch "
            f"{batch.producer_epoch}, the current one is {entry.epoch}: "
            "a newer instance of the producer is active"
        )

    def _check_sequence(
        self, entry: ProducerStateEntry, batch: BatchSummary, *, is_known: bool
    ) -> None:
        if batch.producer_epoch != entry.epoch:
            if batch.base_sequence == 0 or entry.epoch == NONE:
                return
            expected = 0
        else:
            expected = (entry.last_sequence + 1) % (SEQUENCE_MAX + 1)
            if batch.base_sequence == expected or not is_known:
                return
        raise OutOfOrderSequence(
            f"{self._where}: producer {batch.producer_id} epoch {batch.producer_epoch} sent "
            f"sequence {batch.base_sequence}, expected {expected}"
        )

    def _check_marker(
        self, entry: ProducerStateEntry, batch: BatchSummary, marker: Marker, origin: AppendOrigin
    ) -> None:
        self._check_epoch(entry, batch, origin)
        if marker.coordinator_epoch >= entry.coordinator_epoch:
            return
        if origin is AppendOrigin.REPLICATION:
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

    def apply(self, plan: ProducerAppendInfo, txn_index: TransactionIndex | None) -> None:
        """Applies the changes of an append after its bytes are written.

        Transactions that it aborted are added to the index.
        """
        self.entries.update(plan.entries)
        if plan.opened:
            self._ongoing.update(plan.opened)
            self._update_first_unstable()
        for completed in plan.completed:
            if completed.is_aborted and txn_index is not None:
                txn_index.append(self._aborted(completed))
            self._complete(completed)

    def _aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """The index entry, with the last stable offset at the end of this transaction."""
        others = (first for first, owner in self._ongoing.items() if owner != completed.producer_id)
        return AbortedTransaction(
            producer_id=completed.producer_id,
            first_offset=completed.first_offset,
            last_offset=completed.last_offset,
            last_stable_offset=min(others, default=completed.last_offset + 1),
        )

    def _complete(self, completed: CompletedTransaction) -> None:
        """The transaction is no longer ongoing; it stays unstable until replicated."""
        if self._ongoing.pop(completed.first_offset, None) is not None:
            self._unreplicated[completed.first_offset] = completed.last_offset
            self._update_first_unstable()

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Drops completed transactions whose markers lie below the high watermark."""
        if not self._unreplicated:
            return
        remaining = {
            first: marker
            for first, marker in self._unreplicated.items()
            if marker >= high_watermark
        }
        if len(remaining) != len(self._unreplicated):
            self._unreplicated = remaining
            self._update_first_unstable()

    def raise_log_start(self, offset: int) -> None:
        """Drops completed transactions below the log start offset; keeps the producers."""
        self.advance_high_watermark(offset)
        self.map_end_offset = max(self.map_end_offset, offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest undecided or unreplicated transaction; None without one.

        The caller clamps it to the log start offset and the high watermark.
        """
        return self._first_unstable_offset

    def _update_first_unstable(self) -> None:
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

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drops idle producers without an open transaction; returns how many."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.is_expired(now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Drops all state except `map_end_offset`, which the caller sets."""
        self.entries = {}
        self._ongoing = {}
        self._unreplicated = {}
        self._first_unstable_offset = None

    def replace(self, entries: Iterable[ProducerStateEntry]) -> None:
        """Replaces all state, including the open transactions, by that of the entries."""
        self.clear()
        self.entries = {entry.producer_id: entry for entry in entries}
        self._ongoing = {
            entry.transaction_first_offset: entry.producer_id
            for entry in self.entries.values()
            if entry.transaction_first_offset is not None
        }
        self._update_first_unstable()
