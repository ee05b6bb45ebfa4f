"""A server on loopback within the test's own loop, and clients that send what they are told.

async with ServerBench() as bench:
    client = await bench.connect()
    answer = await client.ask(MetadataRequest(), version=12)
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any, Final, Self

import uvloop

import varve
from tests.support.serving import PLAIN, make_broker
from varve.broker.broker import Broker
from varve.broker.handlers import HANDLERS, Handler
from varve.broker.request import RequestContext
from varve.broker.settings import BrokerSettings
from varve.disk import MemoryFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.metrics import Metric
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings
from varve.wire import APIS, ApiKey, Message, decode, encode, skip_tags, write_request_header
from varve.wire.messages.cluster import ApiVersionsRequest
from varve.wire.messages.data import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

_LENGTH: Final = Struct(">i")
_CORRELATION: Final = Struct(">i")
_PATIENCE_SECONDS: Final = 20.0
LISTENER: Final = "PLAINTEXT://127.0.0.1:0"
HELLO: Final = ApiVersionsRequest("honest", "1")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a scenario that must end by itself, on the event loop of `varve serve`."""

    async def bounded() -> None:
        await asyncio.wait_for(scenario, _PATIENCE_SECONDS)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def frame(message: Message, version: int, correlation_id: int = 0, client_id: str = "raw") -> bytes:
    """A request as it is sent."""
    api = APIS[message.API_KEY]
    out = write_request_header(
        api.key, version, correlation_id, client_id, is_flexible=api.is_flexible(version)
    )
    out += encode(message, version)
    return _LENGTH.pack(len(out)) + bytes(out)


class Delayed:
    """A handler whose answers come when the test says so; it remembers what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[Any] = []
        self.futures: list[asyncio.Future[Any]] = []
        self._answer = answer

    def __call__(self, broker: Broker, context: RequestContext, request: Any) -> Any:
        self.asked.append(request)
        self.futures.append(broker.loop.create_future())
        return self.futures[-1]

    async def wait_asked(self, count: int = 1) -> None:
        await until(lambda: len(self.futures) == count)

    def release(self, number: int = 0) -> None:
        self.futures[number].set_result(self._answer)


def always(answer: Any) -> Handler:
    """A handler that has the same answer to everything."""
    return lambda broker, context, request: answer


def fetch_response(*records: bytes) -> FetchResponse:
    """With so many partitions of a topic `t`."""
    partitions = [
        PartitionData(partition_index=number, records=memoryview(part))
        for number, part in enumerate(records)
    ]
    return FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])


def produce_request(records: bytes = b"x", *, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(records))
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData("t", partition_data=[data])])


class RawClient:
    """A connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> bytes:
        """The next answer, with its header."""
        (length,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
        return await self.reader.readexactly(length)

    async def receive_id(self) -> int:
        """The correlation id of the next answer."""
        found: int = _CORRELATION.unpack_from(await self.receive())[0]
        return found

    async def ask(self, message: Message, version: int, correlation_id: int = 7) -> Any:
        await self.send(frame(message, version, correlation_id))
        data = memoryview(await self.receive())
        assert _CORRELATION.unpack_from(data)[0] == correlation_id
        api = APIS[message.API_KEY]
        at = _CORRELATION.size
        if api.is_flexible(version) and api.key is not ApiKey.API_VERSIONS:
            at = skip_tags(data, at)
        return decode(api.response, version, data, at)

    async def is_closed(self) -> bool:
        """Waits for the end of the connection; False where something else came."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


class ServerBench:
    """A broker on a store in memory, and its server; handlers may be replaced."""

    def __init__(
        self,
        settings: ServerSettings = PLAIN,
        *,
        handlers: Mapping[ApiKey, Handler] | None = None,
        securities: ListenerSecurities | None = None,
        broker: BrokerSettings | None = None,
    ) -> None:
        self._settings = settings
        self._handlers = {**HANDLERS, **(handlers or {})}
        self._securities = securities
        self._broker = broker or BrokerSettings()
        self._clients: list[RawClient] = []

    async def __aenter__(self) -> Self:
        clock = SystemClock()
        self.store = varve.open(
            "data", fs=MemoryFileSystem(clock), clock=clock, random=random.Random(1), maintain=False
        )
        self.broker = make_broker(self.store, self._broker, clock=clock)
        self.server = Server(
            self.broker,
            self._settings,
            securities=self._securities,
            handlers=self._handlers,
        )
        await self.server.start()
        self._is_stopped = False
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        await self.stop()
        self.store.close()

    async def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            await self.server.stop()

    @property
    def port(self) -> int:
        return next(iter(self.broker.endpoints.values())).port

    async def connect(self, *, receive_buffer: int = 0) -> RawClient:
        """A new connection; a small receive buffer makes a slow reader of it."""
        one = socket.socket()
        if receive_buffer:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        one.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", self.port))
        except OSError:
            one.close()
            raise
        # A reader that takes little at a time, so that a test may stop reading.
        reader, writer = await asyncio.open_connection(sock=one, limit=1 << 14)
        client = RawClient(reader, writer)
        self._clients.append(client)
        return client

    def value(self, metric: Metric, *labels: str) -> float:
        list(self.server.metrics.collect())
        return self.server.metrics.value(metric, *labels)


@asynccontextmanager
async def connected(
    settings: ServerSettings = PLAIN, *, handlers: Mapping[ApiKey, Handler] | None = None
) -> AsyncIterator[tuple[ServerBench, RawClient]]:
    """A server and a client of it."""
    async with ServerBench(settings, handlers=handlers) as bench:
        yield bench, await bench.connect()


async def until(is_true: Any, seconds: float = 30.0) -> None:
    """Waits for something to become true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not is_true():
        assert loop.time() < deadline, "it did not become true in time"
        await asyncio.sleep(0.005)
