"""A connection and its bytes: order, bodies, versions, and clients that do not go on."""

import asyncio
import contextlib
import json
import socket

import httpx
import pytest

from tests.support.shape_http import ShapeHttp, run_with_server, until, with_server
from varve.foundation.errors import Corrupt
from varve.http.server import HttpServer
from varve.http.shapes.openapi import make_document


@with_server()
async def test_requests_sent_at_once_are_answered_in_their_order(http: ShapeHttp) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
    for path in (b"/v1/health", b"/nothing", b"/"):
        writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path)
    writer.write(b"HEAD /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answers = await asyncio.wait_for(reader.read(), 5)
    found = [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert found == [b"200", b"404", b"200", b"200"]
    assert answers.endswith(b"\r\n\r\n")
    writer.close()


def test_http_1_0_gets_whole_answers_and_no_events() -> None:
    async def ask(http: ShapeHttp, query: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
        writer.write(b"GET /v1/shape?table=items&%s HTTP/1.0\r\n\r\n" % query)
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        writer.close()
        return head.lower(), body

    async def scene(http: ShapeHttp) -> None:
        http.engine.chunks = [[b'"%s"' % (b"x" * 300_000)] * 3]
        shape, _ = await http.begin()
        head, body = await ask(http, b"offset=-1")
        assert b"transfer-encoding" not in head
        assert json.loads(body) == ["x" * 300_000] * 3
        events = b"offset=0_0&live=true&live_sse=true&handle=" + shape.handle.encode()
        head, body = await ask(http, events)
        assert b" 505 " in head
        assert "505" in make_document()["paths"]["/v1/shape"]["get"]["responses"]
        assert b"\r\naccess-control-allow-origin: *" in head
        assert "HTTP/1.1" in json.loads(body)["message"]
        figures = (await http.client.get("/metrics")).text
        assert 'endpoint="shape",method="GET",status="505"} 1.0' in figures

    run_with_server(scene, allowed_origins=("*",))


@with_server(connections_max=2)
async def test_connections_over_the_limit_are_closed(http: ShapeHttp) -> None:
    async def ask() -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
            return await asyncio.wait_for(reader.read(12), 5), writer
        return b"", writer

    asked = [await ask() for _ in range(3)]
    assert [answer for answer, _ in asked] == [b"HTTP/1.1 200", b"HTTP/1.1 200", b""]
    for _, writer in asked:
        writer.close()


@with_server()
async def test_a_body_that_is_not_sent_is_not_counted(http: ShapeHttp) -> None:
    assert (await http.client.head("/openapi.json")).status_code == 200
    figures = (await http.client.get("/metrics")).text
    assert 'varve_shapes_http_sent_bytes_total{endpoint="openapi"} 0.0' in figures


@with_server()
async def test_a_body_may_be_waited_for(http: ShapeHttp) -> None:
    await http.begin()
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
    writer.write(
        b"POST /v1/shape?table=items HTTP/1.1\r\nhost: x\r\n"
        b"content-length: 2\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    )
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 100 ")
    writer.write(b"{}")
    answer = await asyncio.wait_for(reader.read(), 5)
    assert b"HTTP/1.1 200" in answer
    writer.close()


@with_server(idle_ms=200)
async def test_a_body_that_comes_drop_by_drop_is_not_waited_for(http: ShapeHttp) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
    writer.write(b"POST /v1/shape?table=items HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n")
    answer = asyncio.ensure_future(reader.readline())
    for _ in range(100):
        if answer.done():
            break
        writer.write(b" ")
        await asyncio.sleep(0.05)
    assert answer.done()
    assert (await answer)[9:12] == b"408"
    writer.close()


@with_server(idle_ms=100)
async def test_a_body_that_goes_on_after_the_answer_holds_no_connection(http: ShapeHttp) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.write(b"x")
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


@with_server(head_bytes_max=4096, idle_ms=100)
async def test_a_head_without_end_and_an_idle_connection_are_ended(http: ShapeHttp) -> None:
    for sent, told in ((b"GET / HTTP/1.1\r\nx: ", b"431"), (b"", b"")):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
        writer.write(sent + b"y" * (5000 if sent else 0))
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer[9:12] == told
        writer.close()


@with_server()
async def test_what_is_no_request_is_told_so_that_pages_can_read_it(http: ShapeHttp) -> None:
    long = b"GET /v1/shape?where=" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    plain = b"GET /v1/shape?where=\xc3\xab HTTP/1.1\r\nhost: x\r\n\r\n"
    for sent, status in (
        (b"\x16\x03\x01 is no HTTP", b"400"),
        (plain, b"400"),
        (long, b"414"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer[9:12] == status
        assert (b"%XX" in answer) == (status == b"400")
        assert b"\r\ncache-control: no-store\r\n" in answer
        assert b"\r\naccess-control-allow-origin: *\r\n" in answer
        writer.close()
    told = (await http.client.get("/metrics")).text
    for kind, count in (("bytes", 2), ("address", 1)):
        assert f'varve_shapes_http_malformed_total{{kind="{kind}"}} {count}.0' in told


@pytest.mark.parametrize(
    ("asked", "pieces", "count"),
    [
        (b"GET /v1/shape?table=items&offset=-1", 200, 1),
        (b"POST /v1/shape?table=items", 1, 1),
        (b"GET /v1/shape?table=items&offset=-1", 1, 500),
    ],
    ids=["in pieces", "whole", "of many requests at once"],
)
@with_server(idle_ms=200)
async def test_a_client_that_does_not_read_is_cut_off(
    http: ShapeHttp, asked: bytes, pieces: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    http.engine.chunks = [[b'"%s"' % (b"x" * 100_000)] * pieces]
    http.engine.rows = [b'"%s"' % (b"x" * 40_000_000)]
    await http.begin()
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port, limit=1024)
    head = asked + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
    writer.write((head + b"{}") * count)
    await until(lambda: "response broken off" in caplog.text)
    await until(lambda: not any(http.api.limiter.counts.values()))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(19_000_000)
    writer.close()


@with_server(initial_requests_max=1)
async def test_newcomers_wait_for_nobody_who_reads_slowly(http: ShapeHttp) -> None:
    http.engine.chunks = [[b'"%s"' % (b"x" * 100_000)] * 200]
    await http.begin()
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port, limit=1024)
    writer.write(b"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await reader.readexactly(12) == b"HTTP/1.1 200"
    assert http.api.limiter.counts == {"initial": 0, "existing": 1}
    other = await http.client.head("/v1/shape?table=others&offset=-1")
    assert other.status_code == 200
    writer.close()


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n"])
def test_an_answer_of_which_the_end_is_not_read_holds_no_connection(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies with the server where the system takes no more of it."""
    listen = HttpServer._listen

    def listen_for_little(server: HttpServer) -> socket.socket:
        listening = listen(server)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return listening

    monkeypatch.setattr(HttpServer, "_listen", listen_for_little)

    async def scene(http: ShapeHttp) -> None:
        http.engine.chunks = [[b'"%s"' % (b"x" * 60_000)]]
        await http.begin()
        await http.client.aclose()
        connections = http.server._server.server_state.connections  # type: ignore[union-attr]
        await until(lambda: not connections)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.connect(("127.0.0.1", http.server.port))
            client.sendall(
                b"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n"
            )
            await until(lambda: len(connections) == 1)
            await until(lambda: not connections)

    run_with_server(scene, idle_ms=1000)


@with_server()
async def test_a_client_that_left_is_noticed_with_a_request_behind_the_running_one(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    _, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
    events = b"offset=0_inf&live=true&live_sse=true&handle=" + shape.handle.encode()
    writer.write(b"GET /v1/shape?table=items&%s HTTP/1.1\r\nhost: x\r\n\r\n" % events)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: http.api.waiters.count == 1)
    writer.close()
    await until(lambda: http.api.waiters.count == 0)


@with_server()
async def test_a_read_that_fails_in_the_middle_breaks_the_body(http: ShapeHttp) -> None:
    http.engine.chunks = [[b'"%s"' % (b"x" * 300_000)] * 5]
    shape, _ = await http.begin()

    def torn(start: object, end: object):  # type: ignore[no-untyped-def]
        yield b'"%s"' % (b"x" * 300_000)
        raise Corrupt("torn")

    shape.read = torn  # type: ignore[method-assign]
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get(offset="-1")
