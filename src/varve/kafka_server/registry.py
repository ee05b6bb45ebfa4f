"""All connections of a server: how many are admitted, and how long a client may take.

Invariant  there are never more connections than the settings allow, in all and from one address,
           those in a TLS handshake included. Clients that stop sending within a request, stop
           reading or send nothing for too long are disconnected.
Threads    the event loop's alone.
"""

import asyncio
import itertools
import logging
import resource
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from varve.broker.broker import Broker
from varve.foundation.settings import INT_MAX
from varve.kafka_server.frames import MemoryBudget
from varve.kafka_server.metrics import (
    ACCEPTED_CONNECTIONS,
    CLOSED_CONNECTIONS,
    CONNECTIONS,
    ServerMetrics,
)
from varve.kafka_server.settings import ServerSettings

if TYPE_CHECKING:
    from varve.kafka_server.connection import Connection

logger = logging.getLogger(__name__)

_CHECKED_PER_TURN: Final = 500
_RESERVED_SHARE_MAX: Final = 8
"""At most one of so many files is kept from connections."""
_SLOW_READER_SECONDS: Final = 1.0


class ConnectionRegistry:
    """Admits connections and disconnects those that exceed a timeout."""

    def __init__(
        self,
        broker: Broker,
        settings: ServerSettings,
        metrics: ServerMetrics,
        *,
        request_memory: MemoryBudget,
        response_memory: MemoryBudget,
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.admitted_count = 0
        """Connections, with those in a TLS handshake."""
        self._broker = broker
        self._loop = broker.loop
        self._settings = settings
        self._metrics = metrics
        self._request_memory = request_memory
        self._response_memory = response_memory
        self._count_by_host: Counter[str] = Counter()
        self._ids = itertools.count(1)
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._count_max = settings.max_connections
        self._descriptor_max = INT_MAX
        if files_max != resource.RLIM_INFINITY:
            self._count_max = min(self._count_max, files_max // 2)
            reserved = min(settings.reserved_files, files_max // _RESERVED_SHARE_MAX)
            self._descriptor_max = files_max - reserved

    def admit(self, host: str, descriptor: int) -> bool:
        """Counts a new connection unless there are too many; `dismiss` ends it.

        The system gives the lowest descriptor that is free: `descriptor` says how many are not.
        """
        if self.admitted_count >= self._count_max:
            reason = "max_connections"
        elif descriptor >= self._descriptor_max:
            reason = "open_files"
        elif self._count_by_host[host] >= self._settings.max_connections_per_ip:
            reason = "max_connections_per_ip"
        else:
            self.admitted_count += 1
            self._count_by_host[host] += 1
            self._metrics.add(ACCEPTED_CONNECTIONS, 1)
            return True
        self._metrics.add(CLOSED_CONNECTIONS, 1, reason)
        logger.warning("too many connections", extra={"client": host, "limit": reason})
        return False

    def dismiss(self, host: str) -> None:
        self.admitted_count -= 1
        self._count_by_host[host] -= 1
        if not self._count_by_host[host]:
            del self._count_by_host[host]

    def add(self, connection: "Connection") -> int:
        """The id of an admitted connection whose TLS handshake is complete."""
        id = next(self._ids)
        self.connections[id] = connection
        self._metrics.set(CONNECTIONS, len(self.connections))
        return id

    def remove(self, connection: "Connection") -> None:
        del self.connections[connection.context.id]
        self._metrics.set(CONNECTIONS, len(self.connections))
        self.dismiss(connection.host)
        self._broker.connection_closed(connection.context)

    def close_slow_readers(self) -> None:
        """Closes connections whose clients do not read while their responses delay others."""
        excess_bytes = self._response_memory.used - self._response_memory.limit
        if excess_bytes <= 0:
            return
        now = self._loop.time()
        stalled = [
            connection for connection in self.connections.values() if connection.stalled_bytes
        ]
        for connection in sorted(stalled, key=attrgetter("stalled_bytes"), reverse=True):
            if excess_bytes <= 0:
                return
            if now - connection.stalled_since > _SLOW_READER_SECONDS:
                excess_bytes -= connection.stalled_bytes
                connection.abort("slow_reader")

    async def check_timeouts(self) -> None:
        """Checks every connection, some in each turn of the loop."""
        ids = list(self.connections)
        for start in range(0, len(ids), _CHECKED_PER_TURN):
            now = self._loop.time()
            is_memory_short = self._request_memory.waiting_count > 0
            for id in ids[start : start + _CHECKED_PER_TURN]:
                connection = self.connections.get(id)
                if connection is None:
                    continue
                violation = connection.find_violation(now, is_memory_short=is_memory_short)
                if violation is not None:
                    connection.abort(violation)
            await asyncio.sleep(0)
