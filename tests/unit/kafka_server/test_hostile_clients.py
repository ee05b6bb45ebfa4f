"""Clients that send nonsense, nothing or too much cost little, and only themselves."""

import asyncio
import os
import random
import resource
import time
from typing import Any, cast

import pytest

from tests.support.server_bench import (
    HELLO,
    LISTENER,
    Delayed,
    RawClient,
    ServerBench,
    always,
    connected,
    fetch_response,
    frame,
    produce_request,
    until,
)
from varve.broker.broker import Broker
from varve.broker.request import RequestContext
from varve.kafka_server import ServerSettings
from varve.kafka_server.frames import MemoryBudget
from varve.kafka_server.metrics import CLOSED_CONNECTIONS, REJECTED_REQUESTS
from varve.wire import ApiKey
from varve.wire.compiler import write_uvarint
from varve.wire.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from varve.wire.messages.data import FetchRequest, FetchResponse, ProduceResponse
from varve.wire.messages.groups import HeartbeatRequest, HeartbeatResponse

KIB, MIB = 1 << 10, 1 << 20


async def _is_served(bench: ServerBench) -> None:
    client = await bench.connect()
    assert (await client.ask(HELLO, 3)).error_code == 0


NONSENSE = {
    "negative": (b"\xff\xff\xff\xff", "frame_size"),
    "empty": (b"\x00\x00\x00\x00", "frame_size"),
    "huge": (b"\x7f\xff\xff\xff", "frame_size"),
    "one byte more than may be": (((100 << 20) + 1).to_bytes(4), "frame_size"),
    "no header": (b"\x00\x00\x00\x03abc", "malformed"),
    "client id beyond the end": (
        b"\x00\x00\x00\x0a\x00\x12\x00\x03\x00\x00\x00\x01\x7f\xff",
        "malformed",
    ),
    "unknown API": (b"\x00\x00\x00\x0a\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff", "unknown_api"),
    "unknown version": (
        b"\x00\x00\x00\x0a\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff",
        "unknown_version",
    ),
    "a version that is told and not served": (
        b"\x00\x00\x00\x0a\x00\x00\x00\x02\x00\x00\x00\x01\xff\xff",
        "unknown_version",
    ),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "frame_size"),
    "TLS on a plain listener": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "frame_size"),
}


@pytest.mark.parametrize(("data", "reason"), NONSENSE.values(), ids=NONSENSE)
async def test_what_cannot_be_read_ends_its_connection_alone(data: bytes, reason: str) -> None:
    async with ServerBench() as bench:
        honest = await bench.connect()
        client = await bench.connect()
        await client.send(data)
        assert await client.is_closed()
        assert bench.value(REJECTED_REQUESTS, reason) == 1
        await honest.ask(HELLO, 3)


async def test_requests_before_nonsense_are_answered() -> None:
    async with connected() as (_, client):
        await client.send(frame(HELLO, 3, 1) + frame(HELLO, 3, 2) + b"\xff" * 8)
        assert [await client.receive_id() for _ in range(2)] == [1, 2]
        assert await client.is_closed()


async def test_mutated_requests_are_answered_or_end_their_connection() -> None:
    chance = random.Random(5)
    valid = [frame(HELLO, 3), frame(MetadataRequest(topics=None), 12), frame(FetchRequest(), 12)]
    async with ServerBench() as bench:
        for _ in range(300):
            data = bytearray(chance.choice(valid))
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(4, len(data))] = chance.randrange(256)
            client = await bench.connect()
            await client.send(bytes(data))
            client.writer.write_eof()
            await client.reader.read(1 << 20)
            client.close()
        await until(lambda: bench.server.connection_count == 0)
        await _is_served(bench)
        assert bench.server.request_memory.used == 0
        assert bench.server.response_memory.used == 0


async def test_a_request_may_come_byte_by_byte() -> None:
    async with connected() as (_, client):
        for byte in frame(HELLO, 3, 1) + frame(HELLO, 3, 2):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [await client.receive_id() for _ in range(2)] == [1, 2]


async def test_a_request_that_does_not_arrive_whole_ends_its_connection() -> None:
    settings = ServerSettings(listeners=(LISTENER,), request_receive_timeout_ms=150)
    async with ServerBench(settings) as bench:
        silent, half = await bench.connect(), await bench.connect()
        await half.send(frame(HELLO, 3)[:-1])
        assert await half.is_closed()
        assert bench.value(CLOSED_CONNECTIONS, "slow_request") == 1
        await silent.ask(HELLO, 3)


async def test_an_idle_connection_is_closed_but_not_one_that_waits_for_its_answer() -> None:
    settings = ServerSettings(listeners=(LISTENER,), connections_max_idle_ms=300)
    parked = Delayed(FetchResponse())
    async with ServerBench(settings, handlers={ApiKey.FETCH: parked}) as bench:
        busy = await bench.connect()
        await busy.send(frame(FetchRequest(), 12, 3))
        await parked.wait_asked()
        # One that comes later and is closed has shown that the other one would have been.
        idle = await bench.connect()
        assert await idle.is_closed()
        parked.release()
        assert await busy.receive_id() == 3
        assert bench.value(CLOSED_CONNECTIONS, "idle") == 1


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
async def test_connections_over_the_limit_are_closed(limit: str) -> None:
    settings = ServerSettings(listeners=(LISTENER,), **{limit: 5})  # type: ignore[arg-type]
    async with ServerBench(settings) as bench:
        inside = [await bench.connect() for _ in range(5)]
        for client in inside:
            await client.ask(HELLO, 3)
        outside = [await bench.connect() for _ in range(20)]
        assert all([await client.is_closed() for client in outside])
        inside[0].close()
        await until(lambda: bench.server.connection_count == 4)
        await _is_served(bench)
        assert bench.value(CLOSED_CONNECTIONS, limit) == 20


async def test_connections_leave_the_last_files_to_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (800, 800))
    settings = ServerSettings(listeners=(LISTENER,), reserved_files=900)
    async with ServerBench(settings) as bench:
        files: list[int] = []
        try:
            while not files or files[-1] < 700:
                files.append(os.dup(0))
            assert await (await bench.connect()).is_closed()
            assert bench.value(CLOSED_CONNECTIONS, "open_files") == 1
        finally:
            for file in files:
                os.close(file)
        await _is_served(bench)


@pytest.mark.parametrize(
    ("topic_count", "reason"), [(8 * MIB, "frame_size"), (3 * MIB, "malformed")]
)
async def test_a_metadata_request_with_millions_of_topics_is_refused_before_they_are_read(
    topic_count: int, reason: str
) -> None:
    body = bytearray(frame(MetadataRequest([]), 9))
    head, tail = body[:-5], body[-4:]  # one byte before them says that there are no topics
    topics = bytearray()
    write_uvarint(topics, topic_count + 1)
    topics += b"\x01\x00" * topic_count  # an empty name, no tagged fields
    data = head + topics + tail
    data[:4] = (len(data) - 4).to_bytes(4)
    async with ServerBench() as bench:
        honest, client = await bench.connect(), await bench.connect()
        sending = asyncio.ensure_future(_send(client, bytes(data)))
        began = time.monotonic()
        while not bench.value(REJECTED_REQUESTS, reason):
            await honest.ask(HELLO, 3)
            assert time.monotonic() - began < 10
        await sending
        assert bench.server.request_memory.used == 0


async def test_requests_other_than_produce_have_a_limit_of_their_own() -> None:
    longest, too_long = (
        MetadataRequest([MetadataRequestTopic(name="x" * size)]) for size in (60_000, 60_001)
    )
    limit = len(frame(longest, 9)) - 4
    settings = ServerSettings(listeners=(LISTENER,), request_max_bytes=limit)

    async with connected(settings, handlers={ApiKey.PRODUCE: always(ProduceResponse())}) as (
        bench,
        client,
    ):
        await client.ask(produce_request(bytes(200 * KIB)), 9)
        await client.ask(longest, 9)
        await client.send(frame(too_long, 9))
        assert await client.is_closed()
        assert bench.value(REJECTED_REQUESTS, "frame_size") == 1


class _Waiting:
    """A connection that waits for memory."""

    is_granted = False

    def memory_granted(self) -> None:
        self.is_granted = True


async def test_memory_goes_first_to_the_connection_that_waits_for_it() -> None:
    budget, waiting = MemoryBudget(10, asyncio.get_running_loop()), _Waiting()
    assert budget.try_reserve(10)
    budget.wait(cast(Any, waiting), 8)
    budget.release(6)
    assert not budget.try_reserve(2)
    budget.release(4)
    await until(lambda: waiting.is_granted)
    assert budget.used == 8
    assert budget.try_reserve(2)


async def test_requests_wait_for_memory_and_are_answered_in_the_end() -> None:
    settings = ServerSettings(listeners=(LISTENER,), queued_max_request_bytes=2 * MIB)
    taken: list[int] = []

    async def answer(broker: Broker, context: RequestContext, request: Any) -> ProduceResponse:
        await asyncio.sleep(0.001)
        return ProduceResponse()

    async def ask(bench: ServerBench) -> None:
        client = await bench.connect()
        for number in range(3):
            await client.send(frame(produce_request(bytes(700 * KIB)), 9, number))
            taken.append(bench.server.request_memory.used)
        assert [await client.receive_id() for _ in range(3)] == [0, 1, 2]

    async with ServerBench(settings, handlers={ApiKey.PRODUCE: answer}) as bench:
        await asyncio.gather(*(ask(bench) for _ in range(12)))
        assert max(taken) <= 2 * MIB
        await until(lambda: bench.server.request_memory.used == 0)
        await _is_served(bench)


async def test_half_sent_requests_do_not_keep_memory_from_others_for_ever() -> None:
    settings = ServerSettings(
        listeners=(LISTENER,), queued_max_request_bytes=2 * MIB, request_receive_timeout_ms=300
    )

    async with ServerBench(settings, handlers={ApiKey.PRODUCE: always(ProduceResponse())}) as bench:
        half = frame(produce_request(bytes(900 * KIB)), 9)[: 800 * KIB]
        hostile = [await bench.connect() for _ in range(6)]
        sending = [asyncio.ensure_future(_send(client, half)) for client in hostile]
        await until(lambda: bench.server.request_memory.waiting_count > 0)
        small = await bench.connect()
        await small.ask(HELLO, 3)
        await asyncio.gather(*sending)
        large = await bench.connect()
        await large.send(frame(produce_request(bytes(900 * KIB)), 9, 4))
        assert await large.receive_id() == 4
        assert bench.server.request_memory.used <= 2 * MIB


async def _send(client: RawClient, data: bytes) -> None:
    try:
        await client.send(data)
        await client.is_closed()
    except ConnectionError:
        pass


async def test_clients_that_do_not_read_are_let_go_when_memory_is_short() -> None:
    settings = ServerSettings(listeners=(LISTENER,), queued_max_response_bytes=8 * MIB)
    records = bytes(6 * MIB)

    async with ServerBench(
        settings, handlers={ApiKey.FETCH: always(fetch_response(records))}
    ) as bench:
        for _ in range(5):
            client = await bench.connect(receive_buffer=4096)
            await client.send(frame(FetchRequest(), 12))
        await until(lambda: bench.server.response_memory.is_exceeded)
        # Those beyond the limit are not begun; one more than fits may be.
        assert bench.server.response_memory.used <= 8 * MIB + len(records)
        await _is_served(bench)
        honest = await bench.connect()
        found = await honest.ask(FetchRequest(), 12)
        assert len(found.responses[0].partitions[0].records) == len(records)
        assert bench.value(CLOSED_CONNECTIONS, "slow_reader") > 0


async def test_an_answer_takes_memory_until_its_last_byte_is_sent() -> None:
    records = bytes(16 * MIB)

    async with ServerBench(handlers={ApiKey.FETCH: always(fetch_response(records))}) as bench:
        client = await bench.connect(receive_buffer=4096)
        await client.send(frame(FetchRequest(), 12))
        await client.reader.readexactly(8 * MIB)
        assert bench.server.response_memory.used > len(records)
        await client.reader.readexactly(8 * MIB)
        await until(lambda: not bench.server.response_memory.used)


async def test_only_requests_with_small_answers_go_on_when_response_memory_is_short() -> None:
    handlers = {
        ApiKey.METADATA: always(MetadataResponse()),
        ApiKey.HEARTBEAT: always(HeartbeatResponse()),
    }
    async with ServerBench(handlers=handlers) as bench:
        responses = bench.server.response_memory
        responses.reserve(responses.limit + 1)  # as responses that nobody reads do
        describing, member = await bench.connect(), await bench.connect()
        asking = asyncio.ensure_future(describing.ask(MetadataRequest(topics=None), 12))
        await until(lambda: responses.waiting_count == 1)
        await member.ask(HeartbeatRequest(), 4)
        assert not asking.done()
        responses.release(responses.limit + 1)
        await asking


async def test_hundreds_of_consumers_that_wait_for_response_memory_are_all_answered() -> None:
    settings = ServerSettings(listeners=(LISTENER,), queued_max_response_bytes=MIB)
    records = bytes(32 * KIB)
    consumer_count = 400

    async with ServerBench(
        settings, handlers={ApiKey.FETCH: always(fetch_response(records))}
    ) as bench:
        responses = bench.server.response_memory
        responses.reserve(2 * MIB)  # as responses that nobody reads do
        consumers = [await bench.connect() for _ in range(consumer_count)]
        for client in consumers:
            await client.send(frame(FetchRequest(), 12))
        await until(lambda: responses.waiting_count == consumer_count)
        responses.release(2 * MIB)
        for client in consumers:
            assert len(await client.receive()) > len(records)
        # A later client is served as well, and no memory stays taken.
        await (await bench.connect()).ask(FetchRequest(), 12)
        await until(lambda: not responses.used and not responses.waiting_count)


async def test_a_client_that_takes_nothing_for_too_long_is_let_go() -> None:
    settings = ServerSettings(listeners=(LISTENER,), response_send_timeout_ms=200)
    records = bytes(12 * MIB)

    async with ServerBench(
        settings, handlers={ApiKey.FETCH: always(fetch_response(records))}
    ) as bench:
        client = await bench.connect(receive_buffer=4096)
        await client.send(frame(FetchRequest(), 12))
        await until(lambda: bench.server.connection_count == 1)
        await until(lambda: bench.server.connection_count == 0)
        assert bench.value(CLOSED_CONNECTIONS, "slow_reader") == 1
        assert bench.server.response_memory.used == 0
