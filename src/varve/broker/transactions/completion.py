"""From a decision to its end: markers in every partition, then the last record of a transaction.

Retried until it is done, with longer and longer pauses; a partition whose topic was deleted is left
out.

Invariant  when `write` of the markers returns, every partition that still exists has its marker on
           disk, so that the transaction may be forgotten. A marker that is written again, after a
           failure or a restart, ends nothing and does no harm.
Crash      a decision that is read from the log is carried out like a new one.
Threads    the loop's; one task for each decided transaction.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import BlockingPool, Timers, sleep_ms
from varve.broker.groups.committed_offsets import CommittedOffsets
from varve.broker.state_topic import StateTopic
from varve.broker.topics import Topics
from varve.broker.transactions.transaction import (
    Status,
    Transaction,
    TransactionEntry,
    TransactionTable,
    encode_transaction,
)
from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.foundation.clock import Clock
from varve.foundation.errors import CoordinatorFenced, InvalidProducerEpoch, StoreError
from varve.records import end_transaction_marker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _WrittenMarker:
    partition: TopicPartition
    entry: AppendEntry


class MarkerWriter:
    """Writes the markers of decided transactions."""

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
        """Tries each partition once; returns those to retry."""
        marker = end_transaction_marker(
            committed=transaction.status is Status.PREPARE_COMMIT,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        remaining: set[TopicPartition] = set()
        written: list[_WrittenMarker] = []
        for partition in sorted(partitions):
            if not self._exists(partition):
                extra = {"partition": str(partition)}
                logger.info("partition of a transaction was deleted", extra=extra)
                continue
            log = self._topics.find_log(partition)
            if log is None:
                remaining.add(partition)
            else:
                entry = AppendEntry(log, marker, AppendOrigin.COORDINATOR)
                written.append(_WrittenMarker(partition, entry))
        if written:
            await self._appends.submit([marker.entry for marker in written])
        remaining.update(marker.partition for marker in written if not _is_done(marker))
        logs = [marker.entry.log for marker in written if marker.entry.error is None]
        return remaining | await self.sync(logs)

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

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._topics.find(partition.topic)
        return topic is not None and partition.partition < len(topic.logs)


def _is_done(written: _WrittenMarker) -> bool:
    """Whether it need not be retried: a log that knows a newer producer or coordinator never
    accepts a marker of an older one.
    """
    error = written.entry.error
    if error is None:
        return True
    _warn("transaction marker was rejected", written.partition, error)
    return isinstance(error, InvalidProducerEpoch | CoordinatorFenced)


def _warn(message: str, partition: TopicPartition, error: Exception) -> None:
    logger.warning(message, extra={"partition": str(partition), "error": str(error)})


_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 10_000


class Completion:
    """Completes decided transactions."""

    def __init__(
        self,
        table: TransactionTable,
        log: StateTopic,
        markers: MarkerWriter,
        *,
        clock: Clock,
        timers: Timers,
        offsets: CommittedOffsets,
    ) -> None:
        self._table = table
        self._log = log
        self._markers = markers
        self._clock = clock
        self._timers = timers
        self._offsets = offsets
        self.counts: Counter[Status] = Counter()
        """Transactions completed since the start, by their last status."""

    async def run(self, entry: TransactionEntry) -> None:
        """Returns when the transaction is complete, on disk."""
        remaining = set(entry.current.partitions)
        pause_ms = _PAUSE_FIRST_MS
        while not await self._try(entry, remaining):
            await sleep_ms(self._timers, pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _try(self, entry: TransactionEntry, remaining: set[TopicPartition]) -> bool:
        """Whether it is complete now; removes from `remaining` the partitions that are done."""
        try:
            await self._write_markers(entry.current, remaining)
            if not remaining:
                await self._complete(entry)
            return not remaining
        except StoreError as error:
            logger.warning(
                "completion of a transaction is retried",
                extra={"id": entry.current.transactional_id, "error": str(error)},
            )
        except Exception:
            logger.exception(
                "completion of a transaction failed", extra={"id": entry.current.transactional_id}
            )
        return False

    async def _write_markers(self, decided: Transaction, remaining: set[TopicPartition]) -> None:
        if remaining:
            epoch = self._log.leader_epoch(decided.transactional_id)
            failed = await self._markers.write(decided, remaining, coordinator_epoch=epoch)
            remaining.intersection_update(failed)

    async def _complete(self, entry: TransactionEntry) -> None:
        decided = entry.current
        self._offsets.complete_transaction(
            decided.producer_id, decided.status is Status.PREPARE_COMMIT
        )
        completed = decided.completed(now_ms=self._clock.now_ms())
        entry.next_status = completed.status
        try:
            await append_transaction(self._log, completed)
        finally:
            entry.next_status = None
        self._table.replace(entry, completed)
        self.counts[completed.status] += 1


async def append_transaction(log: StateTopic, transaction: Transaction) -> None:
    """On disk when it returns: the order between a decision, its markers and its completion must
    survive a loss of power. Raises what the log rejected it for.
    """
    await log.append_synced(transaction.transactional_id, [encode_transaction(transaction)])
