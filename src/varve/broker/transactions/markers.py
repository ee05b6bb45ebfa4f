"""Tells the partitions of a decided transaction how it ended.

Invariant  when `write` returns, every partition that still exists has its marker, on disk: the
           transaction may be forgotten then. A marker that is written again, after a failure or a
           restart, ends nothing and harms nothing.
Threads    the loop's alone.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import BlockingPool
from varve.broker.topics import Topics
from varve.broker.transactions.state import Status, Transaction
from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.foundation.clock import Clock
from varve.foundation.errors import CoordinatorFenced, InvalidProducerEpoch, StoreError
from varve.records import end_transaction_marker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Written:
    partition: TopicPartition
    part: AppendEntry


class Markers:
    """Writes markers."""

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
        """Tries each partition once; gives those that must be tried again."""
        marker = end_transaction_marker(
            committed=transaction.status is Status.PREPARE_COMMIT,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        left: set[TopicPartition] = set()
        written: list[_Written] = []
        for partition in sorted(partitions):
            if not self._exists(partition):
                logger.info("a transaction's partition is gone", extra={"partition": partition})
                continue
            log = self._topics.find_log(partition)
            if log is None:
                left.add(partition)
            else:
                part = AppendEntry(log, marker, AppendOrigin.COORDINATOR)
                written.append(_Written(partition, part))
        if written:
            await self._appends.submit([one.part for one in written])
        left.update(one.partition for one in written if not _is_done(one))
        done = [one.part.log for one in written if one.part.error is None]
        return left | await self.sync(done)

    async def sync(self, logs: Iterable[Log]) -> set[TopicPartition]:
        """Brings logs to the disk that do not go there by themselves; gives those that failed."""
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
                _warn("a transaction did not reach the disk", log.topic_partition, error)
        return failed

    def logs_of(self, partitions: Iterable[TopicPartition]) -> list[Log]:
        """Those that exist and are online."""
        found = (self._topics.find_log(one) for one in partitions)
        return [log for log in found if log is not None]

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._topics.find(partition.topic)
        return topic is not None and partition.partition < len(topic.logs)


def _is_done(written: _Written) -> bool:
    """Whether there is nothing more to do: a log that knows a newer producer or coordinator takes
    no marker of an older one, however often it is tried.
    """
    error = written.part.error
    if error is None:
        return True
    _warn("a marker was refused", written.partition, error)
    return isinstance(error, InvalidProducerEpoch | CoordinatorFenced)


def _warn(message: str, partition: TopicPartition, error: Exception) -> None:
    logger.warning(message, extra={"partition": str(partition), "error": str(error)})
