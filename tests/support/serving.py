"""A server in a thread of its own over a store that a test has open."""

import asyncio
import random
from typing import Any, Final, Self

from tests.support.loop_thread import LoopThread
from varve.broker.background import LoopTimers
from varve.broker.broker import Broker
from varve.broker.settings import BrokerSettings
from varve.embedded import Store
from varve.foundation.clock import Clock, SystemClock
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings

PLAIN: Final = ServerSettings(listeners=("PLAINTEXT://127.0.0.1:0",))


def make_broker(
    store: Store,
    settings: BrokerSettings | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    clock: Clock | None = None,
    **parts: Any,
) -> Broker:
    """A broker in the running loop; `parts` are the settings of parts, as Broker takes them."""
    loop = loop or asyncio.get_running_loop()
    return Broker(
        store,
        settings or BrokerSettings(),
        clock=clock or SystemClock(),
        timers=LoopTimers(loop),
        random=random.Random(1),
        loop=loop,
        **parts,
    )


class Serving:
    """Serves while it is entered; the store stays the test's own."""

    def __init__(
        self,
        store: Store,
        settings: ServerSettings = PLAIN,
        *,
        securities: ListenerSecurities | None = None,
        **parts: Any,
    ) -> None:
        self._store = store
        self._settings = settings
        self._securities = securities
        self._parts = parts

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        self.server = self._thread.run(self._start())
        return self

    async def _start(self) -> Server:
        broker = make_broker(self._store, **self._parts)
        server = Server(broker, self._settings, securities=self._securities)
        await server.start()
        return server

    def address(self, listener: str) -> str:
        found = self.server.broker.endpoints[listener]
        return f"{found.host}:{found.port}"

    @property
    def bootstrap(self) -> str:
        return self.address("PLAINTEXT")

    def __exit__(self, *_: object) -> None:
        self._thread.run(self.server.stop())
        self._thread.close()
