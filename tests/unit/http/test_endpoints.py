"""What holds for all paths: limits, methods, errors, other pages."""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable
from random import Random
from typing import NoReturn

import openapi_spec_validator
import pytest

from tests.support.shape_http import ShapeHttp, run_with_server, until, with_server
from varve.foundation import errors
from varve.foundation.errors import Corrupt, StoreError, Unavailable
from varve.http.exchange import STATUSES, status_of, to_http_error
from varve.http.server import HttpServer
from varve.http.shapes.access import Access
from varve.http.shapes.headers import next_cursor
from varve.http.shapes.openapi import make_document


def _all_errors() -> list[type[StoreError]]:
    return [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, StoreError)
    ]


def test_every_error_has_a_status() -> None:
    for error in _all_errors():
        assert status_of(error) in (400, 404, 500, 503)
        assert to_http_error(error("told")).response().status == status_of(error)
        assert error.retriable == (status_of(error) == 503) or error in (
            errors.Closed,
            *[one for one in _all_errors() if issubclass(one, errors.Fenced)],
        )
    assert STATUSES[-1][0] is StoreError


def test_what_is_inside_is_told_to_nobody() -> None:
    assert b"secret" not in bytes(to_http_error(Corrupt("secret")).response().body)  # type: ignore[arg-type]


@with_server()
async def test_unexpected_errors_are_500_without_their_inside(http: ShapeHttp) -> None:
    def fail(definition: object) -> None:
        raise ValueError("inside")

    http.engine.find_by_definition = fail  # type: ignore[method-assign]
    answer = await http.get(offset="-1")
    assert answer.status_code == 500
    assert answer.json() == {"error": "Internal error"}
    assert answer.headers["cache-control"] == "no-store"


@with_server()
async def test_half_a_character_is_told_as_it_was_sent(http: ShapeHttp) -> None:
    await http.begin()
    asked = "/v1/shape?table=items"
    told = await http.client.post(asked, content=b'{"where": "\\ud800 =="}')
    assert told.status_code == 400
    assert "\ud800" in told.json()["errors"]["subset"]["where"][0]


def _block(called: threading.Event, end: threading.Event) -> Callable[..., NoReturn]:
    def block(*_: object) -> NoReturn:
        called.set()
        end.wait(30)
        raise Unavailable("at last")

    return block


@with_server(admin_threads=1, snapshot_threads=1, subset_threads=1)
async def test_who_waits_for_a_snapshot_being_written_holds_up_nobody_else(http: ShapeHttp) -> None:
    called, end = threading.Event(), threading.Event()
    shape, _ = await http.begin()
    shape.is_snapshot_complete = False
    shape.read = _block(called, end)  # type: ignore[method-assign]
    reading = asyncio.ensure_future(http.get(offset="0_0", handle=shape.handle))
    await until(called.is_set)
    for path in ("/v1/health", "/metrics", "/v1/shapes"):
        assert (await http.client.get(path)).status_code == 200
    assert (await http.get(offset="-1", where="id > 1")).status_code == 200
    asked = "/v1/shape?table=items"
    assert (await http.client.post(asked, json={"limit": 1, "order_by": "id"})).is_success
    end.set()
    assert (await reading).status_code == 503


@with_server(admin_threads=1)
async def test_a_call_that_takes_long_holds_up_no_reader_of_a_shape_that_is_there(
    http: ShapeHttp,
) -> None:
    called, end = threading.Event(), threading.Event()
    shape, _ = await http.begin(where="id > 1")
    http.engine.compact = _block(called, end)  # type: ignore[method-assign]
    asked = f"/v1/shapes/{shape.handle}/compact"
    compacting = asyncio.ensure_future(http.client.post(asked))
    await until(called.is_set)
    for path in ("/v1/health", "/metrics"):
        assert (await http.client.get(path)).status_code == 200
    known = await http.get(offset="-1", where="id>1")
    assert known.headers["electric-handle"] == shape.handle
    end.set()
    assert (await compacting).status_code == 503


@with_server(initial_requests_max=1)
async def test_too_many_requests_of_a_kind_are_503_and_make_nothing(http: ShapeHttp) -> None:
    http.engine.begins_at_once = False
    first = asyncio.ensure_future(http.get(offset="-1"))
    await until(lambda: http.api.limiter.counts["initial"] == 1)
    refused = await http.get(offset="-1", replica="full")
    assert refused.status_code == 503
    assert refused.json()["code"] == "concurrent_request_limit_exceeded"
    assert 5 <= int(refused.headers["retry-after"]) <= 10
    assert http.engine.made == 1
    shape = http.engine.by_handle["0001-handle"]
    shape.is_snapshot_started = True
    http.engine.tell([shape.handle])
    assert (await first).status_code == 200
    known = await http.get(offset="0_0", handle=shape.handle)
    assert known.status_code == 200


@with_server(long_poll_ms=50)
async def test_a_topic_that_cannot_be_read_is_told_to_who_waits(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.trouble = "the broker is away"
    health = await http.client.get("/v1/health")
    assert (health.status_code, health.json()) == (202, {"status": "waiting"})
    held = await http.get(offset="0_inf", handle=shape.handle, live="true")
    assert held.status_code == 503
    assert held.headers["retry-after"] == "10"
    assert held.json() == {"message": "topic items is not read: the broker is away"}
    assert (await http.get(offset="-1")).status_code == 200


_PAGE = "http://a.example"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": _PAGE}, 403),
        ({"origin": "null"}, 403),
        ({"origin": _PAGE, "sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, 200),
        ({"sec-fetch-mode": "cors"}, 200),
        ({"host": "shapes.example:81", "origin": "http://shapes.example:81"}, 200),
        ({"host": "shapes.example:81", "origin": "http://shapes.example:82"}, 403),
    ],
)
def test_without_a_token_pages_of_other_origins_are_refused(
    headers: dict[str, str], status: int
) -> None:
    async def scene(http: ShapeHttp) -> None:
        for method, path in (
            ("GET", "/v1/shape?table=items&offset=-1"),
            ("POST", "/v1/shape?table=items"),
            ("GET", "/metrics"),
        ):
            answer = await http.client.request(method, path, headers=headers)
            assert answer.status_code == status, answer.text
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["vary"] == "origin"
        assert http.engine.made == (status == 200)
        if status == 403:
            assert "shapes.http.allowed.origins" in answer.json()["message"]
            asked = await http.client.options("/v1/shape", headers=headers)
            assert asked.status_code == 403

    run_with_server(scene)


@pytest.mark.parametrize(
    ("access", "allowed", "is_allowed"),
    [
        (Access(), (_PAGE,), True),
        (Access(), ("*",), True),
        (Access(), ("http://b.example",), False),
        (Access(admin_token="adm"), (), False),
        (Access(token="t0k"), (), True),
    ],
)
def test_pages_of_allowed_origins_and_all_that_know_the_token_are_served(
    access: Access, allowed: tuple[str, ...], is_allowed: bool
) -> None:
    async def scene(http: ShapeHttp) -> None:
        answer = await http.client.get(
            "/v1/shape?table=items&offset=-1&secret=t0k", headers={"origin": _PAGE}
        )
        assert answer.is_success == is_allowed
        page = answer.headers.get("access-control-allow-origin")
        assert page == (_PAGE if is_allowed else None)
        plain = await http.get(offset="-1", secret="t0k")
        assert plain.is_success
        is_for_all = access.token is not None or "*" in allowed
        assert plain.headers.get("access-control-allow-origin") == ("*" if is_for_all else None)

    run_with_server(scene, access, allowed_origins=allowed)


@with_server()
async def test_slashes_that_a_base_address_adds_do_not_matter(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    for path in ("/v1/shape/", "//v1/shape", "/v1//shape//"):
        answer = await http.client.get(
            f"http://127.0.0.1:{http.server.port}{path}?table=items&offset=-1"
        )
        assert answer.headers["electric-handle"] == shape.handle
    for path in ("/v1/shapes/", f"/v1/shapes//{shape.handle}/", "//metrics", "//"):
        answer = await http.client.get(f"http://127.0.0.1:{http.server.port}{path}")
        assert answer.status_code == 200, path


@with_server(allowed_origins=("*",))
async def test_browsers_may_ask_from_elsewhere(http: ShapeHttp) -> None:
    asked = {
        "origin": "http://a.example",
        "access-control-request-headers": "X-A, If-None-Match",
    }
    answer = await http.client.options("/v1/shape", headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "http://a.example"
    assert answer.headers["access-control-allow-headers"] == "if-none-match"
    assert answer.headers["access-control-max-age"] == "86400"
    assert "DELETE" in answer.headers["access-control-allow-methods"]


@with_server()
async def test_other_paths_and_methods_are_told(http: ShapeHttp) -> None:
    assert (await http.client.get("/")).content == b""
    assert (await http.client.get("/nothing")).status_code == 404
    assert (await http.client.put("/v1/shape")).status_code == 405
    assert (await http.client.get("/openapi.json")).json() == make_document()
    figures = (await http.client.get("/metrics")).text
    assert 'varve_shapes_http_requests_total{endpoint="root",method="GET",status="200"}' in figures
    bad = await http.client.get("/v1/shape?table=%ff&offset=-1")
    assert bad.status_code == 400
    many = await http.client.get(f"/v1/shape?table=items&offset=-1{'&a=1' * 999}")
    assert many.json()["errors"] == {"query": ["there are more than 1000 parameters"]}
    missing = await http.client.get("/v1/shape?table=missing&offset=-1")
    assert missing.json()["errors"] == {"table": ["there is no topic 'missing'"]}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EADDRINUSE, "told by the loop"), "Address already in use"),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), "no such name"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
def test_an_address_that_cannot_be_bound_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    async def scene(http: ShapeHttp) -> None:
        monkeypatch.setattr(socket.socket, "bind", refuse)
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:0 for HTTP: {told};"):
            await HttpServer(http.api, host="127.0.0.1", port=0).start()

    run_with_server(scene)


@with_server()
async def test_a_server_that_ends_by_itself_is_not_waited_for(http: ShapeHttp) -> None:
    server = HttpServer(http.api, host="127.0.0.1", port=0)
    await server.start()
    waiting = asyncio.ensure_future(server.serve_until(asyncio.Event()))
    assert server._server is not None
    server._server.end()
    with pytest.raises(Unavailable, match="ended by itself"):
        await asyncio.wait_for(waiting, 5)


def test_h22_a_cursor_is_greater_than_that_of_the_request() -> None:
    now_ms = 1_728_432_000_000 + 50_000
    assert next_cursor(now_ms, 20_000, None, Random(7)) == 60
    assert next_cursor(now_ms, 20_000, "59", Random(7)) == 60
    assert next_cursor(now_ms, 20_000, "60", Random(7)) > 60
    assert next_cursor(now_ms, 20_000, "10000000", Random(7)) > 10_000_000
    assert next_cursor(now_ms, 20_000, "9" * 40, Random(7)) > int("9" * 40)
    assert next_cursor(now_ms, 20_000, "no number", Random(7)) == 60
    assert next_cursor(now_ms, 20_000, "9" * 10_000, Random(7)) == 60
    assert next_cursor(0, 20_000, None, Random(7)) > 0


def test_the_document_is_valid_openapi() -> None:
    openapi_spec_validator.validate(make_document())
