"""The transaction coordinator: who may write under a transactional id, and how transactions end.

EndTxn is answered when the transaction is complete, so that its producer can start the next one at
once and a reader of committed records sees it. Kafka answers when the decision is durable, and the
next request is retried until the markers are written. Where markers take longer than `END_WAIT_MS`,
EndTxn is answered as in Kafka, and the next request gets CONCURRENT_TRANSACTIONS.

Invariant  memory follows the log: a step counts once its record is on disk. A transaction is
           committed only when its data is on disk in all its partitions, and forgotten only when
           its markers are, whatever the flush settings of their topics.
Crash      `load` reads the steps back: an open transaction runs into its timeout, a decided one is
           completed.
Threads    the loop's. Requests run in background tasks: a client that disconnects in the middle of
           a step does not interrupt it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from varve.broker.background import BackgroundTasks, Timers, sleep_ms, wait_with_timeout
from varve.broker.groups.committed_offsets import CommittedOffsets
from varve.broker.groups.records import GroupLog
from varve.broker.settings import TransactionSettings
from varve.broker.state_topic import StateTopic
from varve.broker.transactions.completion import Completion, MarkerWriter, append_transaction
from varve.broker.transactions.producer_ids import ProducerIds
from varve.broker.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Status,
    Transaction,
    TransactionEntry,
    TransactionTable,
    decode_transaction,
)
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import RecordTooLarge, StoreError
from varve.wire import ErrorCode

logger = logging.getLogger(__name__)

END_WAIT_MS: Final = 1_000

_ENTRIES_AT_ONCE: Final = 1_000
_CONCURRENT_ABORTS: Final = 64


@dataclass(frozen=True, slots=True)
class InitResult:
    """The id and epoch of a producer, or the error."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class TransactionCoordinator:
    """Coordinates all transactional ids."""

    def __init__(
        self,
        log: StateTopic,
        markers: MarkerWriter,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        timers: Timers,
        settings: TransactionSettings,
        producer_ids: ProducerIds,
        offsets: CommittedOffsets,
        groups: GroupLog,
    ) -> None:
        self._log = log
        self._markers = markers
        self._clock = clock
        self._timers = timers
        self._settings = settings
        self._producer_ids = producer_ids
        self._groups = groups
        self._tasks = BackgroundTasks(loop)
        self.table = TransactionTable()
        self._completion = Completion(
            self.table, log, markers, clock=clock, timers=timers, offsets=offsets
        )

    @property
    def completed_counts(self) -> Mapping[Status, int]:
        """Transactions completed since the start, by their last status."""
        return self._completion.counts

    async def load(self) -> None:
        """Reads the log, completes decided transactions, and starts to expire transactions and ids.

        The offsets that wait for transactions must be loaded before.
        """
        async for replayed in self._log.replay():
            for record in replayed.live:
                transaction = decode_transaction(record.key, record.value or b"", replayed.where)
                if transaction is None:
                    continue
                self._producer_ids.note_used(transaction.producer_id)
                entry = self.table.add(transaction)
                if transaction.is_decided:
                    self._tasks.start(self._completion.run(entry))
        self._tasks.start(self._abort_periodically())
        self._tasks.start(self._expire_periodically())

    async def stop(self) -> None:
        """Cancels what is in progress; the next start continues it."""
        await self._tasks.stop(cancels=True)

    # Expiration

    async def _abort_periodically(self) -> None:
        while True:
            await sleep_ms(self._timers, self._settings.transaction_abort_interval_ms)
            await self.abort_overdue()

    async def abort_overdue(self) -> None:
        """Aborts transactions that are open longer than their timeout, many at a time."""
        slots = asyncio.Semaphore(_CONCURRENT_ABORTS)

        async def abort(entry: TransactionEntry) -> None:
            async with slots:
                try:
                    await self._fence(entry)
                except Exception:
                    extra = {"id": entry.current.transactional_id}
                    logger.exception("abort of an overdue transaction failed", extra=extra)

        overdue = [entry for entry in self.table.ongoing() if self._is_overdue(entry)]
        await asyncio.gather(*(abort(entry) for entry in overdue))

    def _is_overdue(self, entry: TransactionEntry) -> bool:
        open_ms = self._now_ms() - entry.current.start_ms
        return entry.next_status is None and open_ms > entry.current.timeout_ms

    async def _expire_periodically(self) -> None:
        while True:
            await sleep_ms(self._timers, self._settings.transaction_expiration_interval_ms)
            await self.expire_unused()

    async def expire_unused(self) -> None:
        """Removes ids that were not used for `transactional.id.expiration.ms`."""
        for count, entry in enumerate(self.table):
            if count % _ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not self._is_expired(entry):
                continue
            try:
                if not await self._write(entry, entry.current.dead()):
                    self.table.remove(entry)
            except Exception:
                extra = {"id": entry.current.transactional_id}
                logger.exception("expiration of a transactional id failed", extra=extra)

    def _is_expired(self, entry: TransactionEntry) -> bool:
        current = entry.current
        unused_ms = self._now_ms() - current.update_ms
        is_unused = unused_ms >= self._settings.transactional_id_expiration_ms
        return is_unused and current.is_idle and entry.next_status is None

    # Requests

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> InitResult:
        """A new run of a producer: older ones are fenced, and their open transaction is aborted.

        Producer id and epoch are those the producer had, or both -1. The error is
        CONCURRENT_TRANSACTIONS until the open transaction is aborted.
        """
        if not transactional_id or (producer_id < 0) != (producer_epoch < 0):
            return InitResult(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            return InitResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return await self._tasks.finish(
            self._init(transactional_id, timeout_ms, producer_id, producer_epoch)
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> ErrorCode:
        """Adds partitions to the producer's transaction; starts one where none is open."""
        return await self._tasks.finish(
            self._add(transactional_id, producer_id, producer_epoch, partitions)
        )

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group: str
    ) -> ErrorCode:
        """Adds the partition of a group's offsets to the producer's transaction."""
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
        return await self._tasks.finish(
            self._end(transactional_id, producer_id, producer_epoch, is_commit=is_commit)
        )

    def find(self, transactional_id: str) -> Transaction | None:
        """The state of an id."""
        entry = self.table.find(transactional_id)
        return None if entry is None or entry.is_unwritten else entry.current

    def known(self) -> list[Transaction]:
        """The states of all ids."""
        return [entry.current for entry in self.table if not entry.is_unwritten]

    def check_produce(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> ErrorCode:
        """The error of a transactional batch for a partition; NONE if it may be appended.

        To be called in the same turn of the loop in which the batch is submitted, so that markers
        follow it.
        """
        if not self._settings.transaction_partition_verification_enable:
            return ErrorCode.NONE
        entry = self.table.find(transactional_id)
        if entry is None and self._log.is_offline(transactional_id):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if entry is None or producer_id != entry.current.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return entry.find_batch_error(producer_epoch=producer_epoch, partition=partition)

    def _find_for(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> tuple[TransactionEntry | None, ErrorCode]:
        """The entry if this producer may change it now, else the error."""
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        entry = self.table.find(transactional_id)
        if entry is None:
            return None, self._unknown_id_code(transactional_id)
        error = entry.find_error(producer_id=producer_id, producer_epoch=producer_epoch)
        return (None, error) if error else (entry, ErrorCode.NONE)

    def _unknown_id_code(self, transactional_id: str) -> ErrorCode:
        if self._log.is_offline(transactional_id):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING

    # Requests, each in a background task

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
        """Aborts a transaction under a new epoch, which fences its producer."""
        if entry.next_status is not None or entry.current.status is not Status.ONGOING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        fenced = entry.current.fenced()
        error = await self._write(entry, fenced.prepared(is_commit=False, now_ms=self._now_ms()))
        if not error:
            self._tasks.start(self._completion.run(entry))
        return error

    async def _decide(self, entry: TransactionEntry, *, is_commit: bool) -> ErrorCode:
        planned = entry.current.prepared(is_commit=is_commit, now_ms=self._now_ms())
        if is_commit:
            # No batch is accepted any more; those accepted before must be on disk first.
            entry.next_status = planned.status
            try:
                failed = await self._markers.sync(self._markers.logs_of(planned.partitions))
            finally:
                entry.next_status = None
            if failed:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = await self._write(entry, planned)
        if not error:
            completion = self._tasks.start(self._completion.run(entry))
            with contextlib.suppress(TimeoutError):
                await wait_with_timeout(self._timers, completion, END_WAIT_MS)
        return error

    async def _write(self, entry: TransactionEntry, planned: Transaction) -> ErrorCode:
        """Takes a step: on disk first, then in memory."""
        entry.next_status = planned.status
        try:
            await append_transaction(self._log, planned)
        except StoreError as error:
            logger.warning(
                "transaction step was not written",
                extra={"transactional_id": planned.transactional_id, "error": str(error)},
            )
            return _code_of(error)
        finally:
            entry.next_status = None
        self.table.replace(entry, planned)
        return ErrorCode.NONE

    def _add_unwritten(self, transactional_id: str) -> TransactionEntry:
        """A new id, until its first step is written."""
        return self.table.add(
            Transaction(
                transactional_id=transactional_id,
                producer_id=NO_PRODUCER_ID,
                timeout_ms=0,
                update_ms=self._now_ms(),
            )
        )

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def _code_of(error: StoreError) -> ErrorCode:
    """As Kafka answers where its transaction log rejects a record."""
    if isinstance(error, RecordTooLarge):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
