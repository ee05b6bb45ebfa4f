"""One producer as the log remembers it, and the values around it.

Invariant  at most five batches, all of the entry's epoch; entries are values and never change.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

CACHED_BATCH_COUNT = 5
NONE = -1
SEQUENCE_MAX = 2**31 - 1


class Origin(StrEnum):
    """Who appends: decides which violations are refused and which are only logged."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction, as a control batch tells it."""

    committed: bool
    coordinator_epoch: int


class BatchSummary(NamedTuple):
    """What producer state needs of one batch; `marker` is None for data and emptied markers."""

    # A tuple, as the values below: every append of an idempotent producer makes one.

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


class CachedBatch(NamedTuple):
    """One of a producer's latest batches, by which a repeated one is recognised."""

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


class ProducerShell(NamedTuple):
    """What compaction keeps a producer's last batch by, even when its records are gone."""

    epoch: int
    last_data_offset: int | None


class ProducerEntry(NamedTuple):
    """One producer; `transaction_first_offset` is None when no transaction is open."""

    producer_id: int
    epoch: int = NONE
    batches: tuple[CachedBatch, ...] = ()
    last_timestamp: int = NONE
    coordinator_epoch: int = NONE
    transaction_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """-1 when no data batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NONE

    @property
    def shell(self) -> ProducerShell:
        last = self.batches[-1].last_offset if self.batches else None
        return ProducerShell(self.epoch, last)

    def after_data(self, batch: BatchSummary) -> "ProducerEntry":
        """The producer once a data batch is appended: a new epoch forgets the cached batches."""
        kept = self.batches[1 - CACHED_BATCH_COUNT :] if batch.producer_epoch == self.epoch else ()
        first_offset = self.transaction_first_offset
        if first_offset is None and batch.is_transactional:
            first_offset = batch.base_offset
        offset_delta = batch.last_offset - batch.base_offset
        cached = CachedBatch(
            batch.last_sequence, batch.last_offset, offset_delta, batch.max_timestamp
        )
        return ProducerEntry(
            self.producer_id,
            batch.producer_epoch,
            (*kept, cached),
            batch.max_timestamp,
            self.coordinator_epoch,
            first_offset,
        )

    def after_marker(self, batch: BatchSummary, marker: Marker) -> "ProducerEntry":
        """The producer once a marker is appended: its transaction, if any, is over."""
        return ProducerEntry(
            self.producer_id,
            batch.producer_epoch,
            self.batches if batch.producer_epoch == self.epoch else (),
            batch.max_timestamp,
            marker.coordinator_epoch,
            None,
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether it has been silent long enough; never while a transaction is open."""
        is_silent = now_ms - self.last_timestamp >= expiration_ms
        return is_silent and self.transaction_first_offset is None

    def find_duplicate(self, batch: BatchSummary) -> CachedBatch | None:
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
    """A transaction that met its marker; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class OpenTransaction(NamedTuple):
    """A transaction without a marker yet."""

    producer_id: int
    first_offset: int
    last_timestamp: int
