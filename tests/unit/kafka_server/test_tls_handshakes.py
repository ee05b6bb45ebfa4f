"""Handshakes that fail at a server that runs: each ends its own client and nothing else."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.support.certificates import Authority, Signed
from tests.support.server_bench import HELLO, ServerBench, frame, until
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.metrics import CLOSED_CONNECTIONS
from varve.kafka_server.settings import ServerSettings, TlsSettings

AUTHORITY = Authority()
ALICE = AUTHORITY.sign("alice")
PATIENCE_MS = 300


def _bench(server: Signed | None = None, *, rules: str = "DEFAULT") -> ServerBench:
    """Wants certificates of its clients; `server` is its own."""
    server = server or AUTHORITY.sign("server")
    settings = ServerSettings(
        listeners=("SSL://127.0.0.1:0",), request_receive_timeout_ms=PATIENCE_MS
    )
    tls = TlsSettings(
        keystore_certificate_chain=server.certificate_pem,
        keystore_key=server.key_pem(),
        truststore_certificates=AUTHORITY.pem,
        client_auth="required",
        principal_mapping_rules=rules,
    )
    return ServerBench(
        settings, securities=ListenerSecurities(settings.parsed_listeners(), tls=tls)
    )


async def _ask(port: int, who: Signed, folder: Path) -> bytes:
    """The answer to a request, as far as it came; raises what the handshake did."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.load_cert_chain(who.write(folder / "client.pem"))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        writer.write(frame(HELLO, 3))
        return await reader.read(8)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _check_serves_others(bench: ServerBench, folder: Path) -> None:
    assert len(await _ask(bench.port, ALICE, folder)) == 8
    await until(lambda: bench.server.registry.admitted_count == 0)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (AUTHORITY.sign("server", is_expired=True), "expired"),
        (AUTHORITY.sign("server", host="elsewhere.example"), "Hostname mismatch"),
        (Authority("other").sign("server"), "self-signed|unable to get local issuer"),
    ],
)
async def test_a_client_that_does_not_trust_the_server_leaves_alone(
    tmp_path: Path, server: Signed, told: str
) -> None:
    async with _bench(server) as bench:
        with pytest.raises(ssl.SSLCertVerificationError, match=told):
            await _ask(bench.port, ALICE, tmp_path)
        await until(lambda: bench.server.registry.admitted_count == 0)
        assert bench.server.is_ready


@pytest.mark.parametrize(
    "make",
    [
        lambda: AUTHORITY.sign("alice", is_expired=True),
        lambda: Authority("other").sign("alice"),
    ],
    ids=["expired", "stranger"],
)
async def test_a_certificate_that_does_not_count_is_not_served(
    tmp_path: Path, make: Callable[[], Signed]
) -> None:
    async with _bench() as bench:
        answer = b""
        # By TLS 1.3 the client believes itself inside until it reads.
        with contextlib.suppress(OSError):
            answer = await _ask(bench.port, make(), tmp_path)
        assert answer == b""
        await _check_serves_others(bench, tmp_path)


@pytest.mark.parametrize(
    "sent",
    [frame(HELLO, 3), b"GET / HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\x02"],
    ids=["plaintext", "http", "silence", "half a hello"],
)
async def test_what_is_no_handshake_or_does_not_end_is_cut(tmp_path: Path, sent: bytes) -> None:
    async with _bench() as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until(lambda: bench.value(CLOSED_CONNECTIONS, "handshake") == 1)
        writer.close()
        await _check_serves_others(bench, tmp_path)


class RawTlsClient:
    """A client in memory that sees each TLS record which the server sends."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    async def fail(self, port: int) -> str:
        """Shakes hands and asks; returns OpenSSL's name of the alert that it is answered with."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            while True:
                try:
                    self._tls.do_handshake()
                    self._tls.write(frame(HELLO, 3))
                    self._tls.read(8)
                except ssl.SSLWantReadError:
                    writer.write(self._outgoing.read())
                    self._incoming.write(await reader.read(1 << 16) or b"")
                    assert not reader.at_eof(), "closed without an alert"
                except ssl.SSLError as error:
                    return str(error.reason)


def _client_context(who: Signed | None, folder: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.minimum_version = context.maximum_version = version
    if who is not None:
        context.load_cert_chain(who.write(folder / "client.pem"))
    return context


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("who", "alerts"),
    [
        (None, {"SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"}),
        (AUTHORITY.sign("alice", is_expired=True), {"SSLV3_ALERT_CERTIFICATE_EXPIRED"}),
        (Authority("other").sign("alice"), {"TLSV1_ALERT_UNKNOWN_CA"}),
    ],
    ids=["none", "expired", "stranger"],
)
def test_a_client_that_is_refused_learns_why_at_once(
    tmp_path: Path,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    version: ssl.TLSVersion,
    who: Signed | None,
    alerts: set[str],
) -> None:
    async def scenario() -> None:
        async with _bench() as bench:
            client = RawTlsClient(_client_context(who, tmp_path, version))
            assert await client.fail(bench.port) in alerts
            await until(lambda: bench.server.registry.admitted_count == 0)
            assert bench.value(CLOSED_CONNECTIONS, "handshake") == 1

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


async def test_a_certificate_that_no_rule_maps_to_a_user_is_not_served(tmp_path: Path) -> None:
    async with _bench(rules="RULE:.*CN=bob.*/bob/") as bench:
        answer = b""
        with contextlib.suppress(OSError):
            answer = await _ask(bench.port, ALICE, tmp_path)
        assert answer == b""
        assert bench.value(CLOSED_CONNECTIONS, "authentication") == 1
        assert len(await _ask(bench.port, AUTHORITY.sign("bob"), tmp_path)) == 8
