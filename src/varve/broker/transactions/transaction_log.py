"""`__transaction_state`: where the coordinator keeps what it has decided.

All records of a transactional id stand in one partition of a `StateTopic`.

Invariant  `append` returns when the record is on disk, whatever the store's default is: the order
           between a decision, its markers and its completion must outlive a loss of power.
Crash      of each id the last record counts; `load` reads them all.
Threads    the loop's alone; reading at the start runs off the loop.
"""

from varve.broker.append_scheduler import AppendScheduler
from varve.broker.background import BlockingPool
from varve.broker.settings import TransactionSettings
from varve.broker.state_topic import StateTopic
from varve.broker.topics import TRANSACTIONS_TOPIC, Topics, current_leader_epoch
from varve.broker.transactions.replay import replay
from varve.broker.transactions.state import Transaction
from varve.broker.transactions.transaction_record import encode_transaction
from varve.commit_log import Log
from varve.commit_log.producer_state import AppendOrigin
from varve.embedded import Store
from varve.records import build_batch


class TransactionLog:
    """The partitions of `__transaction_state`."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        appends: AppendScheduler,
        *,
        blocking: BlockingPool,
        settings: TransactionSettings,
    ) -> None:
        self._topic = StateTopic(
            TRANSACTIONS_TOPIC,
            store,
            topics,
            blocking=blocking,
            partition_count=settings.transaction_state_log_num_partitions,
            segment_bytes=settings.transaction_state_log_segment_bytes,
        )
        self._appends = appends
        self._blocking = blocking

    async def append(self, transaction: Transaction) -> None:
        """Writes what is to be remembered of an id; raises what the log refused it for."""
        await self._topic.ensure()
        log = self.get_log(transaction.transactional_id)
        batch = build_batch([encode_transaction(transaction)])
        await self._appends.append(log, batch, AppendOrigin.COORDINATOR)
        if not log.settings.syncs_every_append:
            await self._blocking.run(log.flush)

    def get_log(self, transactional_id: str) -> Log:
        """The partition of an id; raises DirectoryOffline."""
        return self._topic.get_log(transactional_id)

    def is_offline(self, transactional_id: str) -> bool:
        """Whether an id may be known where it cannot be looked up."""
        return self._topic.is_made and self._topic.find_log(transactional_id) is None

    def coordinator_epoch(self, transactional_id: str) -> int:
        """What markers tell of the coordinator: the leader epoch of the id's partition."""
        return current_leader_epoch(self.get_log(transactional_id))

    async def load(self) -> list[Transaction]:
        """What is known of every id."""
        return [one async for replayed in self._topic.read(replay) for one in replayed]
