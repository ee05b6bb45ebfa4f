"""The server listens where it is told, tells clients so, and stops in order."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from tests.support.server_bench import (
    HELLO,
    LISTENER,
    Delayed,
    ServerBench,
    connected,
    frame,
    until,
)
from varve.broker.broker import Broker
from varve.broker.request import RequestContext
from varve.foundation.errors import InvalidSetting, Unavailable
from varve.foundation.metrics import exposition
from varve.kafka_server import ServerSettings
from varve.wire import ApiKey
from varve.wire.messages.cluster import MetadataRequest
from varve.wire.messages.data import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse


async def test_clients_are_told_the_port_that_is_listened_on() -> None:
    async with connected() as (bench, client):
        answer = await client.ask(MetadataRequest(topics=[]), 12)
        assert [(one.host, one.port) for one in answer.brokers] == [("127.0.0.1", bench.port)]


async def test_clients_are_told_what_is_advertised_for_their_listener() -> None:
    settings = ServerSettings(
        listeners=("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.1:0"),
        advertised_listeners=("OUTSIDE://broker.example:19092",),
        listener_security_protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT"),
    )
    async with ServerBench(settings) as bench:
        endpoints = bench.broker.endpoints
        assert endpoints["OUTSIDE"].host == "broker.example"
        assert endpoints["OUTSIDE"].port == 19092
        client = await bench.connect()
        answer = await client.ask(MetadataRequest(topics=[]), 12)
        assert (answer.brokers[0].host, answer.brokers[0].port) == ("127.0.0.1", bench.port)


async def test_a_port_that_is_taken_is_told_with_its_listener() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        bench = ServerBench(ServerSettings(listeners=(address,)))
        with pytest.raises(Unavailable, match=f"cannot listen on {address}"):
            await bench.__aenter__()
        await bench.broker.stop()
        bench.store.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listeners": ("localhost:9092",)}, "write NAME://host:port"),
        ({"listeners": ("PLAINTEXT://h:70000",)}, "port 70000 is not 1 to 65535"),
        ({"listeners": ("OTHER://h:1",)}, "whose protocol is not set"),
        ({"listeners": ("PLAINTEXT://a:1", "plaintext://b:2")}, "two listeners named PLAINTEXT"),
        ({"listeners": ()}, "listeners is empty"),
        ({"advertised_listeners": ("SSL://h:1",)}, "not among listeners"),
        ({"advertised_listeners": ("PLAINTEXT://0.0.0.0:1",)}, "name or address of one host"),
        ({"listener_security_protocol_map": ("A:B",)}, "write NAME:PROTOCOL"),
    ],
)
def test_listeners_that_cannot_be_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        ServerSettings(**given)


def test_listeners_of_every_kind_are_read() -> None:
    settings = ServerSettings(
        listeners=("PLAINTEXT://:9092", "SSL://[::1]:9093", "SASL_SSL://host.example:9094")
    )
    found = settings.parsed_listeners()
    assert [(one.host, one.port) for one in found] == [
        ("", 9092),
        ("::1", 9093),
        ("host.example", 9094),
    ]
    assert [str(one) for one in found][1] == "SSL://[::1]:9093"
    assert found[2].protocol.has_sasl
    assert found[0].is_everywhere


async def test_a_listener_with_tls_needs_a_certificate() -> None:
    bench = ServerBench(ServerSettings(listeners=("SSL://127.0.0.1:0",)))
    with pytest.raises(InvalidSetting, match="needs a certificate"):
        await bench.__aenter__()
    await bench.broker.stop()
    bench.store.close()


async def test_a_stop_answers_what_is_in_progress_and_takes_nobody_in() -> None:
    parked = Delayed(ProduceResponse())
    async with connected(handlers={ApiKey.PRODUCE: parked}) as (bench, client):
        await client.send(frame(ProduceRequest(acks=1), 9, 1))
        await parked.wait_asked()
        stopping = asyncio.ensure_future(bench.stop())
        await until(lambda: not bench.server._sockets)
        assert not bench.server.is_ready
        with pytest.raises(ConnectionError):
            await bench.connect()
        await client.send(frame(ProduceRequest(acks=1), 9, 2))
        assert not stopping.done()
        parked.release()
        assert await client.receive_id() == 1
        assert await client.is_closed()
        await stopping
        assert len(parked.asked) == 1


async def test_a_stop_does_not_wait_for_long_polls() -> None:
    parked = Delayed(FetchResponse())
    settings = ServerSettings(listeners=(LISTENER,), shutdown_timeout_ms=600_000)
    async with connected(settings, handlers={ApiKey.FETCH: parked}) as (bench, client):
        await client.send(frame(FetchRequest(), 12))
        await parked.wait_asked()
        async with asyncio.timeout(60):
            await bench.stop()
        assert await client.is_closed()
        parked.release()


async def test_a_stop_waits_for_what_a_client_asked_for_that_has_left() -> None:
    began, ended = asyncio.Event(), []

    async def slow(broker: Broker, context: RequestContext, request: Any) -> ProduceResponse:
        began.set()
        await asyncio.sleep(0.1)
        ended.append(True)
        return ProduceResponse()

    async with connected(handlers={ApiKey.PRODUCE: slow}) as (bench, client):
        await client.send(frame(ProduceRequest(acks=1), 9))
        await began.wait()
        client.close()
        await until(lambda: bench.server.connection_count == 0)
        await bench.stop()
        assert ended == [True]


async def test_a_stop_gives_up_after_its_time() -> None:
    parked = Delayed(ProduceResponse())
    settings = ServerSettings(listeners=(LISTENER,), shutdown_timeout_ms=100)
    async with connected(settings, handlers={ApiKey.PRODUCE: parked}) as (bench, client):
        await client.send(frame(ProduceRequest(acks=1), 9))
        await parked.wait_asked()
        await bench.stop()
        assert await client.is_closed()


async def test_requests_are_counted_by_api() -> None:
    async with connected() as (bench, client):
        for _ in range(3):
            await client.ask(HELLO, 3)
        text = exposition(bench.server.metrics)
        assert 'varve_server_requests_total{api="api_versions"} 3.0' in text
        assert "varve_server_connections 1.0" in text


async def test_a_broker_learns_that_a_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ServerBench() as bench:
        ended: list[Any] = []
        monkeypatch.setattr(bench.broker.parked_fetches, "connection_closed", ended.append)
        client = await bench.connect()
        await client.ask(HELLO, 3)
        client.close()
        await until(lambda: len(ended) == 1)
        assert ended[0].is_closed


async def test_a_connection_in_the_moment_of_the_stop_is_no_error() -> None:
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    with socket.socket() as client:
        async with ServerBench() as bench:
            await (await bench.connect()).ask(HELLO, 3)
            client.connect(("127.0.0.1", bench.port))
            # The next turn of the loop begins with what follows and then accepts the connection.
            await asyncio.sleep(0)
        client.setblocking(False)
        with contextlib.suppress(ConnectionError):
            assert await loop.sock_recv(client, 1) == b""
    assert errors == []
