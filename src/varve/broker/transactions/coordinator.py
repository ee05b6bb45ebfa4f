"""Transactions: who may write under a transactional id, and how each transaction ends.

EndTxn is answered when the transaction is complete, so that its producer can begin the next one at
once and a reader of committed records finds it. Kafka answers when the decision is durable and has
the next request tried again until the markers are there. Where markers take longer than
`END_WAIT_MS` the answer is given as Kafka does, and the next request is told
CONCURRENT_TRANSACTIONS.

Invariant  memory follows the log: a step counts once its record is on disk. A transaction is
           committed only when its data is on disk in all its partitions, and forgotten only when
           its markers are, whatever the flush settings of their topics.
Crash      `load` reads the steps back: an open transaction runs into its timeout, a decided one is
           carried out.
Threads    the loop's alone. Requests are carried out in tasks of the coordinator's own: a client
           that goes away in the middle of a step does not cut it.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from varve.broker.background import Timers
from varve.broker.settings import TransactionSettings
from varve.broker.transactions.completion import Completion, TransactionalOffsets, wait_for
from varve.broker.transactions.markers import Markers
from varve.broker.transactions.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Status,
    Transaction,
)
from varve.broker.transactions.table import TransactionEntry, TransactionTable
from varve.broker.transactions.transaction_log import TransactionLog
from varve.broker.transactions.upkeep import TransactionUpkeep
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import RecordTooLarge, StoreError
from varve.wire import ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")

END_WAIT_MS: Final = 1_000


class ProducerIdSource(Protocol):
    """Gives out producer ids, each once."""

    async def next_id(self) -> int: ...

    def note_used(self, producer_id: int) -> None: ...


class GroupPartitions(Protocol):
    """Where the offsets of groups are kept."""

    async def ensure_topic(self) -> None: ...

    def partition_of(self, group: str) -> TopicPartition: ...


@dataclass(frozen=True, slots=True)
class InitResult:
    """Who a producer is from now on, or why it may not be."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class TransactionCoordinator:
    """Of all transactional ids: there is one broker, and it coordinates them all."""

    def __init__(
        self,
        log: TransactionLog,
        markers: Markers,
        *,
        clock: Clock,
        timers: Timers,
        settings: TransactionSettings,
        producer_ids: ProducerIdSource,
        offsets: TransactionalOffsets,
        groups: GroupPartitions,
    ) -> None:
        self._log = log
        self._markers = markers
        self._clock = clock
        self._timers = timers
        self._settings = settings
        self._producer_ids = producer_ids
        self._groups = groups
        self._tasks: set[asyncio.Task[Any]] = set()
        self.table = TransactionTable()
        self._completion = Completion(
            self.table, log, markers, clock=clock, timers=timers, offsets=offsets
        )
        self._upkeep = TransactionUpkeep(self.table, clock=clock, timers=timers, settings=settings)

    @property
    def completed_counts(self) -> Mapping[Status, int]:
        """Transactions completed since the start, by their last status; 0 where there is none."""
        return self._completion.counts

    async def load(self) -> None:
        """Reads the log, goes on with what was decided, and begins to look for what is overdue.

        The offsets that wait for transactions must have been loaded before.
        """
        for transaction in await self._log.load():
            self._producer_ids.note_used(transaction.producer_id)
            entry = self.table.add(transaction)
            if transaction.is_decided:
                self._begin(self._completion.run(entry))
        self._begin(self._upkeep.abort_overdue(self._fence))
        self._begin(self._upkeep.expire_unused(self._expire))

    async def stop(self) -> None:
        """Leaves what is on its way to the next start."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> InitResult:
        """A new run of a producer: older ones may write no more, what they left open is aborted.

        Producer id and epoch are those the producer has had, or both -1. The answer is
        CONCURRENT_TRANSACTIONS until what was open is aborted.
        """
        if not transactional_id or (producer_id < 0) != (producer_epoch < 0):
            return InitResult(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            return InitResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return await self._carry_out(
            self._init(transactional_id, timeout_ms, producer_id, producer_epoch)
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> ErrorCode:
        """Has the producer's transaction reach to partitions; begins it where none is open."""
        return await self._carry_out(
            self._add(transactional_id, producer_id, producer_epoch, partitions)
        )

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group: str
    ) -> ErrorCode:
        """Has the producer's transaction reach to the partition of a group's offsets."""
        try:
            await self._groups.ensure_topic()
        except StoreError as error:
            return _code_of(error)
        partitions = frozenset({self._groups.partition_of(group)})
        return await self.add_partitions(transactional_id, producer_id, producer_epoch, partitions)

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool
    ) -> ErrorCode:
        """Commits or aborts the producer's transaction."""
        return await self._carry_out(
            self._end(transactional_id, producer_id, producer_epoch, is_commit=is_commit)
        )

    def find(self, transactional_id: str) -> Transaction | None:
        """What is known of an id."""
        entry = self.table.find(transactional_id)
        return None if entry is None or entry.is_unwritten else entry.current

    def known(self) -> list[Transaction]:
        """What is known of every id."""
        return [entry.current for entry in self.table if not entry.is_unwritten]

    def check_produce(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> ErrorCode:
        """Whether a batch of a transaction may be appended to a partition.

        To be asked in the same turn of the loop in which the batch is submitted: markers that are
        submitted later then stand behind it.
        """
        if not self._settings.transaction_partition_verification_enable:
            return ErrorCode.NONE
        entry = self.table.find(transactional_id)
        if entry is None and self._log.is_offline(transactional_id):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if entry is None or producer_id != entry.current.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return entry.refuse_batch(producer_epoch=producer_epoch, partition=partition)

    def _find_for(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> tuple[TransactionEntry | None, ErrorCode]:
        """The entry if this producer may change it now, else why not."""
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        entry = self.table.find(transactional_id)
        if entry is None:
            return None, self._why_unknown(transactional_id)
        error = entry.refuse(producer_id=producer_id, producer_epoch=producer_epoch)
        return (None, error) if error else (entry, ErrorCode.NONE)

    def _why_unknown(self, transactional_id: str) -> ErrorCode:
        if self._log.is_offline(transactional_id):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING

    # Requests, each in a task of its own

    async def _init(
        self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> InitResult:
        entry = self.table.find(transactional_id) or self._add_unwritten(transactional_id)
        current = entry.current
        if entry.next_status is not None:
            return InitResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        if producer_id >= 0 and not current.knows_producer(producer_id, producer_epoch):
            return InitResult(ErrorCode.PRODUCER_FENCED)
        if current.is_decided:
            return InitResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.status is Status.ONGOING:
            error = await self._fence(entry)
            return InitResult(error or ErrorCode.CONCURRENT_TRANSACTIONS)
        expected_epoch = producer_epoch if producer_id >= 0 else None
        try:
            return await self._renew(entry, expected_epoch, timeout_ms)
        finally:
            if entry.is_unwritten:
                self.table.remove(entry)

    async def _add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> ErrorCode:
        entry, error = self._find_for(transactional_id, producer_id, producer_epoch)
        if entry is None:
            return error
        current = entry.current
        if current.is_decided:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if current.status is Status.ONGOING and partitions <= current.partitions:
            return ErrorCode.NONE
        planned = current.with_partitions(partitions, now_ms=self._now_ms())
        return await self._write(entry, planned)

    async def _end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool
    ) -> ErrorCode:
        entry, error = self._find_for(transactional_id, producer_id, producer_epoch)
        if entry is None:
            return error
        match entry.current.status:
            case Status.ONGOING:
                return await self._decide(entry, is_commit=is_commit)
            case Status.COMPLETE_COMMIT if is_commit:
                return ErrorCode.NONE
            case Status.COMPLETE_ABORT if not is_commit:
                return ErrorCode.NONE
            case Status.PREPARE_COMMIT if is_commit:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            case Status.PREPARE_ABORT if not is_commit:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            case _:
                return ErrorCode.INVALID_TXN_STATE

    # Steps: `next_status` is set before the first wait

    async def _renew(
        self, entry: TransactionEntry, expected_epoch: int | None, timeout_ms: int
    ) -> InitResult:
        current, now_ms = entry.current, self._now_ms()
        if current.needs_producer_id(expected_epoch):
            entry.next_status = Status.EMPTY
            try:
                producer_id = await self._producer_ids.next_id()
            except StoreError as error:
                return InitResult(_code_of(error))
            finally:
                entry.next_status = None
            planned: Transaction | None = current.with_producer_id(
                producer_id,
                keeps_epoch=expected_epoch is not None,
                timeout_ms=timeout_ms,
                now_ms=now_ms,
            )
        else:
            planned = current.with_next_epoch(
                expected_epoch=expected_epoch, timeout_ms=timeout_ms, now_ms=now_ms
            )
        if planned is None:
            return InitResult(ErrorCode.PRODUCER_FENCED)
        error_code = await self._write(entry, planned)
        if error_code:
            return InitResult(error_code)
        return InitResult(ErrorCode.NONE, planned.producer_id, planned.producer_epoch)

    async def _fence(self, entry: TransactionEntry) -> ErrorCode:
        """Aborts a transaction under a new epoch: its producer is not asked."""
        if entry.next_status is not None or entry.current.status is not Status.ONGOING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        fenced = entry.current.fenced()
        error = await self._write(entry, fenced.prepared(is_commit=False, now_ms=self._now_ms()))
        if not error:
            self._begin(self._completion.run(entry))
        return error

    async def _decide(self, entry: TransactionEntry, *, is_commit: bool) -> ErrorCode:
        planned = entry.current.prepared(is_commit=is_commit, now_ms=self._now_ms())
        if is_commit:
            # From now on no batch is taken; those taken before are on disk when the decision is.
            entry.next_status = planned.status
            try:
                failed = await self._markers.sync(self._markers.logs_of(planned.partitions))
            finally:
                entry.next_status = None
            if failed:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = await self._write(entry, planned)
        if not error:
            completion = self._begin(self._completion.run(entry))
            await wait_for(completion, self._timers, END_WAIT_MS)
        return error

    async def _expire(self, entry: TransactionEntry) -> None:
        """Forgets an id that has no transaction."""
        if not await self._write(entry, entry.current.dead()):
            self.table.remove(entry)

    async def _write(self, entry: TransactionEntry, planned: Transaction) -> ErrorCode:
        """Takes a step: on disk first, then in memory."""
        entry.next_status = planned.status
        try:
            await self._log.append(planned)
        except StoreError as error:
            logger.warning(
                "a step of a transaction was not written",
                extra={"transactional_id": planned.transactional_id, "error": str(error)},
            )
            return _code_of(error)
        finally:
            entry.next_status = None
        self.table.replace(entry, planned)
        return ErrorCode.NONE

    def _add_unwritten(self, transactional_id: str) -> TransactionEntry:
        """An id that was never used; its first step fills it."""
        return self.table.add(
            Transaction(
                transactional_id=transactional_id,
                producer_id=NO_PRODUCER_ID,
                timeout_ms=0,
                update_ms=self._now_ms(),
            )
        )

    # Tasks

    async def _carry_out(self, step: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._begin(step))

    def _begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a transaction stands still", exc_info=task.exception())

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def _code_of(error: StoreError) -> ErrorCode:
    """As Kafka answers where its log of transactions takes no record."""
    if isinstance(error, RecordTooLarge):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
