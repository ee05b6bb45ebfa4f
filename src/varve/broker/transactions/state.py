"""What is known of one transactional id, and the steps its transactions take.

A transaction is a value; every step gives a new one. The coordinator writes it to
`__transaction_state` and then takes it for the current one.

Invariant  steps follow `BEFORE`: Kafka's own order. Partitions are known from Ongoing until the
           transaction is complete, and at no other time.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from varve.commit_log import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
EPOCH_MAX: Final = (1 << 15) - 1
NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class Status(IntEnum):
    """Where a transaction stands, by Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


BY_KAFKA_NAME: Final = {one.kafka_name: one for one in Status}

AT_REST: Final = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
"""No transaction is open: a new one may begin, and the id may expire."""
DECIDED: Final = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
"""The outcome is on disk and must be told to every partition."""

BEFORE: Final[dict[Status, frozenset[Status]]] = {
    Status.EMPTY: AT_REST,
    Status.ONGOING: AT_REST | {Status.ONGOING},
    Status.PREPARE_COMMIT: frozenset({Status.ONGOING}),
    Status.PREPARE_ABORT: frozenset({Status.ONGOING, Status.PREPARE_EPOCH_FENCE}),
    Status.COMPLETE_COMMIT: frozenset({Status.PREPARE_COMMIT}),
    Status.COMPLETE_ABORT: frozenset({Status.PREPARE_ABORT}),
    Status.DEAD: AT_REST,
    Status.PREPARE_EPOCH_FENCE: frozenset({Status.ONGOING}),
}
"""By status, those it may follow."""


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
    def is_at_rest(self) -> bool:
        return self.status in AT_REST

    @property
    def is_decided(self) -> bool:
        return self.status in DECIDED

    def needs_producer_id(self, expected_epoch: int | None) -> bool:
        """Whether the next run of the producer goes under another id: it has none, or its epochs
        are used up. One that lags behind is not given a new one.
        """
        if self.producer_epoch == NO_EPOCH:
            return True
        is_latest = expected_epoch is None or expected_epoch == self.producer_epoch
        return is_latest and is_exhausted(self.producer_epoch)

    def knows_producer(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether one who says who he was may be the latest producer, or the one it replaced."""
        return (
            self.producer_epoch == NO_EPOCH
            or producer_id == self.producer_id
            or (producer_id == self.last_producer_id and is_exhausted(producer_epoch))
        )

    def with_next_epoch(
        self, *, expected_epoch: int | None, timeout_ms: int, now_ms: int
    ) -> "Transaction | None":
        """A new run of the producer, or the same again for one that did not hear the answer.

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
        return self._step(
            Status.EMPTY,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
            update_ms=now_ms,
        )

    def with_producer_id(
        self, producer_id: int, *, keeps_epoch: bool, timeout_ms: int, now_ms: int
    ) -> "Transaction":
        """Goes on under a new producer id; `keeps_epoch` lets the request be asked again."""
        return self._step(
            Status.EMPTY,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_id=self.producer_id,
            last_producer_epoch=self.producer_epoch if keeps_epoch else NO_EPOCH,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
            update_ms=now_ms,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], *, now_ms: int
    ) -> "Transaction":
        """Begins a transaction, or has it reach further."""
        return self._step(
            Status.ONGOING,
            partitions=self.partitions | partitions,
            start_ms=now_ms if self.is_at_rest else self.start_ms,
            update_ms=now_ms,
        )

    def fenced(self) -> "Transaction":
        """On the way to an abort that its producer did not ask for: it may write no more."""
        assert self.producer_epoch < EPOCH_MAX
        return self._step(
            Status.PREPARE_EPOCH_FENCE,
            producer_epoch=self.producer_epoch + 1,
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
        assert self.status in BEFORE[status], f"{self.status.name} to {status.name}"
        return replace(self, status=status, **changes)  # type: ignore[arg-type]  # named fields
