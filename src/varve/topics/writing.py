"""What writes batches of several partitions as one transaction, wherever the partitions are.

Invariant  readers of committed records see all batches of a transaction, or none of them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from varve.commit_log import TopicPartition
from varve.records import Producer


class TransactionalWriter(Protocol):
    """One writer of an id; `init_transactions` comes first. Used by one thread.

    The first append after it, after a commit or after an abort begins a transaction.
    """

    @property
    def producer(self) -> Producer: ...

    def init_transactions(self) -> None:
        """Fences earlier writers of the same id and ends what they left open."""

    def append(
        self,
        batches: Mapping[TopicPartition, Sequence[bytes | bytearray]],
        *,
        default_timestamp: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        """Appends batches in this order; the end offsets of the partitions, -1 if unknown.

        Batches get the producer and its sequences; a bytearray is changed in place. Raises Fenced
        when a later writer of the id exists. After an error, call `init_transactions` again.
        """

    def commit(self) -> None:
        """Raises Fenced when a later writer of the id, or a timeout, ended the transaction."""

    def abort(self) -> None: ...
