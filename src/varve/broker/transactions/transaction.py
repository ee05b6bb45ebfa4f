"""A transactional id: the steps of its transactions, its records, and the table of all ids.

A transaction is a value; every step returns a new one, which the coordinator writes to
`__transaction_state` and then takes as the current one.

Layout     see `wire.state_records`: TransactionLogKey of type 0, TransactionLogValue. Version 0 is
           written, which every Kafka reads; 1 is read, too.
Invariant  steps follow `VALID_PREVIOUS`, Kafka's own order. Partitions are known from Ongoing until
           the transaction is complete. An entry is changed by one task at a time, which
           sets `next_status` before the first wait and clears it when the log
           has answered.
Threads    the loop's; decoding is pure.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from varve.broker.topics import group_by_topic
from varve.commit_log import TopicPartition
from varve.records import Record
from varve.wire import ErrorCode, Message
from varve.wire.messages.state_records import (
    TRANSACTIONS_TOPIC,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from varve.wire.state_records import TRANSACTION_RECORD, decode_state_record, encode_numbered

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
EPOCH_MAX: Final = (1 << 15) - 1
NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class Status(IntEnum):
    """The state of a transaction, by Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def display_name(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


BY_DISPLAY_NAME: Final = {status.display_name: status for status in Status}

IDLE: Final = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
"""No transaction is open: a new one may start, and the id may expire."""
DECIDED: Final = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
"""The outcome is on disk, and every partition must get its marker."""

VALID_PREVIOUS: Final[dict[Status, frozenset[Status]]] = {
    Status.EMPTY: IDLE,
    Status.ONGOING: IDLE | {Status.ONGOING},
    Status.PREPARE_COMMIT: frozenset({Status.ONGOING}),
    Status.PREPARE_ABORT: frozenset({Status.ONGOING, Status.PREPARE_EPOCH_FENCE}),
    Status.COMPLETE_COMMIT: frozenset({Status.PREPARE_COMMIT}),
    Status.COMPLETE_ABORT: frozenset({Status.PREPARE_ABORT}),
    Status.DEAD: IDLE,
    Status.PREPARE_EPOCH_FENCE: frozenset({Status.ONGOING}),
}
"""For each status, those it may follow."""


def is_exhausted(epoch: int) -> bool:
    """Whether a producer id must be replaced: the last epoch is kept for fencing."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id; the last producer id and epoch are those before the latest bump."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    start_ms: int = NO_TIMESTAMP
    update_ms: int
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH

    @property
    def is_idle(self) -> bool:
        return self.status in IDLE

    @property
    def is_decided(self) -> bool:
        return self.status in DECIDED

    def needs_producer_id(self, expected_epoch: int | None) -> bool:
        """Whether the next run of the producer needs another id: it has none, or its epochs are
        used up. An outdated producer gets no new one.
        """
        if self.producer_epoch == NO_EPOCH:
            return True
        is_latest = expected_epoch is None or expected_epoch == self.producer_epoch
        return is_latest and is_exhausted(self.producer_epoch)

    def knows_producer(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer that names itself is the latest one, or the one before it."""
        return (
            self.producer_epoch == NO_EPOCH
            or producer_id == self.producer_id
            or (producer_id == self.last_producer_id and is_exhausted(producer_epoch))
        )

    def with_next_epoch(
        self, *, expected_epoch: int | None, timeout_ms: int, now_ms: int
    ) -> "Transaction | None":
        """A new run of the producer, or the same one again where its response was lost.

        None for a producer that a newer one has replaced.
        """
        current = self.producer_epoch
        if expected_epoch is None or expected_epoch == current:
            assert not is_exhausted(current)
            epoch, last = current + 1, NO_EPOCH if expected_epoch is None else current
        elif expected_epoch == self.last_producer_epoch:
            epoch, last = current, self.last_producer_epoch
        else:
            return None
        return self._restarted(timeout_ms, now_ms, producer_epoch=epoch, last_producer_epoch=last)

    def with_producer_id(
        self, producer_id: int, *, keeps_epoch: bool, timeout_ms: int, now_ms: int
    ) -> "Transaction":
        """Continues under a new producer id; with `keeps_epoch` the request may be repeated."""
        return self._restarted(
            timeout_ms,
            now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_id=self.producer_id,
            last_producer_epoch=self.producer_epoch if keeps_epoch else NO_EPOCH,
        )

    def _restarted(self, timeout_ms: int, now_ms: int, **producer: int) -> "Transaction":
        """The start of another run of the producer: no transaction is open."""
        return self._step(
            Status.EMPTY,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
            update_ms=now_ms,
            **producer,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], *, now_ms: int
    ) -> "Transaction":
        """Starts a transaction, or adds partitions to it."""
        return self._step(
            Status.ONGOING,
            partitions=self.partitions | partitions,
            start_ms=now_ms if self.is_idle else self.start_ms,
            update_ms=now_ms,
        )

    def fenced(self) -> "Transaction":
        """Before an abort that its producer did not request: the producer may write no more."""
        return self._step(
            Status.PREPARE_EPOCH_FENCE,
            # After the last epoch the next run of the producer gets another id.
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=NO_EPOCH,
        )

    def prepared(self, *, is_commit: bool, now_ms: int) -> "Transaction":
        status = Status.PREPARE_COMMIT if is_commit else Status.PREPARE_ABORT
        return self._step(status, update_ms=now_ms)

    def completed(self, *, now_ms: int) -> "Transaction":
        is_commit = self.status is Status.PREPARE_COMMIT
        status = Status.COMPLETE_COMMIT if is_commit else Status.COMPLETE_ABORT
        return self._step(status, partitions=NO_PARTITIONS, update_ms=now_ms)

    def dead(self) -> "Transaction":
        return self._step(Status.DEAD)

    def _step(self, status: Status, **changes: object) -> "Transaction":
        assert self.status in VALID_PREVIOUS[status], f"{self.status.name} to {status.name}"
        return replace(self, status=status, **changes)  # type: ignore[arg-type]  # named fields


_VALUE_VERSION: Final = 0


def encode_transaction(transaction: Transaction) -> Record:
    """The record of a transactional id; a tombstone for a dead one."""
    key = encode_key(transaction.transactional_id)
    if transaction.status is Status.DEAD:
        return Record(key, None, timestamp=transaction.update_ms)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.status),
        transaction_partitions=_to_wire(transaction),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    data = encode_numbered(_VALUE_VERSION, value, _VALUE_VERSION)
    return Record(key, data, timestamp=transaction.update_ms)


def encode_key(transactional_id: str) -> bytes:
    return encode_numbered(
        TRANSACTION_RECORD, TransactionLogKey(transactional_id=transactional_id), 0
    )


def _to_wire(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.status is Status.EMPTY:
        return None
    by_topic = group_by_topic(transaction.partitions)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]


def decode_transaction(key: bytes, value: bytes, where: str) -> Transaction | None:
    """None for a key of an unknown kind.

    Raises UnsupportedFormat for a value of a later version: the state of the transaction is unknown
    then.
    """
    decoded = decode_state_record(TRANSACTIONS_TOPIC, key, value, where)
    if decoded is None:
        return None
    transactional_id, record = _known(*decoded)
    return Transaction(
        transactional_id=transactional_id,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        timeout_ms=record.transaction_timeout_ms,
        status=Status(record.transaction_status),
        partitions=_from_wire(record),
        start_ms=record.transaction_start_timestamp_ms,
        update_ms=record.transaction_last_update_timestamp_ms,
    )


def _known(key: Message, value: Message | None) -> tuple[str, TransactionLogValue]:
    assert isinstance(key, TransactionLogKey)
    assert isinstance(value, TransactionLogValue)
    return key.transactional_id, value


def _from_wire(value: TransactionLogValue) -> frozenset[TopicPartition]:
    return NO_PARTITIONS.union(
        TopicPartition(topic.topic, number)
        for topic in value.transaction_partitions or ()
        for number in topic.partition_ids
    )


class TransactionEntry:
    """A transactional id; `next_status` is being written, None where nothing is."""

    __slots__ = ("current", "next_status")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.next_status: Status | None = None

    @property
    def is_unwritten(self) -> bool:
        """Whether the id is new and its first record is not on disk yet."""
        return self.current.producer_epoch == NO_EPOCH

    @contextmanager
    def becoming(self, status: Status) -> Iterator[None]:
        """While the log is to answer; no other task changes the entry."""
        self.next_status = status
        try:
            yield
        finally:
            self.next_status = None

    def find_batch_error(self, *, producer_epoch: int, partition: TopicPartition) -> ErrorCode:
        """The error of a batch for a partition; NONE if it belongs to the transaction."""
        current = self.current
        if producer_epoch != current.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if current.is_decided or self.next_status not in (None, Status.ONGOING):
            # Kafka uses this code for producers to retry while the coordinator is busy.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if partition not in current.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE


class TransactionTable:
    """All transactional ids that the coordinator knows."""

    def __init__(self) -> None:
        self._by_id: dict[str, TransactionEntry] = {}
        self._ongoing: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TransactionEntry]:
        """A snapshot; entries may be added or removed meanwhile."""
        return iter(list(self._by_id.values()))

    def find(self, transactional_id: str) -> TransactionEntry | None:
        return self._by_id.get(transactional_id)

    def ongoing(self) -> list[TransactionEntry]:
        """Those with a transaction that is not decided yet."""
        return [self._by_id[id] for id in sorted(self._ongoing)]

    def add(self, transaction: Transaction) -> TransactionEntry:
        entry = TransactionEntry(transaction)
        self._by_id[transaction.transactional_id] = entry
        self.replace(entry, transaction)
        return entry

    def replace(self, entry: TransactionEntry, transaction: Transaction) -> None:
        """Takes the new state of an id, once it is on disk."""
        entry.current = transaction
        if transaction.status is Status.ONGOING:
            self._ongoing.add(transaction.transactional_id)
        else:
            self._ongoing.discard(transaction.transactional_id)

    def remove(self, entry: TransactionEntry) -> None:
        current = entry.current
        del self._by_id[current.transactional_id]
        self._ongoing.discard(current.transactional_id)
