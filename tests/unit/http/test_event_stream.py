"""Streams of events: what clients of server-sent events stand on."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

from tests.support.fake_shapes import FakeShape, message
from tests.support.shape_http import ShapeHttp, until, with_server
from varve.http.shapes.read import encode_events
from varve.shapes.offset import ShapeOffset


async def _events(
    http: ShapeHttp, shape: FakeShape, offset: str, headers: dict[str, str]
) -> AsyncIterator[str]:
    query = {
        "table": "items",
        "offset": offset,
        "handle": shape.handle,
        "live": "true",
        "live_sse": "true",
    }
    async with http.client.stream("GET", "/v1/shape", params=query) as answer:
        headers.update(answer.headers)
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            yield line


@with_server()
async def test_h20_the_header_has_the_offset_of_the_request_and_batches_end_up_to_date(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"a", 1), message(b"b", 2))
    headers: dict[str, str] = {}
    told = []
    async for line in _events(http, shape, "0_inf", headers):
        told.append(line)
        if len(told) == 6:
            http.engine.newest = 100
            http.engine.add(shape, message(b"c", 3))
        if len(told) == 10:
            break
    assert headers["electric-offset"] == "0_inf"
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "public, max-age=59"
    assert int(headers["electric-cursor"]) > 0
    events = [json.loads(line.removeprefix("data: ")) for line in told if line]
    assert [one.get("key") for one in events] == ["a", "b", None, "c", None]
    marks = [one["headers"].get("global_last_seen_lsn") for one in events]
    assert marks == [None, None, "2", None, "101"]


@with_server(events_ms=50)
async def test_h20_a_stream_is_never_answered_with_304(http: ShapeHttp) -> None:
    """Its header would have an offset beyond that of the request."""
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"a", 1))
    asked = f"/v1/shape?table=items&offset=0_inf&handle={shape.handle}&live=true"
    polled = await http.client.get(asked)
    known = {"if-none-match": polled.headers["etag"]}
    assert (await http.client.get(asked, headers=known)).status_code == 304
    streamed = await http.client.get(f"{asked}&live_sse=true", headers=known)
    assert streamed.status_code == 200
    assert streamed.headers["electric-offset"] == "0_inf"


@with_server(events_ms=150, keep_alive_ms=40)
async def test_h20_no_mark_is_sent_while_the_log_is_empty(http: ShapeHttp) -> None:
    http.engine.chunks = [[message(b"a", 1)], [message(b"b", 2)]]
    shape, _ = await http.begin()
    headers: dict[str, str] = {}
    told = [line async for line in _events(http, shape, "0_0", headers) if line]
    assert [line for line in told if line != ": keep-alive"] == [
        "data: " + message(b"b", 2).decode()
    ]
    assert ": keep-alive" in told


@with_server(events_ms=100)
async def test_a_stream_ends_in_time_though_there_is_always_more(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    read = shape.read

    def read_and_add(start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        found = read(start, end)
        http.engine.add(shape, message(b"a", 2))
        return found

    shape.read = read_and_add  # type: ignore[method-assign]
    http.engine.add(shape, message(b"a", 1))
    async with asyncio.timeout(5):
        told = [line async for line in _events(http, shape, "0_inf", {}) if line]
    assert len(told) > 4
    last = json.loads(told[-1].removeprefix("data: "))
    assert last["headers"]["control"] == "up-to-date"


@with_server(events_ms=100)
async def test_what_is_compacted_while_it_is_told_is_marked_at_the_end_of_that(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    read = shape.read

    def read_compacted(start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        """The update of `a` comes with a later one, of `b` there is nothing more."""
        if shape.compacted_to < ShapeOffset(3, 0):
            http.engine.add(shape, message(b"a", 3))
            shape.log[0] = (ShapeOffset(1, 0), message(b"b", 1))
            shape.compacted_to = ShapeOffset(3, 0)
        return read(start, end)

    http.engine.add(shape, message(b"a", 1), message(b"b", 2))
    shape.read = read_compacted  # type: ignore[method-assign]
    told = [line async for line in _events(http, shape, "0_inf", {}) if line]
    found = [json.loads(line.removeprefix("data: ")) for line in told if line[0] != ":"]
    assert [one.get("key", "mark") for one in found] == ["b", "b", "a", "mark"]


@with_server()
async def test_a_stream_ends_when_its_shape_goes_and_the_next_gets_409(http: ShapeHttp) -> None:
    shape, _ = await http.begin()

    async def follow() -> list[str]:
        return [line async for line in _events(http, shape, "0_inf", {})]

    followed = asyncio.ensure_future(follow())
    await until(lambda: http.api.waiters.count == 1)
    http.engine.drop(shape)
    assert await followed == []
    again = await http.get(offset="0_inf", handle=shape.handle, live="1", live_sse="1")
    assert again.status_code == 409
    assert again.headers["content-type"] == "application/json"


def test_an_event_has_one_message_whatever_its_strings_hold() -> None:
    one = b'{"value":{"a":"},{\\"","b":[{"key":1},{"key":2}]}}'
    two = b'{"value":"\\\\"}'
    assert encode_events(one + b",\n" + two) == b"data: %s\n\ndata: %s\n\n" % (one, two)
    assert encode_events(b"") == b""
