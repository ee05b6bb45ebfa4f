"""The broker: owns topics, coordinators, security and the threads that its handlers use.

Invariant  a request changes nothing but what it names: a handler that fails answers with an error
           or, where its response has no field for one, closes the connection.
Threads    everything belongs to the loop's thread. Appends go through `appends`; other work that
           may take more than a millisecond goes through `blocking`.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from varve.broker.admin.broker_configs import BrokerConfigs
from varve.broker.admin.configs import TopicConfigs
from varve.broker.admin.group_configs import GroupConfigs
from varve.broker.append_scheduler import AppendScheduler, RecentFailures
from varve.broker.background import BackgroundTasks, BlockingPool, Timers
from varve.broker.data.fetch_sessions import FetchSessions
from varve.broker.data.parked_fetches import BackgroundReads, ParkedFetches
from varve.broker.dedup.state import DedupEnvironment
from varve.broker.dedup.topics import DedupTopics
from varve.broker.groups.coordinator import GroupCoordinator
from varve.broker.groups.group import GroupServices
from varve.broker.groups.records import GroupLog
from varve.broker.metrics import BrokerMetrics
from varve.broker.request import AllowAllAuthorizer, Authorizer, ConnectionContext
from varve.broker.security.acls import AclAuthorizer, AclTable
from varve.broker.security.credentials import ScramCredentials
from varve.broker.security.quotas import ClientQuotas, QuotaTable
from varve.broker.settings import (
    BrokerSettings,
    GroupSettings,
    QuotaSettings,
    SecuritySettings,
    TransactionSettings,
)
from varve.broker.state_topic import StateTopic
from varve.broker.stored_configs import StoredConfigs
from varve.broker.topics import ServedTopic, Topics, TopicsView
from varve.broker.transactions.coordinator import MarkerWriter, TransactionCoordinator
from varve.broker.transactions.producer_ids import ProducerIds
from varve.commit_log import TopicPartition
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.foundation.settings import Settings
from varve.wire.messages.state_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

_SYNC_THREADS: Final = 8
"""They wait for the disk, which syncs several files at once, and use little CPU time."""
_CHECK_THREADS: Final = 2
"""Each holds the content of one batch: at most varve.batch.content.max.bytes, as it is unpacked."""
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a listener, as clients learn it."""

    listener: str
    host: str
    port: int


class Broker:
    """Serves one open store."""

    def __init__(
        self,
        store: Store,
        settings: BrokerSettings,
        *,
        clock: Clock,
        timers: Timers,
        random: random.Random,
        loop: asyncio.AbstractEventLoop,
        boot_id: str | None = None,
        pool: Executor | None = None,
        sync_pool: Executor | None = None,
        has_append_threads: bool = True,
        security: SecuritySettings | None = None,
        quotas: QuotaSettings | None = None,
        groups: GroupSettings | None = None,
        transactions: TransactionSettings | None = None,
    ) -> None:
        """Without append threads, a test appends by calling `run_once` of the schedulers.

        Without a boot id, ids of deduplicated topics that were not closed are rebuilt.
        """
        self.store = store
        self.settings = settings
        self.clock = clock
        self.timers = timers
        self.random = random
        self.loop = loop
        self.security = security or SecuritySettings()
        self._has_append_threads = has_append_threads
        self._directories = [directory.health for directory in store.directories]
        self._topic_changes = asyncio.Lock()
        self.topics = Topics(store)
        self.blocking = BlockingPool(loop, pool)
        self.endpoints: dict[str, Endpoint] = {}
        """By listener; filled by the server once its ports are known."""
        quotas = quotas or QuotaSettings()
        groups = groups or GroupSettings()
        transactions = transactions or TransactionSettings()
        self.visible_settings: list[Settings] = [settings, self.security, quotas]
        self.visible_settings += groups, transactions
        """The settings that clients may see; the server adds its own."""
        self.topic_configs = TopicConfigs(store)
        self.stored_configs = StoredConfigs(store.fs, self._directories)
        self.broker_configs = BrokerConfigs(
            store, self.topic_configs, self.visible_settings, self.stored_configs
        )
        self.group_configs = GroupConfigs(groups, self.stored_configs)
        self._make_security(quotas)
        self._sync_pool = sync_pool or ThreadPoolExecutor(_SYNC_THREADS, "varve-sync")
        self._check_pool: Executor | None = None
        if has_append_threads:
            self._check_pool = ThreadPoolExecutor(_CHECK_THREADS, "varve-check")
        self._make_data(settings)
        self._make_dedup(boot_id)
        self._make_coordinators(groups, transactions)
        self.metrics = BrokerMetrics(self.groups, self.transactions, self.dedup_topics)

    def _make_security(self, quotas: QuotaSettings) -> None:
        fs, directories = self.store.fs, self._directories
        self.acls = AclTable(fs, directories, self.security)
        self.authorizer: Authorizer = AllowAllAuthorizer()
        if self.security.has_authorizer:
            self.authorizer = AclAuthorizer(self.acls, self.security)
        self.credentials = ScramCredentials(fs, directories)
        self.quotas = ClientQuotas(QuotaTable(fs, directories), quotas, self.clock)

    def _make_data(self, settings: BrokerSettings) -> None:
        self.parked_fetches = ParkedFetches(self.timers)
        self.fetch_sessions = FetchSessions(settings, self.clock, self.random)
        self.background_reads = BackgroundReads(
            self.parked_fetches,
            self.blocking,
            self.clock,
            bytes_max=settings.background_read_max_bytes,
        )
        self.failed_reads = RecentFailures("read failed", self.loop.time)
        self.failed_appends = RecentFailures("append failed", self.loop.time)
        self.appends, self.dedup_appends = (
            AppendScheduler(
                self.loop,
                self.parked_fetches,
                self.failed_appends,
                self._sync_pool,
                check_pool=self._check_pool,
                name=name,
            )
            # Deduplicated topics have a thread of their own: they need more time for a batch.
            for name in ("appends", "dedup")
        )
        self.producer_ids = ProducerIds(
            self.store.fs, self._directories, self.topics, self.blocking
        )

    def _make_dedup(self, boot_id: str | None) -> None:
        self.dedup_topics = DedupTopics(
            self.topics,
            self.dedup_appends,
            DedupEnvironment(
                file_system=self.store.fs,
                clock=self.clock,
                random=self.random,
                boot_id=self.random.randbytes(16).hex() if boot_id is None else boot_id,
            ),
            log_directories=[directory.path for directory in self.store.directories],
            loop=self.loop,
            timers=self.timers,
            blocking=self.blocking,
        )

    def _make_coordinators(self, groups: GroupSettings, transactions: TransactionSettings) -> None:
        offsets_topic = self._state_topic(
            OFFSETS_TOPIC,
            partition_count=groups.offsets_topic_num_partitions,
            segment_bytes=groups.offsets_topic_segment_bytes,
        )
        services = GroupServices(
            GroupLog(offsets_topic, self.clock),
            self.clock,
            self.timers,
            groups,
            self.stored_configs,
            self.random,
            self.loop,
            BackgroundTasks(self.loop),
        )
        self.groups = GroupCoordinator(services, self.topics, self.blocking)
        self.transactions = TransactionCoordinator(
            self._state_topic(
                TRANSACTIONS_TOPIC,
                partition_count=transactions.transaction_state_log_num_partitions,
                segment_bytes=transactions.transaction_state_log_segment_bytes,
            ),
            MarkerWriter(self.topics, self.appends, clock=self.clock, blocking=self.blocking),
            loop=self.loop,
            clock=self.clock,
            timers=self.timers,
            settings=transactions,
            producer_ids=self.producer_ids,
            offsets=self.groups.offsets,
            groups=offsets_topic,
        )

    def _state_topic(self, name: str, *, partition_count: int, segment_bytes: int) -> StateTopic:
        return StateTopic(
            name,
            self.store,
            self.topics,
            self.appends,
            self.blocking,
            partition_count=partition_count,
            segment_bytes=segment_bytes,
        )

    # Starting and stopping

    async def start(self) -> None:
        """Loads tables and the state of the coordinators, and starts the threads."""
        for table in (self.acls, self.credentials, self.quotas.table, self.stored_configs):
            await self.blocking.run(table.load)
        if self._has_append_threads:
            self.appends.start()
            self.dedup_appends.start()
        await self.dedup_topics.start()
        await self.groups.load()
        await self.transactions.load()

    async def stop(self, *, timeout_seconds: float = _STOP_SECONDS) -> None:
        """Completes what was submitted; the store stays open.

        Reads and other blocking work are not waited for longer than the timeout.
        """
        await self.transactions.stop()
        await self.groups.stop()
        for appends in (self.appends, self.dedup_appends):
            await self.loop.run_in_executor(None, appends.stop)
        await self.loop.run_in_executor(None, self._sync_pool.shutdown)
        if self._check_pool is not None:
            self._check_pool.shutdown(wait=False)
        await self.dedup_topics.stop()
        await self.blocking.stop(timeout_seconds=timeout_seconds)

    # Events

    def connection_closed(self, connection: ConnectionContext) -> None:
        """To be called once by the server: requests of the connection no longer wait."""
        connection.is_closed = True
        self.parked_fetches.connection_closed(connection)

    @contextlib.asynccontextmanager
    async def changing_topics(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Held while topics of these names are created, altered or deleted, one change at a time.

        On exit, also with an error, the broker serves the topics as they are then, and requests
        that waited for what is gone are completed. `names` may grow meanwhile.
        """
        async with self._topic_changes:
            view: TopicsView | None = None
            try:
                yield
                # With thousands of partitions this takes longer than the loop should wait.
                view = await self.blocking.run(self.topics.snapshot)
            finally:
                changed = [topic for name in names if (topic := self.topics.find(name)) is not None]
                self.topics.serve(view or self.topics.snapshot())
                for topic in changed:
                    self._topic_changed(topic)

    def _topic_changed(self, before: ServedTopic) -> None:
        for number in range(len(before.logs)):
            partition = TopicPartition(before.name, number)
            self.parked_fetches.wake(partition)
            self.dedup_topics.partition_changed(partition)
        now = self.topics.find(before.name)
        if now is None or now.id != before.id:
            self.groups.topic_deleted(before)
