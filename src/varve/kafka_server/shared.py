"""What connections share: with all others, and with those of one listener."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from varve.broker.context import ConnectionContext
from varve.broker.timers import Timers
from varve.kafka_server.authentication import Authenticator
from varve.kafka_server.buffers import BufferPool, ByteBudget
from varve.kafka_server.metrics import ServerMetrics
from varve.kafka_server.router import Router
from varve.kafka_server.settings import ServerSettings

if TYPE_CHECKING:
    from varve.kafka_server.connection import Connection


class Door(Protocol):
    """Lets connections in, and knows those inside."""

    def admit(
        self, connection: "Connection", transport: asyncio.Transport
    ) -> tuple[ConnectionContext, Authenticator | None]:
        """Who comes, and who asks for more about it, if anybody does."""
        ...

    def leave(self, connection: "Connection") -> None:
        """One that was let in is gone."""
        ...

    def relieve(self) -> None:
        """Answers that wait for clients take more memory than they may."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """The collaborators of every connection."""

    loop: asyncio.AbstractEventLoop
    timers: Timers
    settings: ServerSettings
    router: Router
    metrics: ServerMetrics
    pool: BufferPool
    responses: ByteBudget
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """Work in progress."""
    parked: set[asyncio.Future[Any]] = field(default_factory=set)
    """Long polls in progress; nobody needs to wait for them."""
