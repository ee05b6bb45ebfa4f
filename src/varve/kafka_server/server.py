"""The server: listeners in front of a broker, from the first port to the last answer.

Invariant  a stop begins with taking nobody in, and ends the broker only when what clients have
           asked for is answered, or the time for that is over.
Threads    the loop's alone.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final

from varve.broker.broker import Broker, Endpoint, Handler
from varve.broker.dispatch import HANDLERS
from varve.foundation.errors import InvalidSetting, Unavailable
from varve.kafka_server.authentication import ListenerSecurity, MakeSecurity, OpenSecurity
from varve.kafka_server.buffers import BufferPool, ByteBudget
from varve.kafka_server.doors import House, ListenerDoor
from varve.kafka_server.listeners import Listener, SecurityProtocol
from varve.kafka_server.metrics import ServerMetrics
from varve.kafka_server.router import Router
from varve.kafka_server.settings import ServerSettings
from varve.kafka_server.shared import Shared
from varve.wire import ApiKey

logger = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE: Final = 64
_CHECK_SECONDS: Final = 1.0
_LAG_SECONDS: Final = 0.25
_NO_FILES_SECONDS: Final = 0.1
_STOP_LOOK_SECONDS: Final = 0.01


def make_open_security(broker: Broker, listener: Listener) -> ListenerSecurity:
    """Lets everybody in; a listener that wants more is refused."""
    if listener.protocol is not SecurityProtocol.PLAINTEXT:
        raise InvalidSetting(
            f"{listener} needs {listener.protocol}, which this server was not given"
        )
    return OpenSecurity()


class Server:
    """Serves a broker to clients. The broker is started and stopped with it; the store is not."""

    def __init__(
        self,
        broker: Broker,
        settings: ServerSettings,
        *,
        make_security: MakeSecurity = make_open_security,
        handlers: Mapping[ApiKey, Handler] = HANDLERS,
    ) -> None:
        self.broker = broker
        self.settings = settings
        broker.told.append(settings)
        self._make_security = make_security
        self._loop = broker.loop
        self._is_ready = False
        requests = ByteBudget(settings.queued_max_request_bytes, self._loop)
        responses = ByteBudget(settings.queued_max_response_bytes, self._loop)
        self.metrics = ServerMetrics(requests, responses)
        self._shared = Shared(
            self._loop,
            broker.timers,
            settings,
            Router(broker, handlers, self.metrics, settings),
            self.metrics,
            BufferPool(requests),
            responses,
        )
        self._house = House(self._shared, broker.disconnected)
        self._sockets: list[socket.socket] = []
        self._workers: list[asyncio.Task[Any]] = []

    @property
    def is_ready(self) -> bool:
        """Whether clients are let in."""
        return self._is_ready

    @property
    def connection_count(self) -> int:
        return len(self._house.inside)

    async def start(self) -> None:
        """Starts the broker and listens; raises what keeps a listener from its port."""
        advertised = self.settings.parsed_advertised()
        doors: list[tuple[socket.socket, ListenerDoor]] = []
        try:
            for listener in self.settings.parsed_listeners():
                door = ListenerDoor(
                    self._house, listener, self._make_security(self.broker, listener)
                )
                opened = _bind(listener)
                self._sockets += opened
                doors += [(one, door) for one in opened]
                port = int(opened[0].getsockname()[1])
                told = advertised[listener.name]
                self.broker.endpoints[listener.name] = Endpoint(
                    listener.name, _told_host(told), told.port or port
                )
            await self.broker.start()
        except BaseException:
            self._close_sockets()
            raise
        for one, _ in doors:
            one.listen(self.settings.socket_listen_backlog_size)
        self._workers = [self._loop.create_task(self._accept(one, door)) for one, door in doors]
        self._workers.append(self._loop.create_task(self._check_often()))
        self._workers.append(self._loop.create_task(self._measure_lag()))
        self._is_ready = True

    async def _accept(self, listening: socket.socket, door: ListenerDoor) -> None:
        while True:
            await self._hear_knock(listening)
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    client, address = listening.accept()
                    self._open_door(door, client, address)
            except BlockingIOError:
                continue
            except ConnectionError:
                continue
            except OSError as error:
                # Out of files: whoever waits is served when others have left.
                logger.error("no connection can be accepted", extra={"told": str(error)})
                await asyncio.sleep(_NO_FILES_SECONDS)

    async def _hear_knock(self, listening: socket.socket) -> None:
        """Until somebody waits to be accepted.

        `sock_accept` takes one in even if it was cancelled in the same turn of the loop, and then
        has nobody to give it to.
        """
        heard: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(listening, _wake, heard)
        try:
            await heard
        finally:
            self._loop.remove_reader(listening)

    def _open_door(self, door: ListenerDoor, client: socket.socket, address: Any) -> None:
        self._keep(self._loop.create_task(door.open_to(client, str(address[0]))))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    async def _check_often(self) -> None:
        shortest_ms = min(
            self.settings.request_receive_timeout_ms,
            self.settings.response_send_timeout_ms,
            max(1, self.settings.connections_max_idle_ms),
        )
        seconds = min(_CHECK_SECONDS, shortest_ms / 2000)
        while True:
            await asyncio.sleep(seconds)
            await self._house.check_all()

    async def _measure_lag(self) -> None:
        while True:
            due = self._loop.time() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self.metrics.lag_max = max(self.metrics.lag_max, self._loop.time() - due)

    async def stop(self) -> None:
        """Takes nobody in, answers what was asked, then stops the broker."""
        self._is_ready = False
        await self._end_workers()
        self._close_sockets()
        for connection in list(self._house.inside.values()):
            connection.stop()
        deadline = self._loop.time() + self.settings.shutdown_timeout_ms / 1000
        while self._house.inside and self._loop.time() < deadline:
            await asyncio.sleep(_STOP_LOOK_SECONDS)
        for connection in list(self._house.inside.values()):
            connection.abort("stop")
        await self._end_tasks(deadline)
        await self.broker.stop()

    async def _end_tasks(self, deadline: float) -> None:
        """What clients that have left asked for is carried out, too; long polls are not."""
        await asyncio.sleep(0)
        working = set(self._shared.tasks)
        if working:
            await asyncio.wait(working, timeout=max(0.0, deadline - self._loop.time()))
        left = [*self._shared.tasks, *self._shared.parked]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def cut(self) -> None:
        """Ends all connections and takes nobody in, as a crash would; `stop` does the rest."""
        self._is_ready = False
        await self._end_workers()
        self._close_sockets()
        for connection in list(self._house.inside.values()):
            connection.abort("stop")

    async def _end_workers(self) -> None:
        for task in self._workers:
            task.cancel()
        for task in self._workers:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._workers = []

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _bind(listener: Listener) -> list[socket.socket]:
    """A socket for each address of the listener's host, all on one port."""
    host = listener.host or None
    bound: list[socket.socket] = []
    port = listener.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                continue
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            port = int(one.getsockname()[1])
    except OSError as error:
        for one in bound:
            one.close()
        raise Unavailable(
            f"cannot listen on {listener}: {error.strerror or error}; choose another address or "
            "port with listeners"
        ) from error
    return bound


def _told_host(listener: Listener) -> str:
    """A host that clients can reach; on every interface that is this machine's name."""
    return socket.gethostname() if listener.is_everywhere else listener.host
