"""The transaction coordinator: who may write under a transactional id, and how transactions end.

EndTxn is answered when the transaction is complete, so that its producer can start the next one at
once and a reader of committed records sees it. Kafka answers when the decision is durable, and the
next request is retried until the markers are written. Where markers take longer than `END_WAIT_MS`,
EndTxn is answered as in Kafka, and the next request gets CONCURRENT_TRANSACTIONS. A completion is
retried until it is done, with longer and longer pauses.

Invariant  memory follows the log: a step counts once its record is on disk. A transaction is
           committed only when its data is on disk in all its partitions, and forgotten only when
           its markers are, whatever the flush settings of their topics.
           A request that fails raises KafkaError. A marker that is written again, after a failure
           or a restart, ends nothing and does no harm.
Crash      `load` reads the steps back: an open transaction runs into its timeout, a decided one is
           completed.
Threads    the loop's. Requests run in background tasks: a client that disconnects in the middle of
           a step does not interrupt it.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import (
    BackgroundTasks,
    BlockingPool,
    Timers,
    finished,
    sleep_ms,
    wait_with_timeout,
)
from varve.broker.groups.committed_offsets import CommittedOffsets
from varve.broker.groups.group import kafka_errors
from varve.broker.settings import TransactionSettings
from varve.broker.state_topic import StateTopic
from varve.broker.topics import Topics
from varve.broker.transactions.producer_ids import ProducerIds
from varve.broker.transactions.transaction import (
    NO_PRODUCER_ID,
    Status,
    Transaction,
    TransactionEntry,
    TransactionTable,
    decode_transaction,
    encode_transaction,
)
from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    RecordTooLarge,
    StoreError,
)
from varve.records import end_transaction_marker
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError

logger = logging.getLogger(__name__)


class MarkerWriter:
    """Writes the markers of decided transactions; partitions of deleted topics are left out."""

    def __init__(
        self, topics: Topics, appends: AppendScheduler, *, clock: Clock, blocking: BlockingPool
    ) -> None:
        self._topics = topics
        self._appends = appends
        self._clock = clock
        self._blocking = blocking

    async def write(
        self,
        transaction: Transaction,
        partitions: Iterable[TopicPartition],
        *,
        coordinator_epoch: int,
    ) -> set[TopicPartition]:
        """Tries each partition once; returns those to retry. All others have their marker on disk,
        or do not exist any more.
        """
        marker = end_transaction_marker(
            committed=transaction.status is Status.PREPARE_COMMIT,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        remaining: set[TopicPartition] = set()
        entries: list[AppendEntry] = []
        for partition in sorted(partitions):
            topic = self._topics.find(partition.topic)
            log = None if topic is None else topic.find_log(partition.partition)
            if log is not None:
                entries.append(AppendEntry(log, marker, AppendOrigin.COORDINATOR))
            elif topic is not None and partition.partition < len(topic.logs):
                remaining.add(partition)
            else:
                extra = {"partition": str(partition)}
                logger.info("partition of a transaction was deleted", extra=extra)
        if entries:
            await self._appends.submit(entries)
        remaining.update(entry.log.topic_partition for entry in entries if not _is_done(entry))
        return remaining | await self.sync(entry.log for entry in entries if entry.error is None)

    async def sync(self, logs: Iterable[Log]) -> set[TopicPartition]:
        """Syncs logs that are not synced for every append; returns those that failed."""
        failed: set[TopicPartition] = set()
        syncs = [
            (log, self._blocking.run(log.flush))
            for log in logs
            if not log.settings.syncs_every_append
        ]
        for log, done in syncs:
            try:
                await done
            except StoreError as error:
                failed.add(log.topic_partition)
                _warn("sync of a transaction failed", log.topic_partition, error)
        return failed

    def logs_of(self, partitions: Iterable[TopicPartition]) -> list[Log]:
        """Those that exist and are online."""
        logs = (self._topics.find_log(partition) for partition in partitions)
        return [log for log in logs if log is not None]


def _is_done(entry: AppendEntry) -> bool:
    """Whether it need not be retried: a log that knows a newer producer or coordinator never
    accepts a marker of an older one.
    """
    if entry.error is None:
        return True
    _warn("transaction marker was rejected", entry.log.topic_partition, entry.error)
    return isinstance(entry.error, InvalidProducerEpoch | CoordinatorFenced)


def _warn(message: str, partition: TopicPartition, error: Exception) -> None:
    logger.warning(message, extra={"partition": str(partition), "error": str(error)})


END_WAIT_MS: Final = 1_000

_ENTRIES_AT_ONCE: Final = 1_000
_CONCURRENT_ABORTS: Final = 64
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 10_000


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
        groups: StateTopic,
    ) -> None:
        self._log = log
        self.markers = markers
        self._clock = clock
        self._timers = timers
        self._settings = settings
        self._producer_ids = producer_ids
        self._groups = groups
        self._offsets = offsets
        self.tasks = BackgroundTasks(loop)
        self.table = TransactionTable()
        self.completed_counts: Counter[Status] = Counter()
        """Transactions completed since the start, by their last status."""

    async def load(self) -> None:
        """Reads the log, completes decided transactions, and starts to expire transactions and ids.

        The offsets that wait for transactions must be loaded before.
        """
        async for replayed in self._log.replay():
            for record in replayed.live:
                where = f"{replayed.where} {record.offset}"
                transaction = None
                with self._log.setting_aside(where):
                    transaction = decode_transaction(record.key, record.value or b"", where)
                if transaction is None:
                    continue
                self._producer_ids.add_used(transaction.producer_id)
                entry = self.table.add(transaction)
                if transaction.is_decided:
                    self.tasks.start(self._complete(entry))
        settings = self._settings
        for work, interval_ms in (
            (self.abort_overdue, settings.transaction_abort_interval_ms),
            (self.expire_unused, settings.transaction_expiration_interval_ms),
        ):
            self.tasks.start(self._repeat(work, interval_ms))

    @property
    def unreadable_count(self) -> int:
        return self._log.unreadable_count

    async def stop(self) -> None:
        """Cancels what is in progress; the next start continues it."""
        await self.tasks.stop(cancels=True)

    # Expiration

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_ms: int) -> None:
        while True:
            await sleep_ms(self._timers, interval_ms)
            await work()

    async def abort_overdue(self) -> None:
        """Aborts transactions that are open longer than their timeout, many at a time."""
        slots = asyncio.Semaphore(_CONCURRENT_ABORTS)

        async def abort(entry: TransactionEntry) -> None:
            async with slots:
                try:
                    # One that fails is retried in the next round.
                    with contextlib.suppress(KafkaError):
                        await self._fence(entry)
                except Exception:
                    extra = {"id": entry.current.transactional_id}
                    logger.exception("abort of an overdue transaction failed", extra=extra)

        overdue = [entry for entry in self.table.ongoing() if self._is_overdue(entry)]
        await asyncio.gather(*(abort(entry) for entry in overdue))

    def _is_overdue(self, entry: TransactionEntry) -> bool:
        open_ms = self._now_ms() - entry.current.start_ms
        return entry.next_status is None and open_ms > entry.current.timeout_ms

    async def expire_unused(self) -> None:
        """Removes ids that were not used for `transactional.id.expiration.ms`."""
        for count, entry in enumerate(self.table):
            if count % _ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not self._is_expired(entry):
                continue
            try:
                with contextlib.suppress(KafkaError):
                    await self._write(entry, entry.current.dead())
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

    @finished
    async def init_producer(
        self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> Transaction:
        """A new run of a producer: older ones are fenced, and their open transaction is aborted.

        Producer id and epoch are those the producer had, or both -1. The error is
        CONCURRENT_TRANSACTIONS until the open transaction is aborted.
        """
        if not transactional_id or (producer_id < 0) != (producer_epoch < 0):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        entry = self.table.find(transactional_id) or self._add_unwritten(transactional_id)
        current = entry.current
        if entry.next_status is not None:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if producer_id >= 0 and not current.knows_producer(producer_id, producer_epoch):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if current.status is Status.ONGOING:
            await self._fence(entry)
        if not current.is_idle:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        expected_epoch = producer_epoch if producer_id >= 0 else None
        try:
            return await self._renew(entry, expected_epoch, timeout_ms)
        finally:
            if entry.is_unwritten:
                self.table.remove(entry)

    @finished
    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> None:
        """Adds partitions to the producer's transaction; starts one where none is open."""
        entry = self._get_entry(transactional_id, producer_id, producer_epoch)
        current = entry.current
        if current.is_decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.status is not Status.ONGOING or not partitions <= current.partitions:
            await self._write(entry, current.with_partitions(partitions, now_ms=self._now_ms()))

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group: str
    ) -> None:
        """Adds the partition of a group's offsets to the producer's transaction."""
        with kafka_errors(_error_code):
            await self._groups.ensure()
        partitions = frozenset({self._groups.partition_of(group)})
        await self.add_partitions(transactional_id, producer_id, producer_epoch, partitions)

    @finished
    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool
    ) -> None:
        """Commits or aborts the producer's transaction."""
        entry = self._get_entry(transactional_id, producer_id, producer_epoch)
        match entry.current.status, is_commit:
            case Status.ONGOING, _:
                await self._decide(entry, is_commit=is_commit)
            case (Status.COMPLETE_COMMIT, True) | (Status.COMPLETE_ABORT, False):
                return
            case (Status.PREPARE_COMMIT, True) | (Status.PREPARE_ABORT, False):
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            case _:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)

    def find(self, transactional_id: str) -> Transaction | None:
        """The state of an id."""
        entry = self.table.find(transactional_id)
        return None if entry is None or entry.is_unwritten else entry.current

    def list_transactions(self) -> list[Transaction]:
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

    def _get_entry(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> TransactionEntry:
        """The entry, where this producer may change it now."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        entry = self.table.find(transactional_id)
        if entry is None and self._log.is_offline(transactional_id):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if entry is None or producer_id != entry.current.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer_epoch != entry.current.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if entry.next_status is not None:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return entry

    # Steps: `next_status` is set before the first wait

    async def _renew(
        self, entry: TransactionEntry, expected_epoch: int | None, timeout_ms: int
    ) -> Transaction:
        current, now_ms = entry.current, self._now_ms()
        planned: Transaction | None
        if current.needs_producer_id(expected_epoch):
            with kafka_errors(_error_code), entry.becoming(Status.EMPTY):
                producer_id = await self._producer_ids.next_id()
            keeps_epoch = expected_epoch is not None
            planned = current.with_producer_id(
                producer_id, keeps_epoch=keeps_epoch, timeout_ms=timeout_ms, now_ms=now_ms
            )
        else:
            planned = current.with_next_epoch(
                expected_epoch=expected_epoch, timeout_ms=timeout_ms, now_ms=now_ms
            )
        if planned is None:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        await self._write(entry, planned)
        return planned

    async def _fence(self, entry: TransactionEntry) -> None:
        """Aborts a transaction under a new epoch, which fences its producer."""
        if entry.next_status is not None or entry.current.status is not Status.ONGOING:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        fenced = entry.current.fenced()
        await self._write(entry, fenced.prepared(is_commit=False, now_ms=self._now_ms()))
        self.tasks.start(self._complete(entry))

    async def _decide(self, entry: TransactionEntry, *, is_commit: bool) -> None:
        planned = entry.current.prepared(is_commit=is_commit, now_ms=self._now_ms())
        if is_commit:
            # No batch is accepted any more; those accepted before must be on disk first.
            with entry.becoming(planned.status):
                failed = await self.markers.sync(self.markers.logs_of(planned.partitions))
            if failed:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await self._write(entry, planned)
        completion = self.tasks.start(self._complete(entry))
        with contextlib.suppress(TimeoutError):
            await wait_with_timeout(self._timers, completion, END_WAIT_MS)

    async def _write(self, entry: TransactionEntry, planned: Transaction) -> None:
        """Takes a step: on disk first, then in memory."""
        with kafka_errors(_error_code):
            try:
                await self._append(entry, planned)
            except StoreError as error:
                extra = {"transactional_id": planned.transactional_id, "error": str(error)}
                logger.warning("transaction step was not written", extra=extra)
                raise

    async def _append(self, entry: TransactionEntry, planned: Transaction) -> None:
        """On disk before it counts, whatever the topic's flush settings: the order between a
        decision, its markers and its completion must survive a loss of power.
        """
        with entry.becoming(planned.status):
            record = encode_transaction(planned)
            await self._log.append_synced(planned.transactional_id, [record])
        self.table.replace(entry, planned)

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

    # Completion: markers in every partition, then the last record of the transaction

    async def _complete(self, entry: TransactionEntry) -> None:
        """Returns when the transaction is complete, on disk."""
        remaining = set(entry.current.partitions)
        pause_ms = _PAUSE_FIRST_MS
        while not await self._try_complete(entry, remaining):
            await sleep_ms(self._timers, pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _try_complete(self, entry: TransactionEntry, remaining: set[TopicPartition]) -> bool:
        """Whether it is complete now; removes from `remaining` the partitions that are done."""
        decided = entry.current
        try:
            if remaining:
                epoch = self._log.leader_epoch(decided.transactional_id)
                failed = await self.markers.write(decided, remaining, coordinator_epoch=epoch)
                remaining.intersection_update(failed)
            if remaining:
                return False
            is_commit = decided.status is Status.PREPARE_COMMIT
            self._offsets.complete_transaction(decided.producer_id, is_commit)
            await self._append(entry, decided.completed(now_ms=self._now_ms()))
        except StoreError as error:
            extra = {"id": decided.transactional_id, "error": str(error)}
            logger.warning("completion of a transaction is retried", extra=extra)
            return False
        except Exception:
            extra = {"id": decided.transactional_id}
            logger.exception("completion of a transaction failed", extra=extra)
            return False
        self.completed_counts[entry.current.status] += 1
        return True


def _error_code(error: Exception) -> ErrorCode:
    """As Kafka answers where its transaction log rejects a record."""
    if isinstance(error, RecordTooLarge):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
