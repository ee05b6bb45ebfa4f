"""KafkaKit, a broker for tests: in this process, on loopback, with a clock that tests can advance.

Any Kafka client connects to `bootstrap`. The server runs in its own thread on the store of a
`VirtualStore`, by default in memory; background work runs on request. Clients wait in real time, so
the server's clock runs as usual, and `advance` moves it ahead.

Invariant  closing the kit closes the store and checks all its invariants. Time never goes back.
           Timers fire in the order of their times, once the clock has reached them by running or
           by `advance`.
Crash      `restart(crash=True)` loses what a power loss would; clients lose their connections and
           find the next server at the same address.
Threads    one test thread; calls on the server run in its event loop. Any thread may read the
           clock; timers belong to the thread of their loop.
"""

import asyncio
import heapq
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack

from varve.broker.background import Timer
from varve.broker.broker import Broker
from varve.broker.settings import BrokerSettings, GroupSettings
from varve.embedded import Store
from varve.foundation.clock import ManualClock
from varve.foundation.closing import Closing
from varve.foundation.errors import Closed
from varve.foundation.settings import GivenValue
from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings
from varve.testing.faulty_disk import CrashMode
from varve.testing.virtual_store import START_MS, Length, VirtualStore, to_milliseconds

T = TypeVar("T")

_HOST: Final = "127.0.0.1"
_TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for the server's thread; a test that hangs fails then."""
_STEP_MS: Final = 60_000
"""`advance` moves in steps of this length, so that timers fire near the time they were set for."""
_STEPS_MAX: Final = 100
"""Steps of one `advance` at most; a longer one takes longer steps."""


class FlowingClock(ManualClock):
    """Starts at a given time, runs with real time, and jumps by `advance`."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._started_seconds = time.monotonic()

    def now_ms(self) -> int:
        return super().now_ms() + int((time.monotonic() - self._started_seconds) * 1000)


class _ManualTimer:
    __slots__ = ("call", "is_cancelled")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """Timers of a clock that a test moves; `run_due` fires those that are due."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, _ManualTimer]] = []
        self._sequence = itertools.count()

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer:
        timer = _ManualTimer(call)
        due_ms = self._clock.now_ms() + max(0, delay_ms)
        heapq.heappush(self._heap, (due_ms, next(self._sequence), timer))
        return timer

    def run_due(self) -> None:
        while self._heap and self._heap[0][0] <= self._clock.now_ms():
            timer = heapq.heappop(self._heap)[2]
            if not timer.is_cancelled:
                timer.call()


class FlowingTimers(ManualTimers):
    """Timers of a `FlowingClock`, fired by the event loop; call `run_due` after a jump."""

    def __init__(self, clock: FlowingClock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(clock)
        self._loop = loop
        self._next_call: asyncio.TimerHandle | None = None

    def call_later(self, delay_ms: int, call: Callable[[], object]) -> Timer:
        timer = super().call_later(delay_ms, call)
        self._arm()
        return timer

    def run_due(self) -> None:
        super().run_due()
        self._arm()

    def _arm(self) -> None:
        if self._next_call is not None:
            self._next_call.cancel()
            self._next_call = None
        if self._heap:
            delay_ms = max(0, self._heap[0][0] - self._clock.now_ms()) + 1
            self._next_call = self._loop.call_later(delay_ms / 1000, self.run_due)


class _ServerThread:
    """A server and the event loop and thread it runs in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self.loop = loop
        self.thread = thread
        self.server: Server | None = None
        self.timers: FlowingTimers | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_TIMEOUT_SECONDS)


class KafkaKit(Closing):
    """A server whose store and clock the test controls; it runs inside a `with` block.

    `settings` are those of `varve.open`. `broker` and `server` are settings of the server; by
    default it is configured as by `varve serve`, but listens on a free port.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, GivenValue] | None = None,
        directory: str | os.PathLike[str] | None = None,
        now_ms: int = START_MS,
        seed: int = 0,
        broker: BrokerSettings | None = None,
        server: ServerSettings | None = None,
        **parts: Any,
    ) -> None:
        self.clock = FlowingClock(now_ms)
        self.virtual = VirtualStore(
            settings=settings, directory=directory, seed=seed, clock=self.clock
        )
        self._seed = seed
        self._start_count = 0
        self._broker_settings = broker or BrokerSettings()
        self._server_settings = server or ServerSettings(listeners=(f"PLAINTEXT://{_HOST}:0",))
        # Tests should not wait for more members to join a new group.
        self._parts = {"groups": GroupSettings(group_initial_rebalance_delay_ms=0), **parts}
        self._running: _ServerThread | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    # The server

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers` for clients."""
        endpoints = self._get_server().broker.endpoints.values()
        return ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)

    @property
    def store(self) -> Store:
        """The server's store, for inspection."""
        return self.virtual.store

    @property
    def server(self) -> Server:
        """The server itself; raises Closed outside the `with` block."""
        return self._get_server()

    def _get_server(self) -> Server:
        if self._running is None or self._running.server is None:
            raise Closed("the kit's server does not run: use the kit in a `with` block")
        return self._running.server

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="varve-kit", daemon=True)
        running = self._running = _ServerThread(loop, thread)
        thread.start()
        try:
            running.run(self._serve(running))
        except BaseException:
            self._end_loop()
            raise

    async def _serve(self, running: _ServerThread) -> None:
        self._start_count += 1
        running.timers = FlowingTimers(self.clock, running.loop)
        broker = Broker(
            self.virtual.store,
            self._broker_settings,
            clock=self.clock,
            timers=running.timers,
            random=random.Random(self._seed),
            loop=running.loop,
            boot_id=str(self._start_count),
            **self._parts,
        )
        server = Server(broker, self._server_settings)
        await server.start()
        running.server = server

    def _end_loop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.loop.call_soon_threadsafe(running.loop.stop)
            running.thread.join(_TIMEOUT_SECONDS)
            running.loop.close()

    def _stop(self, *, crash: bool) -> None:
        if self._running is None or self._running.server is None:
            return
        server = self._running.server
        if crash:
            self._running.run(server.abort())
            self._call(server.broker.dedup_topics.abandon)
            self.virtual.crash_now()
        self._running.run(server.stop())
        self._end_loop()

    def restart(self, *, crash: bool = False, mode: CrashMode = CrashMode.LOSE_UNSYNCED) -> None:
        """Stops and starts the server, at the same address.

        After a crash requests in progress get no response, and `mode` says what the disk keeps.
        """
        listeners = [
            f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
            for endpoint in self._get_server().broker.endpoints.values()
        ]
        self._server_settings = replace(self._server_settings, listeners=tuple(listeners))
        self._stop(crash=crash)
        self.virtual.reopen(mode)
        self._start()

    # Time and background work

    @property
    def now_ms(self) -> int:
        """The time of the clock, in milliseconds since 1970."""
        return self.clock.now_ms()

    def advance(self, **length: Unpack[Length]) -> int:
        """Moves the clock ahead and fires due timers: sessions expire, transactions time out.

        The length is a sum of days, hours, minutes, seconds and milliseconds.
        """
        total_ms = to_milliseconds(length)
        step_ms = max(1, min(_STEP_MS, total_ms), -(-total_ms // _STEPS_MAX))
        while total_ms > 0:
            self._call(partial(self._jump, min(step_ms, total_ms)))
            total_ms -= step_ms
        return self.now_ms

    def _jump(self, milliseconds: int) -> None:
        assert self._running is not None
        assert self._running.timers is not None
        self.clock.advance(milliseconds)
        self._running.timers.run_due()

    def _call(self, work: Callable[[], T]) -> T:
        """Calls `work` in the server's thread, and lets the callbacks that it schedules run."""

        async def run() -> T:
            result = work()
            for _ in range(3):
                await asyncio.sleep(0)
            return result

        assert self._running is not None, "the server is stopped"
        return self._running.run(run())

    def run_background(self) -> None:
        """Does all work that the store's threads would have done by now: flush, roll, compact."""
        self.store.run_once(self.now_ms)

    def clean_now(self, topic: str | None = None, *, roll: bool = True) -> None:
        """Compacts and expires one topic or all, whatever their dirty ratio."""
        self.store.clean(topic, roll=roll)

    # The end

    def close(self) -> None:
        """Stops the server, closes the store, and raises Corrupt when an invariant is broken."""
        self._stop(crash=False)
        self.virtual.close()
