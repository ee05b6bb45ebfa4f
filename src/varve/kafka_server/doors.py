"""Who is let in, who is inside, and who stays too long.

Invariant  no more connections than the settings allow, in all and from one address. A connection
           that is inside is looked at every now and then: clients that stop sending, stop reading
           or stop being there are let go.
Threads    the loop's alone.
"""

import asyncio
import itertools
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from varve.broker.context import ConnectionContext
from varve.kafka_server.authentication import Authenticator, ListenerSecurity
from varve.kafka_server.connection import Connection
from varve.kafka_server.listeners import Listener
from varve.kafka_server.metrics import ACCEPTED_CONNECTIONS, CLOSED_CONNECTIONS, CONNECTIONS
from varve.kafka_server.patience import find_fault
from varve.kafka_server.shared import Shared

logger = logging.getLogger(__name__)

_CHECKED_AT_ONCE: Final = 500
_EVICTED_AFTER_SECONDS: Final = 1.0


class House:
    """All connections of a server."""

    def __init__(self, shared: Shared, disconnected: Callable[[ConnectionContext], None]) -> None:
        self.shared = shared
        self._disconnected = disconnected
        self.inside: dict[int, Connection] = {}
        self._count = 0
        self._by_host: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = shared.settings.max_connections
        self._limit = allowed if soft == resource.RLIM_INFINITY else min(allowed, soft // 2)

    def let_in(self, host: str) -> bool:
        """Takes a place for one more, from its first byte on; `let_out` gives it back."""
        settings, table = self.shared.settings, self.shared.metrics.table
        if self._count >= self._limit:
            reason = "max_connections"
        elif self._by_host[host] >= settings.max_connections_per_ip:
            reason = "max_connections_per_ip"
        else:
            self._count += 1
            self._by_host[host] += 1
            table.add(ACCEPTED_CONNECTIONS, 1)
            return True
        table.add(CLOSED_CONNECTIONS, 1, reason)
        logger.warning("a connection was not let in", extra={"client": host, "reason": reason})
        return False

    def let_out(self, host: str) -> None:
        self._count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def enter(self, connection: Connection) -> int:
        """The number of a connection that was let in and has shaken hands."""
        number = next(self._numbers)
        self.inside[number] = connection
        self.shared.metrics.table.set(CONNECTIONS, len(self.inside))
        return number

    def leave(self, connection: Connection) -> None:
        del self.inside[connection.context.id]
        self.shared.metrics.table.set(CONNECTIONS, len(self.inside))
        self.let_out(connection.context.client_host)
        self._disconnected(connection.context)

    def relieve(self) -> None:
        """Ends connections whose clients do not read, while their answers keep others waiting."""
        now = self.shared.loop.time()
        stalled = [one for one in self.inside.values() if one.stalled_bytes]
        for one in sorted(stalled, key=lambda one: one.stalled_bytes, reverse=True):
            if not self.shared.responses.is_over:
                return
            if now - one.stalled_since > _EVICTED_AFTER_SECONDS:
                one.abort("slow_reader")

    async def check_all(self) -> None:
        """Looks at every connection, some at a time, so that the loop goes on meanwhile."""
        numbers = list(self.inside)
        self.relieve()
        for start in range(0, len(numbers), _CHECKED_AT_ONCE):
            now = self.shared.loop.time()
            for number in numbers[start : start + _CHECKED_AT_ONCE]:
                connection = self.inside.get(number)
                if connection is not None:
                    self._check(connection, now)
            await asyncio.sleep(0)

    def _check(self, connection: Connection, now: float) -> None:
        shared = self.shared
        is_memory_short = bool(shared.pool.budget.waiting_count)
        fault = find_fault(
            connection.state(now), shared.settings, now, is_memory_short=is_memory_short
        )
        if fault is not None:
            connection.abort(fault)


class ListenerDoor:
    """The door of one listener."""

    def __init__(self, house: House, listener: Listener, security: ListenerSecurity) -> None:
        self._house = house
        self._listener = listener
        self._security = security

    async def open_to(self, client: socket.socket, host: str) -> None:
        """Gives an accepted socket its connection; whatever goes wrong ends that client alone."""
        if not self._house.let_in(host):
            client.close()
            return
        shared, context = self._house.shared, self._security.tls
        timeout_seconds = shared.settings.request_receive_timeout_ms / 1000
        try:
            client.setblocking(False)
            self._set_options(client)
            await shared.loop.connect_accepted_socket(
                lambda: Connection(shared, self, host),
                client,
                ssl=context,
                ssl_handshake_timeout=None if context is None else timeout_seconds,
            )
        except (OSError, ConnectionError, TimeoutError) as error:
            self._house.let_out(host)
            client.close()
            shared.metrics.table.add(CLOSED_CONNECTIONS, 1, "handshake")
            logger.info("a handshake failed", extra={"client": host, "told": str(error)})

    def _set_options(self, client: socket.socket) -> None:
        settings = self._house.shared.settings
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in (
            (socket.SO_SNDBUF, settings.socket_send_buffer_bytes),
            (socket.SO_RCVBUF, settings.socket_receive_buffer_bytes),
        ):
            if size > 0:
                client.setsockopt(socket.SOL_SOCKET, option, size)

    def admit(
        self, connection: Connection, transport: asyncio.Transport
    ) -> tuple[ConnectionContext, Authenticator | None]:
        principal = self._security.find_principal(transport)
        context = ConnectionContext(
            self._house.enter(connection), self._listener.name, connection.host, principal
        )
        return context, self._security.make_authenticator(context)

    def leave(self, connection: Connection) -> None:
        self._house.leave(connection)

    def relieve(self) -> None:
        self._house.relieve()
