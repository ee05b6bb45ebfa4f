"""A broker without sockets, on a store in memory, under a clock that the test moves.

Requests go through the codec at their version, and so do the answers. Appends and work off the loop
are done by the test's own thread, in turn, when the loop has nothing else to do: a test that passes
once passes always. `hold_work` keeps such work waiting, as a slow disk would.

    with BrokerKit() as kit:
        kit.make_topic("events", partitions=2)
        answer = kit.ask(MetadataRequest(topics=None), version=12)
        waiting = kit.begin(FetchRequest(...))
        kit.advance(500)
        answer = waiting.result()
"""

import asyncio
import contextlib
import inspect
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import varve
from varve.broker.broker import Broker, Endpoint
from varve.broker.error_responses import error_response
from varve.broker.handlers import HANDLERS
from varve.broker.request import ANONYMOUS, ConnectionContext, Principal, RequestContext
from varve.broker.settings import BrokerSettings
from varve.broker.topics import ServedTopic
from varve.commit_log import Log, TopicPartition
from varve.disk import FileSystem, MemoryFileSystem, PowerLoss, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.settings import GivenValue
from varve.object_store import ObjectStore
from varve.testing.kafka_kit import ManualTimers
from varve.wire import APIS, ApiKey, Message, decode, encode
from varve.wire.errors import KafkaError

T = TypeVar("T")

LISTENER: Final = "PLAINTEXT"
# So many turns of the loop without other work: whatever can go on by itself has done so.
_IDLE_TURNS: Final = 25
_PATIENCE_SECONDS: Final = 2.0
_STEP_MS: Final = 100


class ManualExecutor(Executor):
    """Does its work when told, in the thread that tells it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.is_held = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        self._waiting.append((future, lambda: fn(*args, **named)))
        return future

    @property
    def count(self) -> int:
        """Pieces of work that wait."""
        return len(self._waiting)

    def run_once(self) -> bool:
        """Does one piece; False where there is none to do."""
        if self.is_held or not self._waiting:
            return False
        future, work = self._waiting.popleft()
        if not future.set_running_or_notify_cancel():
            return True
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return True


class BrokerKit:
    """An open store, a loop and a started broker; use it as a context manager.

    `path` puts the store on the real disk; `parts` are the settings of parts, as Broker takes them.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        settings: BrokerSettings | None = None,
        store_settings: Mapping[str, GivenValue] | None = None,
        fs: FileSystem | None = None,
        clock: ManualClock | None = None,
        objects: ObjectStore | None = None,
        **parts: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.fs: FileSystem = fs or (RealFileSystem() if path else MemoryFileSystem(self.clock))
        self._path = str(path) if path else "data"
        self._settings = settings or BrokerSettings()
        self._store_settings = store_settings or {}
        self._objects = objects
        self._parts = parts
        self._connection_count = 0

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.timers = ManualTimers(self.clock)
        self.work = ManualExecutor()
        self.syncs = ManualExecutor()
        self._holds_appends = False
        self.store = varve.open(
            self._path,
            settings=self._store_settings,
            fs=self.fs,
            clock=self.clock,
            random=random.Random(7),
            maintain=False,
            objects=self._objects,
        )
        self.broker = Broker(
            self.store,
            self._settings,
            clock=self.clock,
            timers=self.timers,
            random=random.Random(7),
            loop=self.loop,
            pool=self.work,
            sync_pool=self.syncs,
            has_append_threads=False,
            **self._parts,
        )
        self.broker.endpoints[LISTENER] = Endpoint(LISTENER, "localhost", 9092)
        self.run(self.broker.start())
        self.connection = self.connect()

    def _close(self) -> None:
        self.release_work()
        self.run(self.broker.stop())
        self._close_loop()
        self.store.close()

    def _close_loop(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def restart(self, *, is_crash: bool = False) -> None:
        """Stops the broker and its store and starts them anew; a crash writes nothing more."""
        if is_crash:
            self._close_loop()
            with contextlib.suppress(PowerLoss):
                self.broker.dedup_topics.abandon()
            self.store.abandon()
        else:
            self._close()
        self._open()

    def set_part(self, **parts: Any) -> None:
        """Gives the broker of the next start other settings of parts."""
        self._parts.update(parts)

    # Topics

    def make_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        settings: Mapping[str, GivenValue] | None = None,
    ) -> ServedTopic:
        self.store.create_topic(name, partitions=partitions, settings=settings)
        self.broker.topics.refresh()
        return self.topic(name)

    def topic(self, name: str) -> ServedTopic:
        found = self.broker.topics.find(name)
        assert found is not None, f"there is no topic {name}"
        return found

    def log(self, name: str, partition: int = 0) -> Log:
        log = self.broker.topics.find_log(TopicPartition(name, partition))
        assert log is not None, f"there is no partition {name}-{partition}"
        return log

    # Requests

    def connect(self, principal: Principal | None = None) -> ConnectionContext:
        self._connection_count += 1
        return ConnectionContext(
            self._connection_count, LISTENER, "127.0.0.1", principal or ANONYMOUS
        )

    def disconnect(self, connection: ConnectionContext) -> None:
        self.broker.connection_closed(connection)
        self.settle()

    def begin(
        self,
        request: Message,
        *,
        version: int | None = None,
        client_id: str = "kit",
        principal: Principal | None = None,
        connection: ConnectionContext | None = None,
    ) -> "asyncio.Future[Any]":
        """Asks; the answer comes with the future, at once or when the test goes on."""
        api = APIS[request.API_KEY]
        version = api.versions.last if version is None else version
        assert version in api.versions, f"{api.key.name} is not served in version {version}"
        if connection is None:
            connection = self.connect(principal) if principal else self.connection
        context = RequestContext(
            ApiKey(api.key),
            version,
            client_id,
            connection,
            self.broker.authorizer,
            self.broker.topics,
        )
        received = decode(api.request, version, bytes(encode(request, version)))
        future = self.loop.create_task(self._answer(context, received))
        self.settle()
        return future

    async def _answer(self, context: RequestContext, request: Message) -> Message | None:
        api = APIS[context.api_key]
        try:
            answer = HANDLERS[context.api_key](self.broker, context, request)
            response = await answer if inspect.isawaitable(answer) else answer
        except KafkaError as error:
            response = error_response(api, request, context.version, error.code, error.message)
        if response is None:
            return None
        kind = api.response
        return decode(kind, context.version, bytes(encode(response, context.version)))

    def ask(self, request: Message, **named: Any) -> Any:
        """The answer to a request that needs no further help of the test; `named` as of `begin`."""
        return self._finish(self.begin(request, **named))

    # Time and work

    def run(self, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
        """Runs something in the loop to its end."""
        return self._finish(asyncio.ensure_future(work, loop=self.loop))

    def _finish(self, future: "asyncio.Future[T]") -> T:
        self.settle()
        if not future.done():
            # Something waits for a thread that is not ours.
            waiting = asyncio.wait({future}, timeout=_PATIENCE_SECONDS)
            self.loop.run_until_complete(waiting)
            self.settle()
        assert future.done(), "no answer yet: begin it, and advance the clock or release work"
        return future.result()

    def advance(self, milliseconds: int) -> None:
        """Moves the clock in small steps, with the timers that fall due on the way."""
        while milliseconds > 0:
            step = min(_STEP_MS, milliseconds)
            milliseconds -= step
            self.clock.advance(step)
            self.timers.run_due()
            self.settle()

    def settle(self) -> None:
        """Lets everything go on that can without the clock."""
        idle = 0
        while idle < _IDLE_TURNS:
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            idle = 0 if self._work_once() else idle + 1

    def _work_once(self) -> bool:
        did_append = not self._holds_appends and (
            self.broker.appends.run_once() or self.broker.dedup_appends.run_once()
        )
        did_sync = self.syncs.run_once()
        return self.work.run_once() or did_sync or did_append

    def hold_work(self, *, appends: bool = False, syncs: bool = False, work: bool = False) -> None:
        """Keeps what is named from being done until `release_work`."""
        self._holds_appends |= appends
        self.syncs.is_held |= syncs
        self.work.is_held |= work

    def release_work(self) -> None:
        self._holds_appends = self.syncs.is_held = self.work.is_held = False
        self.settle()
