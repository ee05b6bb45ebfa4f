"""A server in a thread of its own over a store that a test has open."""

import asyncio
import random
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from varve.broker.background import LoopTimers
from varve.broker.broker import Broker
from varve.broker.settings import BrokerSettings
from varve.embedded import Store
from varve.foundation.clock import SystemClock
from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 20.0


class Serving:
    """Serves while it is entered; the store stays the test's own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.server = self._run(self._start())
        return self

    async def _start(self) -> Server:
        broker = Broker(
            self._store,
            BrokerSettings(),
            clock=SystemClock(),
            timers=LoopTimers(self._loop),
            random=random.Random(1),
            loop=self._loop,
        )
        server = Server(broker, ServerSettings(listeners=("PLAINTEXT://127.0.0.1:0",)))
        await server.start()
        return server

    @property
    def bootstrap(self) -> str:
        (found,) = self.server.broker.endpoints.values()
        return f"{found.host}:{found.port}"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()
