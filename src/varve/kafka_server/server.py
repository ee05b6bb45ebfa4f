"""The server: listeners in front of a broker, from the first port to the last response.

Invariant  a stop first accepts no more clients, and stops the broker only when all requests are
           answered or `varve.shutdown.timeout.ms` is over.
Threads    the event loop's alone.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from varve.broker.broker import Broker, Endpoint
from varve.broker.handlers import HANDLERS, Handler
from varve.foundation.errors import Unavailable
from varve.kafka_server.authentication import ListenerSecurities, ListenerSecurity
from varve.kafka_server.connection import Connection, ConnectionServices
from varve.kafka_server.dispatcher import Dispatcher
from varve.kafka_server.frames import BufferPool, MemoryBudget
from varve.kafka_server.metrics import CLOSED_CONNECTIONS, ServerMetrics
from varve.kafka_server.registry import ConnectionRegistry
from varve.kafka_server.settings import Listener, ServerSettings
from varve.kafka_server.tls_alerts import TlsHandshake
from varve.wire import ApiKey

logger = logging.getLogger(__name__)

_ACCEPTED_PER_TURN: Final = 64
"""Clients accepted before the loop turns to other work."""
_CHECK_SECONDS: Final = 1.0
"""Between checks of timeouts; less if a timeout is shorter."""
_WATCH_SECONDS: Final = 0.25
"""Between measurements of the load."""
_ACCEPT_RETRY_SECONDS: Final = 0.1
_STOP_POLL_SECONDS: Final = 0.01


class Server:
    """Serves a broker to clients. The broker is started and stopped with it; the store is not.

    The server adds its settings to those of the broker that clients may see.
    """

    def __init__(
        self,
        broker: Broker,
        settings: ServerSettings,
        *,
        securities: ListenerSecurities | None = None,
        handlers: Mapping[ApiKey, Handler] = HANDLERS,
    ) -> None:
        self.broker = broker
        self.settings = settings
        broker.visible_settings.append(settings)
        listeners = settings.parsed_listeners()
        self._securities = securities or ListenerSecurities(listeners, broker.security)
        self._loop = broker.loop
        self._is_ready = False
        self.request_memory = MemoryBudget(settings.queued_max_request_bytes, self._loop)
        self.response_memory = MemoryBudget(settings.queued_max_response_bytes, self._loop)
        broker.parked_fetches.response_memory = self.response_memory
        self.metrics = ServerMetrics(self.request_memory, self.response_memory)
        self.registry = ConnectionRegistry(
            broker,
            settings,
            self.metrics,
            request_memory=self.request_memory,
            response_memory=self.response_memory,
        )
        self._services = ConnectionServices(
            loop=self._loop,
            timers=broker.timers,
            settings=settings,
            dispatcher=Dispatcher(
                broker,
                handlers,
                self.metrics,
                element_count_max=settings.request_max_elements,
                admin_element_count_max=settings.admin_request_max_elements,
            ),
            metrics=self.metrics,
            registry=self.registry,
            buffers=BufferPool(self.request_memory),
            response_memory=self.response_memory,
        )
        self._sockets: list[socket.socket] = []
        self._workers: list[asyncio.Task[Any]] = []

    @property
    def is_ready(self) -> bool:
        """Whether clients are accepted."""
        return self._is_ready

    @property
    def connection_count(self) -> int:
        return len(self.registry.connections)

    # Start

    async def start(self) -> None:
        """Starts the broker and listens; raises Unavailable for a port that cannot be used."""
        accepting: list[Coroutine[Any, Any, None]] = []
        try:
            for listener in self.settings.parsed_listeners():
                security = self._securities.for_listener(listener, self.broker)
                sockets = _bind(listener)
                self._sockets += sockets
                accepting += [self._accept(listening, listener, security) for listening in sockets]
                self._advertise(listener, port=int(sockets[0].getsockname()[1]))
            await self.broker.start()
        except BaseException:
            for coroutine in accepting:
                coroutine.close()
            self._close_sockets()
            raise
        for listening in self._sockets:
            listening.listen(self.settings.socket_listen_backlog_size)
        workers = [*accepting, self._check_timeouts(), self._watch_load()]
        self._workers = [self._loop.create_task(worker) for worker in workers]
        self._is_ready = True

    def _advertise(self, listener: Listener, *, port: int) -> None:
        advertised = self.settings.parsed_advertised()[listener.name]
        # Clients need a host: a listener on every interface is reached by the machine's name.
        host = socket.gethostname() if advertised.is_everywhere else advertised.host
        self.broker.endpoints[listener.name] = Endpoint(
            listener.name, host, advertised.port or port
        )

    # Accept

    async def _accept(
        self, listening: socket.socket, listener: Listener, security: ListenerSecurity
    ) -> None:
        while True:
            await self._wait_for_clients(listening)
            try:
                for _ in range(_ACCEPTED_PER_TURN):
                    client, address = listening.accept()
                    host = str(address[0])
                    if not self.registry.admit(host, client.fileno()):
                        client.close()
                        continue
                    opening = self._open_connection(client, host, listener, security)
                    self._services.keep(self._loop.create_task(opening))
            except (BlockingIOError, ConnectionError):
                continue
            except OSError as error:
                # Out of file descriptors: waiting clients are accepted when others have left.
                logger.error("no connection can be accepted", extra={"error": str(error)})
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)

    async def _wait_for_clients(self, listening: socket.socket) -> None:
        """Until a client can be accepted.

        `sock_accept` accepts a client even if it was cancelled in the same turn of the loop, and
        then the client's socket is lost.
        """
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(listening, _set_done, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(listening)

    async def _open_connection(
        self, client: socket.socket, host: str, listener: Listener, security: ListenerSecurity
    ) -> None:
        """Makes the connection of an admitted socket; an error ends that client alone."""
        tls, handshake = security.tls, TlsHandshake(client)
        handshake_seconds = self.settings.request_receive_timeout_ms / 1000
        try:
            client.setblocking(False)
            self._set_options(client)
            await self._loop.connect_accepted_socket(
                lambda: Connection(self._services, listener.name, security, host),
                client,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else handshake_seconds,
            )
        except OSError as error:
            client.close()
            self.metrics.add(CLOSED_CONNECTIONS, 1, "handshake")
            logger.info("a handshake failed", extra={"client": host, "error": str(error)})
            await handshake.linger(self._loop)
            self.registry.dismiss(host)

    def _set_options(self, client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in (
            (socket.SO_SNDBUF, self.settings.socket_send_buffer_bytes),
            (socket.SO_RCVBUF, self.settings.socket_receive_buffer_bytes),
        ):
            if size > 0:
                client.setsockopt(socket.SOL_SOCKET, option, size)

    # Maintain

    async def _check_timeouts(self) -> None:
        shortest_ms = min(
            self.settings.request_receive_timeout_ms,
            self.settings.response_send_timeout_ms,
            max(1, self.settings.connections_max_idle_ms),
        )
        seconds = min(_CHECK_SECONDS, shortest_ms / 2000)
        while True:
            await asyncio.sleep(seconds)
            await self.registry.check_timeouts()

    async def _watch_load(self) -> None:
        """Measures how late the loop runs, and bounds the memory of responses."""
        while True:
            due = self._loop.time() + _WATCH_SECONDS
            await asyncio.sleep(_WATCH_SECONDS)
            self.metrics.loop_lagged(self._loop.time() - due)
            self.registry.close_slow_readers()

    # Stop

    async def stop(self) -> None:
        """Accepts no clients, answers requests in progress, then stops the broker."""
        await self._stop_listening()
        for connection in list(self.registry.connections.values()):
            connection.stop()
        deadline = self._loop.time() + self.settings.shutdown_timeout_ms / 1000
        while self.registry.connections and self._loop.time() < deadline:
            await asyncio.sleep(_STOP_POLL_SECONDS)
        self._abort_connections()
        await self._end_tasks(deadline)
        await self.broker.stop(timeout_seconds=max(0.0, deadline - self._loop.time()))

    async def _end_tasks(self, deadline: float) -> None:
        """Requests of disconnected clients are carried out, too; long polls are not."""
        await asyncio.sleep(0)
        working = set(self._services.tasks)
        if working:
            await asyncio.wait(working, timeout=max(0.0, deadline - self._loop.time()))
        unfinished = [*self._services.tasks, *self._services.long_polls]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    async def abort(self) -> None:
        """Closes all connections at once, as a crash would; `stop` does the rest."""
        await self._stop_listening()
        self._abort_connections()

    def _abort_connections(self) -> None:
        for connection in list(self.registry.connections.values()):
            connection.abort("stop")

    async def _stop_listening(self) -> None:
        self._is_ready = False
        for task in self._workers:
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets = []


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _bind(listener: Listener) -> list[socket.socket]:
    """A socket for each address of the listener's host, all on one port."""
    host = listener.host or None
    sockets: list[socket.socket] = []
    port = listener.port
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                continue
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address[0], port, *address[2:]))
            port = int(listening.getsockname()[1])
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise Unavailable(
            f"cannot listen on {listener}: {error.strerror or error}; choose another address or "
            "port with --listen HOST:PORT or the setting listeners"
        ) from error
    return sockets
