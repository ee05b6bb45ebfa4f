"""The door for monitoring answers a few paths, and is bounded in what it takes."""

import asyncio
import contextlib

import pytest

from varve.kafka_server.launch import HttpEndpoint, Page


async def _well() -> Page:
    return Page.of(True, {"ready": True})


async def _ill() -> Page:
    return Page.of(False, {"ready": False})


async def _large() -> Page:
    return Page(200, "x" * 3_000_000)


async def _broken() -> Page:
    raise RuntimeError("a bug")


PAGES = {"/ready": _well, "/ill": _ill, "/large": _large, "/broken": _broken}


async def _ask(port: int, data: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /ready HTTP/1.1", b"200 OK", b'{"ready": true}\n'),
        ("GET /ready?x=1 HTTP/1.0", b"200 OK", b'{"ready": true}\n'),
        ("HEAD /ready HTTP/1.1", b"200 OK", b""),
        ("GET /ill HTTP/1.1", b"503 Service Unavailable", b'{"ready": false}\n'),
        ("GET /broken HTTP/1.1", b"503 Service Unavailable", b"internal error"),
        ("GET /other HTTP/1.1", b"404 Not Found", b"known paths: /ready"),
        ("POST /ready HTTP/1.1", b"405 Method Not Allowed", b"only GET"),
        ("nonsense", b"400 Bad Request", b"not an HTTP request"),
    ],
)
async def test_pages(request_line: str, status: bytes, body: bytes) -> None:
    endpoint = HttpEndpoint(PAGES)
    port = await endpoint.start("127.0.0.1", 0)
    head, found = await _ask(port, f"{request_line}\r\nHost: x\r\n\r\n".encode())
    assert head.startswith(b"HTTP/1.1 " + status)
    assert found.startswith(body)
    await endpoint.stop()


async def test_a_large_page_arrives_whole_and_a_large_request_is_not_taken() -> None:
    endpoint = HttpEndpoint(PAGES)
    port = await endpoint.start("127.0.0.1", 0)
    _, body = await _ask(port, b"GET /large HTTP/1.1\r\n\r\n")
    assert len(body) == 3_000_000
    with contextlib.suppress(ConnectionError):
        assert await _ask(port, b"GET /" + b"x" * 100_000) == (b"", b"")
    await endpoint.stop()


@pytest.mark.parametrize("sent", [b"", b"GET /rea", b"GET /large HTTP/1.1\r\n\r\n"], ids=len)
async def test_clients_that_stop_sending_or_reading_keep_nobody_out(sent: bytes) -> None:
    endpoint = HttpEndpoint(PAGES)
    port = await endpoint.start("127.0.0.1", 0)
    idle = []
    for _ in range(100):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(sent)
        idle.append(writer)
    for _ in range(3):
        head, _ = await asyncio.wait_for(_ask(port, b"GET /ready HTTP/1.1\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200")
    for writer in idle:
        writer.transport.abort()
    await endpoint.stop()
