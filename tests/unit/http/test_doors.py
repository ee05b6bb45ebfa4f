"""What holds for all paths: tokens, limits, methods, errors, other pages."""

import asyncio
import contextlib
import errno
import json
import socket
from pathlib import Path

import httpx
import openapi_spec_validator
import pytest

from tests.support.fake_shapes import message
from tests.support.shape_door import Stage, play, until
from varve.foundation import errors
from varve.foundation.errors import Corrupt, InvalidRequest, InvalidSetting, StoreError, Unavailable
from varve.http.access import Access, read_shapes
from varve.http.answer import STATUSES, refusal_of, status_of
from varve.http.headers import next_cursor
from varve.http.openapi import make_document
from varve.http.server import HttpServer
from varve.shapes.definition import define


def _all_errors() -> list[type[StoreError]]:
    return [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, StoreError)
    ]


def test_every_error_has_a_status() -> None:
    for error in _all_errors():
        assert status_of(error) in (400, 404, 500, 503)
        assert refusal_of(error("told")).answer().status == status_of(error)
        assert error.retriable == (status_of(error) == 503) or error in (
            errors.Closed,
            *[one for one in _all_errors() if issubclass(one, errors.Fenced)],
        )
    assert STATUSES[-1][0] is StoreError


def test_what_is_inside_is_told_to_nobody() -> None:
    assert b"secret" not in bytes(refusal_of(Corrupt("secret")).answer().body)  # type: ignore[arg-type]


def test_unexpected_errors_are_500_without_their_inside() -> None:
    async def scene(stage: Stage) -> None:
        def fail(definition: object) -> None:
            raise ValueError("inside")

        stage.engine.find_by_definition = fail  # type: ignore[method-assign]
        answer = await stage.get(offset="-1")
        assert answer.status_code == 500
        assert answer.json() == {"error": "Internal error"}
        assert answer.headers["cache-control"] == "no-store"

    play(scene)


def test_a_token_is_asked_for_on_every_method_but_options() -> None:
    async def scene(stage: Stage) -> None:
        url = "/v1/shape?table=items&offset=-1"
        for method in ("GET", "HEAD", "POST", "DELETE"):
            answer = await stage.client.request(method, url)
            assert answer.status_code == 401, method
        assert (await stage.client.options(url)).status_code == 204
        wrong = await stage.client.get(url, headers={"authorization": "Bearer nope"})
        assert wrong.status_code == 401
        assert "message" in wrong.json()
        right = {"authorization": "Bearer t0k"}
        assert (await stage.client.get(url, headers=right)).status_code == 200
        for name in ("secret", "api_secret"):
            assert (await stage.client.get(f"{url}&{name}=t0k")).status_code == 200
        assert (await stage.client.get(f"{url}&secret=adm")).status_code == 200
        assert (await stage.client.get("/v1/shapes", headers=right)).status_code == 401
        admin = {"authorization": "bearer adm"}
        assert (await stage.client.get("/v1/shapes", headers=admin)).status_code == 200
        assert (await stage.client.delete(url, headers=right)).status_code == 401
        assert (await stage.client.delete(url, headers=admin)).status_code == 202
        assert (await stage.client.get("/v1/health")).status_code == 200

    play(scene, Access(token="t0k", admin_token="adm"))


def test_what_a_token_opened_is_not_for_who_comes_without_it() -> None:
    """A shared cache keeps apart what the header of the token differs for."""

    async def scene(stage: Stage) -> None:
        asked = "/v1/shape?table=t&offset=-1"
        token = {"authorization": "Bearer t0k"}
        answer = await stage.client.get(asked, headers=token)
        assert answer.status_code == 200
        assert answer.headers["vary"] == "authorization"
        answer = await stage.client.get(asked, headers={**token, "origin": "http://a"})
        assert answer.headers["vary"] == "origin, authorization"
        answer = await stage.client.get(f"{asked}&secret=t0k")
        assert answer.status_code == 200
        assert "vary" not in answer.headers

    play(scene, access=Access(token="t0k"))


def test_with_an_allow_list_nothing_else_is_served() -> None:
    async def scene(stage: Stage) -> None:
        named = await stage.client.get("/v1/shape?shape=mine&offset=-1")
        by_texts = await stage.get(offset="-1", replica="full")
        assert named.headers["electric-handle"] == by_texts.headers["electric-handle"]
        assert (await stage.get(offset="-1")).status_code == 403
        assert (await stage.get(offset="-1", shape="mine")).status_code == 400
        unknown = await stage.client.get("/v1/shape?shape=other&offset=-1")
        assert unknown.json()["errors"].keys() == {"shape"}
        assert stage.engine.made == 1

    play(scene, Access(shapes={"mine": define("items", replica="full")}))


def test_with_an_allow_list_a_subset_tells_nothing_of_other_columns() -> None:
    async def scene(stage: Stage) -> None:
        url = "/v1/shape?shape=mine&subset__where="
        assert (await stage.client.get(f"{url}a = 1")).status_code == 200
        refused = await stage.client.get(f"{url}salary > 1000")
        assert refused.status_code == 400
        assert "salary" in refused.text
        narrower = await stage.client.get(f"{url}a = 1&queryable_columns=id,salary")
        assert narrower.status_code == 400

    play(scene, Access(shapes={"mine": define("items", columns="id,a")}))


@pytest.mark.parametrize("name", ["shapes.json", "shapes.toml"])
def test_an_allow_list_is_read_from_json_or_toml(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("json"):
        told = {"shapes": {"a": {"table": "items", "columns": ["id", "b"], "replica": "full"}}}
        path.write_text(json.dumps(told))
    else:
        path.write_text('[shapes.a]\ntable = "items"\ncolumns = ["id", "b"]\nreplica = "full"\n')
    assert read_shapes(path) == {"a": define("items", columns="id,b", replica="full")}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"shapes":{"a":{}}}',
        '{"shapes":{"a":{"table":"t","x":1}}}',
        '{"shapes":{"a":{"table":"t","where":1}}}',
        '{"shapes":{"a":{"table":"t","where":"a = $1","params":{"1":"x"}}}}',
        '{"shapes":{"a":{"table":"t","columns":1}}}',
        '{"shapes":{"a":{"table":"t","replica":"half"}}}',
    ],
)
def test_a_list_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(InvalidSetting, match=r"shapes\.json"):
        read_shapes(path)


def test_too_many_requests_of_a_kind_are_503_and_make_nothing() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.begins_at_once = False
        first = asyncio.ensure_future(stage.get(offset="-1"))
        await until(lambda: stage.services.gate.counts["initial"] == 1)
        refused = await stage.get(offset="-1", replica="full")
        assert refused.status_code == 503
        assert refused.json()["code"] == "concurrent_request_limit_exceeded"
        assert 5 <= int(refused.headers["retry-after"]) <= 10
        assert stage.engine.made == 1
        shape = stage.engine.by_handle["0001-handle"]
        shape.is_snapshot_started = True
        stage.engine.tell([shape.handle])
        assert (await first).status_code == 200
        known = await stage.get(offset="0_0", handle=shape.handle)
        assert known.status_code == 200

    play(scene, initial_requests_max=1)


def test_a_topic_that_cannot_be_read_is_told_to_who_waits() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        stage.engine.trouble = "the broker is away"
        health = await stage.client.get("/v1/health")
        assert (health.status_code, health.json()) == (202, {"status": "waiting"})
        held = await stage.get(offset="0_inf", handle=shape.handle, live="true")
        assert held.status_code == 503
        assert held.headers["retry-after"] == "10"
        assert held.json() == {"message": "topic items is not read: the broker is away"}
        assert (await stage.get(offset="-1")).status_code == 200

    play(scene, long_poll_ms=50)


def test_a_shape_is_deleted_by_handle_or_definition_and_not_when_they_differ() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        other, _ = await stage.begin(replica="full")
        delete = stage.client.delete
        assert (await delete("/v1/shape")).status_code == 400
        assert (await delete("/v1/shape?handle=nobody")).status_code == 404
        wrong = await delete(f"/v1/shape?table=items&handle={other.handle}")
        assert wrong.status_code == 400
        gone = await delete(f"/v1/shape?handle={shape.handle}")
        assert (gone.status_code, gone.content) == (202, b"")
        assert (await delete("/v1/shape?table=items&replica=full")).status_code == 202
        assert (shape.is_dropped, other.is_dropped) == (True, True)
        assert (await delete("/v1/shape?table=items")).status_code == 404

    play(scene)


def test_where_deleting_is_off_it_is_405() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        answer = await stage.client.delete(f"/v1/shape?handle={shape.handle}")
        assert answer.status_code == 405
        assert not shape.is_dropped

    play(scene, can_delete=False)


def test_shapes_are_listed_shown_and_compacted() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        stage.engine.add(shape, message(b"1", 1))
        listed = (await stage.client.get("/v1/shapes")).json()["shapes"]
        assert [one["handle"] for one in listed] == [shape.handle]
        assert (await stage.client.get("/v1/shapes?table=none")).json() == {"shapes": []}
        shown = (await stage.client.get(f"/v1/shapes/{shape.handle}")).json()
        assert (shown["latest"], shown["snapshot"]) == ("1_0", "complete")
        done = await stage.client.post(f"/v1/shapes/{shape.handle}/compact")
        assert done.json()["balance"]["entries_in"] == 1
        assert (await stage.client.get("/v1/shapes/none")).status_code == 404

    play(scene)


def test_a_subset_has_the_rows_and_what_they_contain() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        stage.engine.add(shape, message(b"1", 1))
        stage.engine.rows = [message(b"1", 1)]
        url = "/v1/shape?table=items&offset=0_0"
        for answer in (
            await stage.client.get(f"{url}&subset__where=id = 1"),
            await stage.client.post(f"{url}&handle={shape.handle}", json={"where": "id = 1"}),
        ):
            assert answer.status_code == 200
            assert answer.headers["electric-snapshot"] == "true"
            assert answer.headers["electric-offset"] == "1_0"
            assert answer.headers["cache-control"] == "no-cache"
            found = answer.json()
            assert [one["key"] for one in found["data"]] == ["1"]
            assert {found["metadata"][name] for name in ("xmin", "xmax", "database_lsn")} == {"2"}
        stage.engine.refuses = InvalidRequest("no such column")
        refused = await stage.client.get(f"{url}&subset__where=x = 1")
        assert refused.json()["errors"] == {"subset": {"where": ["no such column"]}}
        refused = await stage.client.get(f"{url}&subset__order_by=lower(id)")
        assert refused.json()["errors"]["subset"].keys() == {"order_by"}
        large = await stage.client.post(url, content=b" " * 300_000)
        assert large.status_code == 413

    play(scene)


def test_a_subset_waits_for_a_shape_that_is_just_made() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.begins_at_once = False
        asked = asyncio.ensure_future(stage.client.post("/v1/shape?table=items", json={}))
        await until(lambda: stage.services.waiters.count == 1)
        shape = stage.engine.by_handle["0001-handle"]
        shape.is_snapshot_started = True
        stage.engine.tell([shape.handle])
        assert (await asked).status_code == 200

    play(scene)


def test_browsers_may_ask_from_elsewhere() -> None:
    async def scene(stage: Stage) -> None:
        asked = {
            "origin": "http://a.example",
            "access-control-request-headers": "X-A, If-None-Match",
        }
        answer = await stage.client.options("/v1/shape", headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "http://a.example"
        assert answer.headers["access-control-allow-headers"] == "if-none-match"
        assert answer.headers["access-control-max-age"] == "86400"
        assert "DELETE" in answer.headers["access-control-allow-methods"]

    play(scene)


def test_other_paths_and_methods_are_told() -> None:
    async def scene(stage: Stage) -> None:
        assert (await stage.client.get("/")).content == b""
        assert (await stage.client.get("/nothing")).status_code == 404
        assert (await stage.client.put("/v1/shape")).status_code == 405
        assert (await stage.client.get("/openapi.json")).json() == make_document()
        figures = (await stage.client.get("/metrics")).text
        assert (
            'varve_shape_http_requests_total{endpoint="root",method="GET",status="200"}' in figures
        )
        bad = await stage.client.get("/v1/shape?table=%ff&offset=-1")
        assert bad.status_code == 400
        missing = await stage.client.get("/v1/shape?table=missing&offset=-1")
        assert missing.json()["errors"] == {"table": ["there is no topic 'missing'"]}

    play(scene)


def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    async def scene(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        for path in (b"/v1/health", b"/nothing", b"/"):
            writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path)
        writer.write(b"HEAD /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answers = await asyncio.wait_for(reader.read(), 5)
        found = [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]]
        assert found == [b"200", b"404", b"200", b"200"]
        assert answers.endswith(b"\r\n\r\n")
        writer.close()

    play(scene)


def test_http_1_0_gets_whole_answers_and_no_events() -> None:
    async def ask(stage: Stage, query: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(b"GET /v1/shape?table=items&%s HTTP/1.0\r\n\r\n" % query)
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        writer.close()
        return head.lower(), body

    async def scene(stage: Stage) -> None:
        stage.engine.chunks = [[b'"%s"' % (b"x" * 300_000)] * 3]
        shape, _ = await stage.begin()
        head, body = await ask(stage, b"offset=-1")
        assert b"transfer-encoding" not in head
        assert json.loads(body) == ["x" * 300_000] * 3
        events = b"offset=0_0&live=true&live_sse=true&handle=" + shape.handle.encode()
        head, body = await ask(stage, events)
        assert b" 505 " in head
        assert "HTTP/1.1" in json.loads(body)["message"]

    play(scene)


def test_a_body_may_be_waited_for() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(
            b"POST /v1/shape?table=items HTTP/1.1\r\nhost: x\r\n"
            b"content-length: 2\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
        )
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 100 ")
        writer.write(b"{}")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b"HTTP/1.1 200" in answer
        writer.close()

    play(scene)


def test_a_head_without_end_and_an_idle_connection_are_ended() -> None:
    async def scene(stage: Stage) -> None:
        for sent, told in ((b"GET / HTTP/1.1\r\nx: ", b"431"), (b"", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
            writer.write(sent + b"y" * (5000 if sent else 0))
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer[9:12] == told
            writer.close()

    play(scene, head_bytes_max=4096, idle_ms=100)


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

    async def scene(stage: Stage) -> None:
        monkeypatch.setattr(socket.socket, "bind", refuse)
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:0 for shapes: {told};"):
            await HttpServer(stage.services, host="127.0.0.1", port=0).start()

    play(scene)


def test_a_body_that_comes_drop_by_drop_is_not_waited_for() -> None:
    async def scene(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(
            b"POST /v1/shape?table=items HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n"
        )
        answer = asyncio.ensure_future(reader.readline())
        for _ in range(100):
            if answer.done():
                break
            writer.write(b" ")
            await asyncio.sleep(0.05)
        assert answer.done()
        assert (await answer)[9:12] == b"408"
        writer.close()

    play(scene, idle_ms=200)


def test_what_is_no_request_is_told_so_that_pages_can_read_it() -> None:
    async def scene(stage: Stage) -> None:
        long = b"GET /v1/shape?where=" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
        for sent, status in ((b"\x16\x03\x01 is no HTTP", b"400"), (long, b"414")):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer[9:12] == status
            assert b"\r\ncache-control: no-store\r\n" in answer
            assert b"\r\naccess-control-allow-origin: *\r\n" in answer
            writer.close()

    play(scene)


def test_a_body_that_goes_on_after_the_answer_holds_no_connection() -> None:
    async def scene(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"x")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    play(scene, idle_ms=100)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.chunks = [[b'"%s"' % (b"x" * 200_000)] * 200]
        await stage.begin()
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port, limit=1024)
        writer.write(b"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: stage.services.gate.counts["initial"] == 1)
        await until(lambda: stage.services.gate.counts["initial"] == 0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(39_000_000)
        writer.close()

    play(scene, idle_ms=200)


def test_a_read_that_fails_in_the_middle_breaks_the_body() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.chunks = [[b'"%s"' % (b"x" * 300_000)] * 5]
        shape, _ = await stage.begin()

        def torn(start: object, end: object):  # type: ignore[no-untyped-def]
            yield b'"%s"' % (b"x" * 300_000)
            raise Corrupt("torn")

        shape.read = torn  # type: ignore[method-assign]
        with pytest.raises(httpx.RemoteProtocolError):
            await stage.get(offset="-1")

    play(scene)


def test_h22_a_cursor_is_greater_than_that_of_the_request() -> None:
    now_ms = 1_728_432_000_000 + 50_000
    assert next_cursor(now_ms, 20_000, None, max) == 60
    assert next_cursor(now_ms, 20_000, "59", max) == 60
    assert next_cursor(now_ms, 20_000, "60", max) > 60
    assert next_cursor(now_ms, 20_000, "10000000", max) > 10_000_000
    assert next_cursor(now_ms, 20_000, "9" * 40, max) > int("9" * 40)
    assert next_cursor(now_ms, 20_000, "no number", max) == 60
    assert next_cursor(now_ms, 20_000, "9" * 10_000, max) == 60
    assert next_cursor(0, 20_000, None, max) > 0


def test_the_document_is_valid_openapi() -> None:
    openapi_spec_validator.validate(make_document())
