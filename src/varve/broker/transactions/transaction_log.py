"""`__transaction_state`: where the coordinator keeps what it has decided.

All records of a transactional id stand in one partition, chosen by Java's hash of it. The topic is
made when an id is first used.

Invariant  `append` returns when the record is on disk, whatever the store's default is: the order
           between a decision, its markers and its completion must outlive a loss of power.
Crash      of each id the last record counts; `load` reads them all.
Threads    the loop's alone; reading at the start and making the topic run off the loop.
"""

import asyncio
import logging

from varve.broker.appends import Appends
from varve.broker.groups.offsets_log import Offload, partition_for
from varve.broker.topics import TRANSACTIONS_TOPIC, Topics
from varve.broker.transactions.replay import replay
from varve.broker.transactions.settings import TransactionSettings
from varve.broker.transactions.state import Transaction
from varve.broker.transactions.transaction_record import encode_transaction
from varve.commit_log import Log
from varve.commit_log.producer_state import Origin
from varve.embedded import Store
from varve.foundation.errors import DirectoryOffline, TopicExists
from varve.records import build_batch

logger = logging.getLogger(__name__)


class TransactionLog:
    """The partitions of `__transaction_state`."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        appends: Appends,
        *,
        offload: Offload,
        settings: TransactionSettings,
    ) -> None:
        self._store = store
        self._topics = topics
        self._appends = appends
        self._offload = offload
        self._settings = settings
        self._creation: asyncio.Future[None] | None = None

    async def append(self, transaction: Transaction) -> None:
        """Writes what is to be remembered of an id; raises what the log refused it for."""
        await self._ensure_topic()
        log = self.get_log(transaction.transactional_id)
        batch = build_batch([encode_transaction(transaction)])
        await self._appends.append(log, batch, Origin.COORDINATOR)
        if not log.settings.syncs_every_append:
            await self._offload(log.flush)

    def get_log(self, transactional_id: str) -> Log:
        """The partition of an id; raises DirectoryOffline."""
        topic = self._topics.find(TRANSACTIONS_TOPIC)
        if topic is None:
            raise DirectoryOffline(f"{TRANSACTIONS_TOPIC} is gone; restart the broker")
        number = partition_for(transactional_id, len(topic.logs))
        log = topic.find_log(number)
        if log is None:
            raise DirectoryOffline(
                f"{TRANSACTIONS_TOPIC}-{number} is offline: mend its disk and reopen the store"
            )
        return log

    def is_offline(self, transactional_id: str) -> bool:
        """Whether an id may be known where it cannot be looked up."""
        topic = self._topics.find(TRANSACTIONS_TOPIC)
        if topic is None:
            return False
        return topic.find_log(partition_for(transactional_id, len(topic.logs))) is None

    def coordinator_epoch(self, transactional_id: str) -> int:
        """What markers tell of the coordinator: the leader epoch of the id's partition."""
        epochs = self.get_log(transactional_id).epochs
        return epochs[-1].epoch if epochs else 0

    async def load(self) -> list[Transaction]:
        """What is known of every id."""
        topic = self._topics.find(TRANSACTIONS_TOPIC)
        found: list[Transaction] = []
        for number, log in enumerate(topic.logs if topic is not None else ()):
            if log is None:
                logger.warning("transactional ids are offline", extra={"partition": number})
                continue
            found += await self._offload(replay, log)
        return found

    async def _ensure_topic(self) -> None:
        if self._topics.find(TRANSACTIONS_TOPIC) is not None:
            return
        if self._creation is None:
            self._creation = self._offload(self._create)
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    def _create(self) -> None:
        settings = self._settings
        try:
            self._store.create_topic(
                TRANSACTIONS_TOPIC,
                partitions=settings.transaction_state_log_num_partitions,
                settings={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": settings.transaction_state_log_segment_bytes,
                    "flush": "ack",
                },
            )
        except TopicExists:
            return

    def _created(self, creation: "asyncio.Future[None]") -> None:
        self._creation = None
        if not creation.cancelled() and creation.exception() is None:
            self._topics.refresh()
