"""A connection answers in order, whatever its requests take, and takes no more than it may."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.support.server_bench import (
    HELLO,
    LISTENER,
    Delayed,
    ServerBench,
    always,
    connected,
    fetch_response,
    frame,
    produce_request,
    until,
)
from varve.broker.broker import Broker
from varve.broker.request import CloseConnection, RequestContext
from varve.foundation.errors import InvalidRequest
from varve.kafka_server import ServerSettings
from varve.kafka_server.metrics import FAILED_REQUESTS, REQUESTS
from varve.wire import ApiKey, ErrorCode, decode
from varve.wire.messages.cluster import ApiVersionsResponse, MetadataRequest
from varve.wire.messages.data import FetchRequest, FetchResponse, ProduceResponse
from varve.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from varve.wire.messages.security import SaslHandshakeRequest


async def test_answers_keep_the_order_of_their_requests() -> None:
    slow = Delayed(ProduceResponse())
    async with connected(handlers={ApiKey.PRODUCE: slow}) as (_, client):
        for number in range(5):
            await client.send(frame(produce_request(), 9, number))
        await client.send(frame(HELLO, 3, 5))
        await slow.wait_asked(5)
        for number in (4, 1, 0, 3, 2):
            slow.release(number)
        assert [await client.receive_id() for _ in range(6)] == [0, 1, 2, 3, 4, 5]


async def test_nothing_is_begun_behind_a_long_poll() -> None:
    fetches, slow = Delayed(FetchResponse()), Delayed(ProduceResponse())
    handlers = {ApiKey.FETCH: fetches, ApiKey.PRODUCE: slow}
    async with connected(handlers=handlers) as (bench, client):
        await client.send(frame(FetchRequest(), 12, 1) + frame(produce_request(), 9, 2))
        await fetches.wait_asked()
        other = await bench.connect()
        await other.ask(HELLO, 3)
        assert not slow.futures
        fetches.release()
        assert await client.receive_id() == 1
        await slow.wait_asked()
        slow.release()
        assert await client.receive_id() == 2


async def test_a_requests_bytes_stay_until_it_is_answered() -> None:
    slow = Delayed(ProduceResponse())
    texts = [bytes([65 + number]) * 40_000 for number in range(12)]
    async with connected(handlers={ApiKey.PRODUCE: slow}) as (_, client):
        for number, text in enumerate(texts):
            await client.send(frame(produce_request(text), 9, number))
        await slow.wait_asked(len(texts))
        found = [bytes(one.topic_data[0].partition_data[0].records) for one in slow.asked]
        assert found == texts
        for number in range(len(texts)):
            slow.release(number)
        assert [await client.receive_id() for _ in texts] == list(range(len(texts)))


async def test_only_so_many_requests_of_a_connection_are_in_progress() -> None:
    slow = Delayed(ProduceResponse())
    settings = ServerSettings(listeners=(LISTENER,), connection_max_requests=3)
    async with connected(settings, handlers={ApiKey.PRODUCE: slow}) as (_, client):
        await client.send(b"".join(frame(produce_request(), 9, number) for number in range(10)))
        await slow.wait_asked(3)
        for number in range(10):
            await until(lambda number=number: len(slow.futures) > number)
            assert len(slow.futures) - number <= 3
            slow.release(number)
            assert await client.receive_id() == number


async def test_a_produce_without_acks_has_no_answer() -> None:
    async with connected(handlers={ApiKey.PRODUCE: always(None)}) as (bench, client):
        await client.send(frame(produce_request(acks=0), 9, 1))
        await client.send(frame(HELLO, 3, 2))
        assert await client.receive_id() == 2
        assert bench.value(REQUESTS, "produce") == 1


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_failing_handler_becomes_an_error_or_the_end(acks: int) -> None:
    def fail(broker: Broker, context: RequestContext, request: Any) -> Any:
        raise RuntimeError("a bug")

    async with connected(handlers={ApiKey.PRODUCE: fail}) as (bench, client):
        if acks:
            answer = await client.ask(produce_request(acks=acks), 9)
            found = answer.responses[0].partition_responses[0].error_code
            assert found == ErrorCode.UNKNOWN_SERVER_ERROR
            await client.ask(HELLO, 3)
        else:
            await client.send(frame(produce_request(acks=acks), 9))
            assert await client.is_closed()
        assert bench.value(FAILED_REQUESTS, "produce") == 1


async def test_a_mistake_of_the_client_is_told_and_no_failure() -> None:
    def refuse(broker: Broker, context: RequestContext, request: Any) -> Any:
        raise InvalidRequest("a cursor at partition -1")

    async with connected(handlers={ApiKey.PRODUCE: refuse}) as (bench, client):
        answer = await client.ask(produce_request(acks=1), 9)
        found = answer.responses[0].partition_responses[0].error_code
        assert found == ErrorCode.INVALID_REQUEST
        assert bench.value(FAILED_REQUESTS, "produce") == 0


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_answer_that_cannot_be_written_ends_the_connection(is_late: bool) -> None:
    broken = ProduceResponse(responses=None)  # type: ignore[arg-type]

    async def late() -> ProduceResponse:
        return broken

    def answer(broker: Broker, context: RequestContext, request: Any) -> Any:
        return late() if is_late else broken

    async with connected(handlers={ApiKey.PRODUCE: answer}) as (bench, client):
        await client.send(frame(produce_request(), 9))
        assert await client.is_closed()
        assert bench.value(FAILED_REQUESTS, "produce") == 1


async def test_a_handler_may_end_its_connection() -> None:
    async def end(broker: Broker, context: RequestContext, request: Any) -> Any:
        raise CloseConnection("nothing to say")

    async with connected(handlers={ApiKey.HEARTBEAT: end}) as (bench, client):
        await client.send(frame(HeartbeatRequest("g", 1, "m"), 4))
        assert await client.is_closed()
        assert bench.value(FAILED_REQUESTS, "heartbeat") == 0


async def test_a_client_over_its_quota_is_not_read_from_for_a_while() -> None:
    throttled = always(HeartbeatResponse(throttle_time_ms=150))
    async with connected(handlers={ApiKey.HEARTBEAT: throttled}) as (_, client):
        loop = asyncio.get_running_loop()
        await client.ask(HeartbeatRequest("g", 1, "m"), 4)
        began = loop.time()
        await client.ask(HELLO, 3)
        assert loop.time() - began > 0.1


async def test_a_version_of_api_versions_that_nobody_knows_is_answered_with_the_list() -> None:
    async with connected() as (_, client):
        unknown = bytearray(frame(HELLO, 3, 9))
        unknown[6:8] = (99).to_bytes(2, "big")
        await client.send(bytes(unknown))
        answer = decode(ApiVersionsResponse, 0, await client.receive(), 4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        assert told[ApiKey.PRODUCE][0] == 0
        assert {ApiKey.FETCH, ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS} <= set(told)
        await client.ask(HELLO, 3)


async def test_sasl_where_nobody_asks_for_it_is_told_so() -> None:
    async with connected() as (_, client):
        answer = await client.ask(SaslHandshakeRequest("PLAIN"), 1)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        await client.ask(MetadataRequest(topics=None), 12)


async def test_large_answers_arrive_whole_at_a_slow_reader() -> None:
    parts = [bytes([number]) * 3_000_000 for number in range(4)]

    async with ServerBench(handlers={ApiKey.FETCH: always(fetch_response(*parts))}) as bench:
        client = await bench.connect(receive_buffer=8192)
        for _ in range(2):
            found = await client.ask(FetchRequest(), 12)
            records = [bytes(one.records) for one in found.responses[0].partitions]
            assert records == parts
        assert bench.server.response_memory.used == 0


async def test_a_connection_that_ends_as_its_last_bytes_go_out_is_lost_once() -> None:
    slow = Delayed(fetch_response(bytes(8 << 20)))
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, one: told.append(one))
    async with ServerBench(handlers={ApiKey.FETCH: slow}) as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(frame(FetchRequest(), 4))
        await slow.wait_asked()
        slow.release()
        stopping = asyncio.create_task(bench.stop())
        await reader.read()
        await stopping
        writer.close()
    assert told == []


async def test_a_connection_that_is_cut_as_its_client_reads_on_is_lost_once() -> None:
    slow = Delayed(fetch_response(bytes(8 << 20)))
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, one: told.append(one))
    async with ServerBench(handlers={ApiKey.FETCH: slow}) as bench:
        client = await bench.connect(receive_buffer=1 << 14)
        await client.send(frame(FetchRequest(), 4))
        await slow.wait_asked()
        [connection] = bench.server.registry.connections.values()
        slow.release()
        await until(lambda: connection.stalled_bytes > 0)
        connection.resume = lambda: connection.abort("slow_reader")  # type: ignore[method-assign]
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
        await until(lambda: not bench.server.registry.connections)
    assert told == []
