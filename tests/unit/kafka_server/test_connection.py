"""A connection answers in order, whatever its requests take, and takes no more than it may."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.support.server_bench import LISTENER, ServerBench, frame, run, until
from varve.broker.broker import Broker
from varve.broker.request import CloseConnection, RequestContext
from varve.foundation.errors import InvalidRequest
from varve.kafka_server import ServerSettings
from varve.kafka_server.metrics import FAILED_REQUESTS, REQUESTS
from varve.wire import ApiKey, ErrorCode, decode
from varve.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from varve.wire.messages.data import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from varve.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from varve.wire.messages.security import SaslHandshakeRequest


class Delayed:
    """A handler whose answers come when the test says so; it remembers what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[Any] = []
        self.futures: list[asyncio.Future[Any]] = []
        self._answer = answer

    def __call__(self, broker: Broker, context: RequestContext, request: Any) -> Any:
        future: asyncio.Future[Any] = broker.loop.create_future()
        self.asked.append(request)
        self.futures.append(future)
        return future

    def release(self, number: int) -> None:
        self.futures[number].set_result(self._answer)


def _produce(acks: int = -1, records: bytes = b"x") -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(records))
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData("t", partition_data=[data])])


def test_answers_keep_the_order_of_their_requests() -> None:
    slow = Delayed(ProduceResponse())

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.PRODUCE: slow}) as bench:
            client = await bench.connect()
            for number in range(5):
                await client.send(frame(_produce(), 9, number))
            await client.send(frame(ApiVersionsRequest("a", "1"), 3, 5))
            await until(lambda: len(slow.futures) == 5)
            for number in (4, 1, 0, 3, 2):
                slow.release(number)
            assert [await client.receive_id() for _ in range(6)] == [0, 1, 2, 3, 4, 5]

    run(scenario())


def test_nothing_is_begun_behind_a_long_poll() -> None:
    fetches, slow = Delayed(FetchResponse()), Delayed(ProduceResponse())

    async def scenario() -> None:
        handlers = {ApiKey.FETCH: fetches, ApiKey.PRODUCE: slow}
        async with ServerBench(handlers=handlers) as bench:
            client = await bench.connect()
            await client.send(frame(FetchRequest(), 12, 1) + frame(_produce(), 9, 2))
            await until(lambda: len(fetches.futures) == 1)
            other = await bench.connect()
            await other.ask(ApiVersionsRequest("a", "1"), 3)
            assert not slow.futures
            fetches.release(0)
            assert await client.receive_id() == 1
            await until(lambda: len(slow.futures) == 1)
            slow.release(0)
            assert await client.receive_id() == 2

    run(scenario())


def test_a_requests_bytes_stay_until_it_is_answered() -> None:
    slow = Delayed(ProduceResponse())
    texts = [bytes([65 + number]) * 40_000 for number in range(12)]

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.PRODUCE: slow}) as bench:
            client = await bench.connect()
            for number, text in enumerate(texts):
                await client.send(frame(_produce(records=text), 9, number))
            await until(lambda: len(slow.futures) == len(texts))
            found = [bytes(one.topic_data[0].partition_data[0].records) for one in slow.asked]
            assert found == texts
            for number in range(len(texts)):
                slow.release(number)
            assert [await client.receive_id() for _ in texts] == list(range(len(texts)))

    run(scenario())


def test_only_so_many_requests_of_a_connection_are_in_progress() -> None:
    slow = Delayed(ProduceResponse())
    settings = ServerSettings(listeners=(LISTENER,), connection_max_requests=3)

    async def scenario() -> None:
        async with ServerBench(settings, handlers={ApiKey.PRODUCE: slow}) as bench:
            client = await bench.connect()
            await client.send(b"".join(frame(_produce(), 9, number) for number in range(10)))
            await until(lambda: len(slow.futures) == 3)
            for number in range(10):
                await until(lambda number=number: len(slow.futures) > number)
                assert len(slow.futures) - number <= 3
                slow.release(number)
                assert await client.receive_id() == number

    run(scenario())


def test_a_produce_without_acks_has_no_answer() -> None:
    async def answer_none(broker: Broker, context: RequestContext, request: Any) -> None:
        return None

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.PRODUCE: answer_none}) as bench:
            client = await bench.connect()
            await client.send(frame(_produce(acks=0), 9, 1))
            await client.send(frame(ApiVersionsRequest("a", "1"), 3, 2))
            assert await client.receive_id() == 2
            assert bench.value(REQUESTS, "produce") == 1

    run(scenario())


@pytest.mark.parametrize("acks", [0, 1])
def test_a_failing_handler_becomes_an_error_or_the_end(acks: int) -> None:
    def fail(broker: Broker, context: RequestContext, request: Any) -> Any:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.PRODUCE: fail}) as bench:
            client = await bench.connect()
            if acks:
                answer = await client.ask(_produce(acks), 9)
                found = answer.responses[0].partition_responses[0].error_code
                assert found == ErrorCode.UNKNOWN_SERVER_ERROR
                await client.ask(ApiVersionsRequest("a", "1"), 3)
            else:
                await client.send(frame(_produce(acks), 9))
                assert await client.is_closed()
            assert bench.value(FAILED_REQUESTS, "produce") == 1

    run(scenario())


def test_a_mistake_of_the_client_is_told_and_no_failure() -> None:
    def refuse(broker: Broker, context: RequestContext, request: Any) -> Any:
        raise InvalidRequest("a cursor at partition -1")

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.PRODUCE: refuse}) as bench:
            client = await bench.connect()
            answer = await client.ask(_produce(1), 9)
            found = answer.responses[0].partition_responses[0].error_code
            assert found == ErrorCode.INVALID_REQUEST
            assert bench.value(FAILED_REQUESTS, "produce") == 0

    run(scenario())


@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_that_cannot_be_written_ends_the_connection(is_late: bool) -> None:
    broken = ProduceResponse(responses=None)  # type: ignore[arg-type]

    async def late() -> ProduceResponse:
        return broken

    def answer(broker: Broker, context: RequestContext, request: Any) -> Any:
        return late() if is_late else broken

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.PRODUCE: answer}) as bench:
            client = await bench.connect()
            await client.send(frame(_produce(), 9))
            assert await client.is_closed()
            assert bench.value(FAILED_REQUESTS, "produce") == 1

    run(scenario())


def test_a_handler_may_end_its_connection() -> None:
    async def end(broker: Broker, context: RequestContext, request: Any) -> Any:
        raise CloseConnection("nothing to say")

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.HEARTBEAT: end}) as bench:
            client = await bench.connect()
            await client.send(frame(HeartbeatRequest("g", 1, "m"), 4))
            assert await client.is_closed()
            assert bench.value(FAILED_REQUESTS, "heartbeat") == 0

    run(scenario())


def test_a_client_over_its_quota_is_not_read_from_for_a_while() -> None:
    def throttle(broker: Broker, context: RequestContext, request: Any) -> HeartbeatResponse:
        return HeartbeatResponse(throttle_time_ms=150)

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.HEARTBEAT: throttle}) as bench:
            client = await bench.connect()
            loop = asyncio.get_running_loop()
            await client.ask(HeartbeatRequest("g", 1, "m"), 4)
            began = loop.time()
            await client.ask(ApiVersionsRequest("a", "1"), 3)
            assert loop.time() - began > 0.1

    run(scenario())


def test_a_version_of_api_versions_that_nobody_knows_is_answered_with_the_list() -> None:
    async def scenario() -> None:
        async with ServerBench() as bench:
            client = await bench.connect()
            unknown = bytearray(frame(ApiVersionsRequest("a", "1"), 3, 9))
            unknown[6:8] = (99).to_bytes(2, "big")
            await client.send(bytes(unknown))
            answer = decode(ApiVersionsResponse, 0, await client.receive(), 4)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            assert told[ApiKey.PRODUCE][0] == 0
            assert {ApiKey.FETCH, ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS} <= set(told)
            await client.ask(ApiVersionsRequest("a", "1"), 3)

    run(scenario())


def test_sasl_where_nobody_asks_for_it_is_told_so() -> None:
    async def scenario() -> None:
        async with ServerBench() as bench:
            client = await bench.connect()
            answer = await client.ask(SaslHandshakeRequest("PLAIN"), 1)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            await client.ask(MetadataRequest(topics=None), 12)

    run(scenario())


def test_large_answers_arrive_whole_at_a_slow_reader() -> None:
    parts = [bytes([number]) * 3_000_000 for number in range(4)]

    def answer(broker: Broker, context: RequestContext, request: Any) -> FetchResponse:
        partitions = [
            PartitionData(partition_index=number, records=memoryview(part))
            for number, part in enumerate(parts)
        ]
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])

    async def scenario() -> None:
        async with ServerBench(handlers={ApiKey.FETCH: answer}) as bench:
            client = await bench.connect(receive_buffer=8192)
            for _ in range(2):
                found = await client.ask(FetchRequest(), 12)
                records = [bytes(one.records) for one in found.responses[0].partitions]
                assert records == parts
            assert bench.server.response_memory.used == 0

    run(scenario())


def _large_answer() -> FetchResponse:
    partition = PartitionData(partition_index=0, records=memoryview(bytes(8 << 20)))
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


def test_a_connection_that_ends_as_its_last_bytes_go_out_is_lost_once() -> None:
    slow = Delayed(_large_answer())

    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, one: told.append(one))
        async with ServerBench(handlers={ApiKey.FETCH: slow}) as bench:
            reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
            writer.write(frame(FetchRequest(), 4))
            await until(lambda: len(slow.futures) == 1)
            slow.release(0)
            stopping = asyncio.create_task(bench.stop())
            await reader.read()
            await stopping
            writer.close()
        assert told == []

    run(scenario())


def test_a_connection_that_is_cut_as_its_client_reads_on_is_lost_once() -> None:
    slow = Delayed(_large_answer())

    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, one: told.append(one))
        async with ServerBench(handlers={ApiKey.FETCH: slow}) as bench:
            client = await bench.connect(receive_buffer=1 << 14)
            await client.send(frame(FetchRequest(), 4))
            await until(lambda: len(slow.futures) == 1)
            [connection] = bench.server.registry.connections.values()
            slow.release(0)
            await until(lambda: connection.stalled_bytes > 0)
            connection.resume = lambda: connection.abort("slow_reader")  # type: ignore[method-assign]
            with contextlib.suppress(ConnectionError):
                await client.reader.read()
            await until(lambda: not bench.server.registry.connections)
        assert told == []

    run(scenario())
