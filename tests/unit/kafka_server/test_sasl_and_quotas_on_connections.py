"""Over a socket: who is refused is not told to be let in, and who uses too much waits."""

import asyncio
from struct import Struct

import pytest

from tests.support.server_bench import ServerBench, frame
from varve.broker.security.quotas import EntityType, QuotaEntity, QuotaKind
from varve.kafka_server import ServerSettings
from varve.kafka_server.authentication import ListenerSecurities
from varve.wire.messages.cluster import MetadataRequest
from varve.wire.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData
from varve.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonderland";'
LENGTH = Struct(">i")
DELAY_MS = 50
WAIT_MS = 400


def _bench(*, session_ms: int = 0) -> ServerBench:
    settings = ServerSettings(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0",),
        connection_failed_authentication_delay_ms=DELAY_MS,
    )
    overrides = {
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.connections.max.reauth.ms": str(session_ms),
    }
    guards = ListenerSecurities(settings.parsed_listeners(), overrides=overrides)
    return ServerBench(settings, securities=guards)


def _bare(token: bytes) -> bytes:
    return LENGTH.pack(len(token)) + token


async def test_an_old_client_logs_in_without_headers() -> None:
    async with _bench() as bench:
        client = await bench.connect()
        assert (await client.ask(SaslHandshakeRequest("PLAIN"), 0)).error_code == 0
        await client.send(_bare(b"\0alice\0wonderland"))
        assert await client.receive() == b""
        assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers


async def test_an_old_client_with_a_wrong_password_gets_no_answer() -> None:
    async with _bench() as bench:
        client = await bench.connect()
        await client.ask(SaslHandshakeRequest("PLAIN"), 0)
        await client.send(_bare(b"\0alice\0wrong"))
        assert await client.is_closed()


async def test_a_refusal_comes_late_and_nothing_is_served_meanwhile() -> None:
    async with _bench() as bench:
        loop = asyncio.get_running_loop()
        client = await bench.connect()
        await client.ask(SaslHandshakeRequest("PLAIN"), 1)
        began = loop.time()
        await client.send(
            frame(SaslAuthenticateRequest(b"\0alice\0wrong"), 2, 3)
            + frame(MetadataRequest(topics=[]), 1, 4)
        )
        assert await client.receive_id() == 3
        assert loop.time() - began >= DELAY_MS / 1_000 * 0.9
        assert await client.is_closed()


async def test_nothing_is_served_before_a_client_has_logged_in() -> None:
    async with _bench() as bench:
        client = await bench.connect()
        await client.send(frame(MetadataRequest(topics=[]), 1))
        assert await client.is_closed()


async def test_a_client_that_does_not_log_in_again_in_time_is_closed() -> None:
    async with _bench(session_ms=1) as bench:
        client = await bench.connect()
        await client.ask(SaslHandshakeRequest("PLAIN"), 1)
        answer = await client.ask(SaslAuthenticateRequest(b"\0alice\0wonderland"), 2)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 1)
        await asyncio.sleep(0.01)
        await client.send(frame(MetadataRequest(topics=[]), 1))
        assert await client.is_closed()


async def test_who_uses_too_much_is_told_and_not_served_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_ms = iter([WAIT_MS, 0])
    async with ServerBench() as bench:
        entity = QuotaEntity.from_names([(EntityType.CLIENT_ID, "raw")])
        bench.broker.quotas.table.alter([(entity, {QuotaKind.REQUEST: 1.0})])
        monkeypatch.setattr(bench.broker.quotas, "charge_request", lambda *_, **__: next(waits_ms))
        loop = asyncio.get_running_loop()
        client = await bench.connect()
        began = loop.time()
        assert (await client.ask(MetadataRequest(topics=[]), 3)).throttle_time_ms == WAIT_MS
        assert loop.time() - began < WAIT_MS / 1_000
        assert (await client.ask(MetadataRequest(topics=[]), 3)).throttle_time_ms == 0
        assert loop.time() - began >= WAIT_MS / 1_000 * 0.9


async def test_what_is_produced_counts_by_its_bytes() -> None:
    async with ServerBench() as bench:
        entity = QuotaEntity.from_names([(EntityType.CLIENT_ID, "raw")])
        bench.broker.quotas.table.alter([(entity, {QuotaKind.PRODUCE: 1_000_000.0})])
        client = await bench.connect()
        topic = TopicProduceData(
            name="none",
            partition_data=[PartitionProduceData(index=0, records=memoryview(bytes(11_000_000)))],
        )
        answer = await client.ask(ProduceRequest(acks=1, topic_data=[topic]), 9)
        assert 900 <= answer.throttle_time_ms <= 1_200
