"""All transactional ids that the coordinator knows.

Invariant  an entry is changed by one at a time: who writes its next state to the log has set
           `next_status` before the first wait, and clears it when the log has answered.
Threads    the loop's alone.
"""

from collections.abc import Iterator

from varve.broker.transactions.state import (
    NO_EPOCH,
    Status,
    Transaction,
)
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode


class TransactionEntry:
    """A transactional id; `next_status` is what is being written, None where nothing is."""

    __slots__ = ("current", "next_status")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.next_status: Status | None = None

    @property
    def is_unwritten(self) -> bool:
        """Whether the id was never used before, and its first record is not on disk yet."""
        return self.current.producer_epoch == NO_EPOCH

    def refuse(self, *, producer_id: int, producer_epoch: int) -> ErrorCode:
        """What is wrong with a request of this producer; NONE if it may go on."""
        if producer_id != self.current.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != self.current.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.next_status is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE

    def refuse_batch(self, *, producer_epoch: int, partition: TopicPartition) -> ErrorCode:
        """What is wrong with a batch for a partition; NONE if it belongs to the transaction."""
        current = self.current
        if producer_epoch != current.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if current.is_decided or self.next_status not in (None, Status.ONGOING):
            # Kafka tells producers to try again by this code where its coordinator is busy.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if partition not in current.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE


class TransactionTable:
    """The entries."""

    def __init__(self) -> None:
        self._by_id: dict[str, TransactionEntry] = {}
        self._ongoing: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TransactionEntry]:
        """As they are now; what is added or removed meanwhile does not matter."""
        return iter(list(self._by_id.values()))

    def find(self, transactional_id: str) -> TransactionEntry | None:
        return self._by_id.get(transactional_id)

    def ongoing(self) -> list[TransactionEntry]:
        """Those with a transaction that nobody has decided yet."""
        return [self._by_id[one] for one in sorted(self._ongoing)]

    def add(self, transaction: Transaction) -> TransactionEntry:
        entry = TransactionEntry(transaction)
        self._by_id[transaction.transactional_id] = entry
        self.replace(entry, transaction)
        return entry

    def replace(self, entry: TransactionEntry, transaction: Transaction) -> None:
        """The new state of an id, once it is on disk."""
        entry.current = transaction
        if transaction.status is Status.ONGOING:
            self._ongoing.add(transaction.transactional_id)
        else:
            self._ongoing.discard(transaction.transactional_id)

    def remove(self, entry: TransactionEntry) -> None:
        current = entry.current
        del self._by_id[current.transactional_id]
        self._ongoing.discard(current.transactional_id)
