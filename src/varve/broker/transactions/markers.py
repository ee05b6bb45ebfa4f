"""Transaction markers: the end of a transaction in each of its partitions.

Invariant  when `write` returns, every partition that is not returned and still exists has its
           marker on disk. A marker that is written again, after a failure or a restart, ends
           nothing and does no harm. Partitions of deleted topics are left out.
Threads    the loop's; logs are synced in the blocking pool.
"""

import logging
from collections.abc import Iterable

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import BlockingPool
from varve.broker.topics import Topics
from varve.broker.transactions.transaction import Status, Transaction
from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.foundation.clock import Clock
from varve.foundation.errors import CoordinatorFenced, InvalidProducerEpoch, StoreError
from varve.records import end_transaction_marker

logger = logging.getLogger(__name__)


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
        entries: list[AppendEntry] = []
        for partition in sorted(partitions):
            log = self._topics.find_log(partition)
            if log is not None:
                entries.append(AppendEntry(log, marker, AppendOrigin.COORDINATOR))
            elif self._exists(partition):
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

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._topics.find(partition.topic)
        return topic is not None and partition.partition < len(topic.logs)


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
