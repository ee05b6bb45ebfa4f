"""Regular requests: order of answers, headers, waiting, 409, bounds.

Carries S2 and S5.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.support.fake_shapes import message
from tests.support.shape_http import ShapeHttp, until, with_server
from varve.foundation.errors import Corrupt, NotFound, StoreError, Unavailable
from varve.shapes.offset import ShapeOffset

UP_TO_DATE_0 = {"headers": {"control": "up-to-date", "global_last_seen_lsn": "0"}}


@with_server(allowed_origins=("*",))
async def test_the_first_answer_is_the_first_chunk_without_a_mark(http: ShapeHttp) -> None:
    _, answer = await http.begin()
    assert answer.status_code == 200
    assert [one["key"] for one in answer.json()] == ["1"]
    assert answer.headers["electric-offset"] == "0_0"
    assert answer.headers["electric-schema"] == "{}"
    assert "electric-up-to-date" not in answer.headers
    assert answer.headers["electric-has-data"] == "true"
    assert "max-age=604800" in answer.headers["cache-control"]
    assert answer.headers["etag"] == '"0001-handle:-1:0_0"'
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "electric-handle" in answer.headers["access-control-expose-headers"]


@with_server()
async def test_a_client_walks_chunks_to_the_end_of_the_snapshot_and_then_the_log(
    http: ShapeHttp,
) -> None:
    http.engine.chunks = [[message(b"1", 1)], [message(b"2", 2)]]
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"3", 3), message(b"4", 4))
    shape.ends = [ShapeOffset(1, 0)]
    place, keys, answers = "0_0", [], 0
    while answers < 10:
        answer = await http.get(offset=place, handle=shape.handle)
        answers += 1
        place = answer.headers["electric-offset"]
        keys += [one["key"] for one in answer.json() if "key" in one]
        if "electric-up-to-date" in answer.headers:
            break
    assert keys == ["2", "3", "4"]
    assert (place, answers) == ("2_0", 3)
    assert answer.json()[-1]["headers"] == {
        "control": "up-to-date",
        "global_last_seen_lsn": "2",
    }
    assert answer.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"


@with_server()
async def test_a_chunk_that_ends_within_a_transaction_while_it_is_asked_for_is_not_all(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    find_end = shape.chunk_end

    def append_first(offset: ShapeOffset) -> ShapeOffset | None:
        shape.log = [
            (ShapeOffset(1, 0), message(b"1", 1)),
            (ShapeOffset(1, 2), message(b"2", 2)),
        ]
        shape.ends = [ShapeOffset(1, 0)]
        return find_end(offset)

    shape.chunk_end = append_first  # type: ignore[method-assign]
    first = await http.get(offset="0_inf", handle=shape.handle)
    assert first.headers["electric-offset"] == "1_0"
    assert "electric-up-to-date" not in first.headers
    assert [one.get("key") for one in first.json()] == ["1"]
    second = await http.get(offset="1_0", handle=shape.handle)
    assert "electric-up-to-date" in second.headers
    assert second.json()[0]["key"] == "2"


@with_server()
async def test_what_is_compacted_beyond_its_end_while_it_is_read_is_not_all(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"1", 1))
    read = shape.read

    def read_compacted(start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        if shape.compacted_to < ShapeOffset(2, 0):
            http.engine.add(shape, message(b"1", 2))
            shape.compacted_to = ShapeOffset(2, 0)
        return read(start, end)

    shape.read = read_compacted  # type: ignore[method-assign]
    first = await http.get(offset="0_inf", handle=shape.handle)
    assert first.headers["electric-offset"] == "1_0"
    assert "electric-up-to-date" not in first.headers
    second = await http.get(offset="1_0", handle=shape.handle)
    assert second.headers["electric-offset"] == "2_0"
    assert "electric-up-to-date" in second.headers


@with_server()
async def test_a_shape_without_changes_is_up_to_date_at_the_end_of_its_snapshot(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    answer = await http.get(offset="0_0", handle=shape.handle)
    assert answer.json() == [UP_TO_DATE_0]
    assert answer.headers["electric-offset"] == "0_inf"
    assert answer.headers["electric-up-to-date"] == ""


@with_server()
async def test_now_gives_the_end_and_no_data(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"3", 3))
    answer = await http.get(offset="now")
    assert answer.headers["electric-offset"] == "1_0"
    assert answer.headers["electric-has-data"] == "false"
    assert len(answer.json()) == 1


@with_server()
async def test_a_live_request_is_answered_when_something_happens(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    asked = asyncio.ensure_future(
        http.get(offset="0_inf", handle=shape.handle, live="true", cursor="5")
    )
    await until(lambda: http.api.waiters.count == 1)
    http.engine.add(shape, message(b"9", 9))
    answer = await asked
    assert [one.get("key") for one in answer.json()] == ["9", None]
    assert answer.headers["electric-offset"] == "1_0"
    assert int(answer.headers["electric-cursor"]) > 5
    assert "electric-schema" not in answer.headers
    assert answer.headers["cache-control"] == "public, max-age=5, stale-while-revalidate=5"
    await until(lambda: http.api.waiters.count == 0)


@with_server(long_poll_ms=30)
async def test_a_live_request_without_news_ends_with_its_own_offset(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.newest = 41
    tags = set()
    for _ in range(2):
        answer = await http.get(offset="0_inf", handle=shape.handle, live="true")
        tags.add(answer.headers["etag"])
        assert answer.headers["electric-offset"] == "0_inf"
        assert answer.headers["electric-has-data"] == "false"
        assert answer.json()[0]["headers"]["global_last_seen_lsn"] == "41"
    assert len(tags) == 2


@with_server()
async def test_many_who_wait_for_the_same_share_one_read(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    before = shape.reads
    asked = [
        asyncio.ensure_future(http.get(offset="0_inf", handle=shape.handle, live="true"))
        for _ in range(50)
    ]
    await until(lambda: http.api.waiters.count == 50)
    http.engine.add(shape, message(b"9", 9))
    answers = await asyncio.gather(*asked)
    assert len({answer.content for answer in answers}) == 1
    assert shape.reads - before == 1


@pytest.mark.parametrize("is_live", [False, True])
@with_server()
async def test_an_unknown_handle_is_told_the_one_to_follow(http: ShapeHttp, is_live: bool) -> None:
    shape, _ = await http.begin()
    more = {"live": "true"} if is_live else {}
    answer = await http.get(offset="5_0", handle="gone-handle", **more)
    assert answer.status_code == 409
    assert answer.headers["electric-handle"] == shape.handle
    assert answer.json() == [{"headers": {"control": "must-refetch"}}]
    assert answer.headers["cache-control"] == "public, max-age=60, must-revalidate"


@with_server()
async def test_a_handle_of_another_definition_is_told_its_own(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    other = await http.get(offset="0_0", handle=shape.handle, replica="full")
    assert other.status_code == 409
    assert other.headers["electric-handle"] != shape.handle
    assert http.engine.made == 2


@with_server()
async def test_who_waits_for_a_shape_that_goes_gets_409(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    asked = asyncio.ensure_future(http.get(offset="0_inf", handle=shape.handle, live="true"))
    await until(lambda: http.api.waiters.count == 1)
    http.engine.drop(shape)
    answer = await asked
    assert answer.status_code == 409
    again, _ = await http.begin()
    assert answer.headers["electric-handle"] == again.handle != shape.handle


@pytest.mark.parametrize(
    ("error", "status"), [(NotFound("no topic"), 400), (Unavailable("gone until now"), 503)]
)
@with_server()
async def test_where_a_shape_cannot_be_made_again_there_is_no_409(
    http: ShapeHttp, error: StoreError, status: int
) -> None:
    shape, _ = await http.begin()
    asked = asyncio.ensure_future(http.get(offset="0_inf", handle=shape.handle, live="true"))
    await until(lambda: http.api.waiters.count == 1)

    def refuse(definition: object) -> NoReturn:
        raise error

    http.engine.find_or_create = refuse  # type: ignore[method-assign]
    http.engine.drop(shape)
    answer = await asked
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status == 503)


@with_server()
async def test_who_follows_a_shape_that_is_about_to_go_comes_again(http: ShapeHttp) -> None:
    shape, _ = await http.begin()

    def go(start: object, end: object) -> NoReturn:
        raise NotFound("its topic is let go of")

    shape.read = go  # type: ignore[method-assign]
    answer = await http.get(offset="0_0", handle=shape.handle)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@with_server(long_poll_ms=400)
async def test_h21_an_offset_beyond_the_end_waits_while_the_source_is_replayed(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    http.engine.is_replayed = False
    answer = await http.get(offset="3_0", handle=shape.handle)
    assert answer.status_code == 503
    assert answer.headers["electric-handle"] == shape.handle
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["electric-internal-known-error"] == "true"
    asked = asyncio.ensure_future(http.get(offset="2_0", handle=shape.handle))
    await until(lambda: http.api.waiters.count == 1)
    http.engine.add(shape, message(b"1", 1), message(b"2", 2))
    assert (await asked).status_code == 200
    http.engine.is_replayed = True
    answer = await http.get(offset="9_0", handle=shape.handle)
    assert answer.status_code == 400
    assert answer.headers["electric-handle"] == shape.handle
    assert "offset" in answer.json()["errors"]
    assert not shape.is_dropped


@pytest.mark.parametrize("live", ["false", "true"])
@with_server(long_poll_ms=400)
async def test_a_place_that_the_topic_has_and_the_shape_does_not_tell_again_is_good(
    http: ShapeHttp, live: str
) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"1", 1))
    http.engine.newest = 5
    answer = await http.get(offset="3_0", handle=shape.handle, live=live)
    assert answer.status_code == 200
    assert answer.headers["electric-offset"] == "3_0"
    assert "electric-up-to-date" in answer.headers
    assert [one["headers"]["control"] for one in answer.json()] == ["up-to-date"]
    asked = asyncio.ensure_future(http.get(offset="3_0", handle=shape.handle, live="true"))
    await until(lambda: http.api.waiters.count == 1)
    http.engine.add(shape, message(b"6", 6))
    later = await asked
    assert later.headers["electric-offset"] == "6_0"
    assert len(later.json()) == 2


@with_server(snapshot_wait_ms=200)
async def test_a_snapshot_that_fails_or_does_not_begin_is_503(http: ShapeHttp) -> None:
    http.engine.begins_at_once = False
    slow = await http.get(offset="-1")
    assert slow.status_code == 503
    assert slow.headers["electric-handle"] == "0001-handle"
    shape = http.engine.by_handle["0001-handle"]
    asked = asyncio.ensure_future(http.get(offset="-1"))
    await until(lambda: http.api.waiters.count == 1)
    shape.failure = Unavailable("no room on the disk")
    http.engine.drop(shape)
    failed = await asked
    assert failed.status_code == 503
    assert failed.json() == {"message": "no room on the disk"}


@with_server()
async def test_a_cache_that_has_the_answer_gets_304(http: ShapeHttp) -> None:
    _, first = await http.begin()
    again = await http.client.get(
        "/v1/shape?table=items&offset=-1",
        headers={"if-none-match": f'"x", {first.headers["etag"]}'},
    )
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["electric-handle"] == first.headers["electric-handle"]
    assert again.headers["cache-control"] == first.headers["cache-control"]


@with_server(long_poll_ms=30)
async def test_an_asterisk_means_whatever_there_is(http: ShapeHttp) -> None:
    any_tag = {"if-none-match": "*"}
    shape, first = await http.begin()
    again = await http.client.get("/v1/shape?table=items&offset=-1", headers=any_tag)
    assert again.status_code == 304
    assert again.headers["etag"] == first.headers["etag"]
    live = f"/v1/shape?table=items&offset=0_inf&handle={shape.handle}&live=true"
    assert (await http.client.get(live, headers=any_tag)).status_code == 200


@with_server()
async def test_who_waits_follows_the_shape(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    for more in ({}, {"live_sse": "true"}):
        asked = asyncio.ensure_future(
            http.get(offset="0_inf", handle=shape.handle, live="true", **more)
        )
        await until(lambda: shape.followers == 1)
        asked.cancel()
        await until(lambda: shape.followers == 0)
    await until(lambda: http.api.limiter.counts["existing"] == http.api.waiters.count == 0)


@with_server()
async def test_a_shape_that_goes_by_being_read_is_409_at_once(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"3", 3))

    def corrupt(start: object, end: object) -> NoReturn:
        http.engine.drop(shape)
        raise Corrupt("an entry is torn")

    shape.read = corrupt  # type: ignore[method-assign]
    answer = await http.get(offset="0_inf", handle=shape.handle)
    assert answer.status_code == 409
    assert answer.headers["electric-handle"] not in ("", shape.handle)


@with_server(snapshot_wait_ms=30)
async def test_a_cache_asks_for_a_shape_that_has_not_begun(http: ShapeHttp) -> None:
    http.engine.begins_at_once = False
    answer = await http.client.get(
        "/v1/shape?table=items&offset=-1", headers={"if-none-match": '"x"'}
    )
    assert answer.status_code == 503
    assert http.engine.by_handle["0001-handle"].reads == 0


@with_server()
async def test_head_has_the_headers_of_get(http: ShapeHttp) -> None:
    _, first = await http.begin()
    head = await http.client.head("/v1/shape?table=items&offset=-1")
    assert head.content == b""
    for name in ("electric-handle", "electric-offset", "etag", "content-length", "cache-control"):
        assert head.headers[name] == first.headers[name]


@with_server()
async def test_a_long_chunk_comes_in_pieces_and_whole(http: ShapeHttp) -> None:
    long = [b'{"key":"%d","value":"%s"}' % (at, b"x" * 100_000) for at in range(40)]
    http.engine.chunks = [long]
    shape, answer = await http.begin()
    assert [json.dumps(one, separators=(",", ":")).encode() for one in answer.json()] == long
    assert "content-length" not in answer.headers
    head = await http.client.head("/v1/shape?table=items&offset=-1")
    assert head.status_code == 200
    shape.is_tail = True
    assert (await http.get(offset="-1")).content == answer.content


@with_server()
async def test_when_the_server_stops_who_waits_is_answered_at_once(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    asked = asyncio.ensure_future(http.get(offset="0_inf", handle=shape.handle, live="true"))
    await until(lambda: http.api.waiters.count == 1)
    await http.server.stop()
    answer = await asked
    assert answer.status_code == 200
    assert answer.headers["electric-has-data"] == "false"


@with_server()
async def test_h21_a_server_that_stops_calls_no_offset_bogus(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    asked = asyncio.ensure_future(http.get(offset="7_0", handle=shape.handle))
    await until(lambda: http.api.waiters.count == 1)
    await http.server.stop()
    assert (await asked).status_code == 503


@with_server(long_poll_ms=10)
async def test_a_poll_that_ends_looks_at_its_own_topic_alone(http: ShapeHttp) -> None:
    """However many there are."""

    def look_at_all() -> NoReturn:
        raise AssertionError("all topics were looked at")

    shape, _ = await http.begin()
    http.engine.health = look_at_all  # type: ignore[method-assign]
    answer = await http.get(offset="0_inf", handle=shape.handle, live="true")
    assert answer.status_code == 200
