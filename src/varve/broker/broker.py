"""The broker: what the handlers share, and the way from a request to its handler.

Invariant  a request changes nothing but what it asks for: a handler that fails answers with an
           error or, where its response has no room for one, ends the connection.
Threads    all of it belongs to the loop's thread. Appends go through `appends`; other work that
           may take more than a millisecond goes through `offload`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from varve.broker.admin.administration import Administration
from varve.broker.admin.settings import AdminSettings
from varve.broker.appends import Appends
from varve.broker.context import ConnectionContext, RequestContext
from varve.broker.data.dedup.gate_place import GatePlace
from varve.broker.data.dedup.gates import Gates
from varve.broker.data.fetch_sessions import FetchSessions
from varve.broker.data.fetch_waits import FetchWaits
from varve.broker.data.produce_guard import NoTransactions, ProduceGuard
from varve.broker.data.producer_ids import PRODUCER_IDS_FILE, ProducerIds
from varve.broker.data.settings import DataSettings
from varve.broker.data.slow_reads import SlowReads
from varve.broker.groups.coordinator import GroupCoordinator
from varve.broker.groups.offsets_log import OffsetsLog
from varve.broker.groups.settings import GroupSettings
from varve.broker.metrics import BrokerMetrics
from varve.broker.refusals import Refusals
from varve.broker.security.acl_table import AclTable
from varve.broker.security.authorizer import AclAuthorizer
from varve.broker.security.credentials import ScramCredentials
from varve.broker.security.quota_table import QuotaTable
from varve.broker.security.quotas import ClientQuotas
from varve.broker.security.rights import Authorizer, EverybodyMay
from varve.broker.security.settings import QuotaSettings, SecuritySettings
from varve.broker.security.table_file import TableFile
from varve.broker.settings import BrokerSettings
from varve.broker.timers import Timers
from varve.broker.topics import Topics
from varve.broker.transactions.coordinator import TransactionCoordinator
from varve.broker.transactions.markers import Markers
from varve.broker.transactions.settings import TransactionSettings
from varve.broker.transactions.transaction_log import TransactionLog
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.foundation.settings import Settings
from varve.wire import Message

T = TypeVar("T")

_POOL_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients find the broker, by the listener they came in through."""

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
        appends: Appends | None = None,
        gated_appends: Appends | None = None,
        boot: str | None = None,
        pool: Executor | None = None,
        data: DataSettings | None = None,
        security: SecuritySettings | None = None,
        quotas: QuotaSettings | None = None,
        admin: AdminSettings | None = None,
        groups: GroupSettings | None = None,
        transactions: TransactionSettings | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.timers = timers
        self.random = random
        self.loop = loop
        self.security = security or SecuritySettings()
        self.acls = AclTable(store.fs, store.directories)
        self.authorizer: Authorizer = EverybodyMay()
        if self.security.has_authorizer:
            self.authorizer = AclAuthorizer(self.acls, self.security)
        self.credentials = ScramCredentials(store.fs, store.directories)
        self.quotas = ClientQuotas(
            QuotaTable(store.fs, store.directories), quotas or QuotaSettings(), clock
        )
        self.topics = Topics(store)
        self.told: list[Settings] = [settings, self.security, quotas or QuotaSettings()]
        """The settings that clients may see; each part adds its own, the server its own too."""
        self.admin = Administration(
            store, self.topics, admin or AdminSettings(), offload=self.offload, told=self.told
        )
        self.appends = appends or Appends(loop)
        self.gated_appends = gated_appends or Appends(
            loop, name="dedup", refusals=self.appends.refusals
        )
        """The way into logs that take no duplicates, by a thread of its own."""
        self.gated_appends.on_appended = self.appends.on_appended
        self.produce_guard: ProduceGuard = NoTransactions()
        """Asked about every batch of a transaction."""
        self.endpoints: dict[str, Endpoint] = {}
        """By listener; filled by the server once its ports are known."""
        self.on_appended = self.appends.on_appended
        """Called in the loop with the partitions that have more to read."""
        self.on_disconnected: list[Callable[[ConnectionContext], None]] = []
        """Called in the loop with a connection that has ended."""
        self._pool = pool or ThreadPoolExecutor(_POOL_THREADS, "varve-broker")
        self._make_data(data or DataSettings())
        self._make_gates(boot)
        self._make_groups(groups or GroupSettings())
        self._make_transactions(transactions or TransactionSettings())
        self.metrics = BrokerMetrics(self.groups, self.transactions, self.gates)

    def _make_data(self, settings: DataSettings) -> None:
        self.told.append(settings)
        self.fetches = FetchWaits(self.loop, self.timers)
        self.fetch_sessions = FetchSessions(settings, self.clock, self.random)
        self.slow_reads = SlowReads(self.offload, self.clock, bytes_max=settings.slow_read_bytes)
        self.slow_reads.on_read.append(self.fetches.on_read)
        self.failed_reads = Refusals("a read failed", self.loop.time)
        self.producer_ids = ProducerIds(
            TableFile(self.store.fs, self.store.directories, PRODUCER_IDS_FILE),
            self.topics,
            self.offload,
        )
        self.on_appended.append(self.fetches.on_appended)
        self.on_disconnected.append(self.fetches.on_disconnected)
        self.admin.on_changed.append(self.fetches.wake)

    def _make_gates(self, boot: str | None) -> None:
        """Without a name of the machine's start, none is like another."""
        self.gates = Gates(
            self.topics,
            self.gated_appends,
            GatePlace(
                file_system=self.store.fs,
                clock=self.clock,
                random=self.random,
                boot=self.random.randbytes(16).hex() if boot is None else boot,
            ),
            log_directories=[one.path for one in self.store.directories],
            loop=self.loop,
            timers=self.timers,
            offload=self.offload,
        )
        self.admin.on_changed.append(self.gates.on_changed)

    def _make_groups(self, settings: GroupSettings) -> None:
        self.told.append(settings)
        log = OffsetsLog(
            self.store,
            self.topics,
            self.appends,
            clock=self.clock,
            offload=self.offload,
            settings=settings,
        )
        self.groups = GroupCoordinator(
            log,
            self.topics,
            clock=self.clock,
            timers=self.timers,
            settings=settings,
            random=self.random,
            loop=self.loop,
            offload=self.offload,
        )
        self.admin.on_deleted.append(self.groups.topic_deleted)

    def _make_transactions(self, settings: TransactionSettings) -> None:
        self.told.append(settings)
        self.transactions = TransactionCoordinator(
            TransactionLog(
                self.store, self.topics, self.appends, offload=self.offload, settings=settings
            ),
            Markers(self.topics, self.appends, clock=self.clock, offload=self.offload),
            clock=self.clock,
            timers=self.timers,
            settings=settings,
            producer_ids=self.producer_ids,
            offsets=self.groups.offsets,
            groups=self.groups.log,
        )
        self.produce_guard = self.transactions

    async def start(self) -> None:
        """Begins to serve: what coordinators remember is read from their topics."""
        for table in (self.acls, self.credentials, self.quotas.table):
            await self.offload(table.load)
        self.appends.start()
        self.gated_appends.start()
        await self.gates.start()
        await self.groups.load()
        await self.transactions.load()

    async def stop(self) -> None:
        """Lets what was submitted end; the store stays open."""
        await self.transactions.stop()
        await self.groups.stop()
        for appends in (self.appends, self.gated_appends):
            await self.loop.run_in_executor(None, appends.stop)
        await self.gates.stop()
        self._pool.shutdown(wait=True)

    def offload(self, work: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        """Runs work in another thread."""
        return self.loop.run_in_executor(self._pool, work, *args)

    def disconnected(self, connection: ConnectionContext) -> None:
        """To be called once by the server when a connection has ended: nobody waits for it now."""
        connection.is_closed = True
        for call in self.on_disconnected:
            call(connection)


Handler = Callable[[Broker, RequestContext, Any], Message | Awaitable[Message | None] | None]
"""Answers a request of its own kind, at once or later; None for one that has no answer.

The bytes a request was read from are the handler's until then. It may raise CloseConnection.
"""
