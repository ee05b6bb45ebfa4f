"""More shapes are asked for than there may be: the server stays within its limit and goes on.

Carries S5.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx

from tests.support.shape_engine_http import EngineHttp, with_engine

SHAPES_MAX: Final = 8
FILES_MORE_MAX: Final = 30
ROWS: Final = {'"public"."t"/"a"': {"key": "a", "n": 1}}


async def _ask(http: EngineHttp, number: int, **query: str) -> httpx.Response:
    return await http.get(where=f"n > -{number}", **query)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@with_engine(shapes_max=SHAPES_MAX)
async def test_many_filters_of_one_client_stay_within_the_limit(http: EngineHttp) -> None:
    http.stage.put("t", "a", {"n": 1})
    engine = http.stage.engine
    first = await _ask(http, 0)
    files = _open_files()
    for number in range(1, 60):
        assert (await _ask(http, number)).status_code == 200
        assert len(engine.shapes()) <= SHAPES_MAX
    assert _open_files() - files < FILES_MORE_MAX
    handle = first.headers["electric-handle"]
    told = await _ask(http, 0, offset="0_inf", handle=handle, live="true")
    assert told.status_code == 409
    assert told.headers["electric-handle"] not in ("", handle)
    root = Path(engine.root)
    async with asyncio.timeout(10):
        # A worker of the engine removes them, beside whom nobody else may.
        while list((root / ".trash").iterdir()):
            await asyncio.sleep(0.02)
    assert len(list(root.glob("??/??/*"))) <= SHAPES_MAX


@with_engine(shapes_max=SHAPES_MAX)
async def test_a_shape_that_is_followed_outlives_a_storm_though_nothing_happens_in_it(
    http: EngineHttp,
) -> None:
    http.stage.put("t", "a", {"n": 1})
    async with http.follower(where="n > 0") as quiet:
        await quiet.wait_rows(ROWS)
        for start in range(1, 101, 20):
            await asyncio.gather(*(_ask(http, start + more) for more in range(20)))
        http.stage.put("t", "b", {"n": 2})
        await quiet.wait_rows({**ROWS, '"public"."t"/"b"': {"key": "b", "n": 2}})
        assert quiet.refetch_count == 0
        assert len(http.stage.engine.shapes()) <= SHAPES_MAX


@with_engine(shapes_max=SHAPES_MAX)
async def test_where_all_are_followed_who_comes_new_waits_until_one_is_left(
    http: EngineHttp,
) -> None:
    http.stage.put("t", "a", {"n": 1})
    engine = http.stage.engine
    async with AsyncExitStack() as stack:
        followers = [http.follower(where=f"n > -{number}") for number in range(SHAPES_MAX)]
        for one in followers:
            await stack.enter_async_context(one)
        # Who waits for a snapshot follows as well, and then not until it asks again.
        for one in followers:
            await one.wait_rows(ROWS)
        async with asyncio.timeout(10):
            while sum(shape._users > 0 for shape in engine.shapes()) < SHAPES_MAX:
                await asyncio.sleep(0.01)
        refused = await _ask(http, 99)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "shapes.max" in refused.json()["message"]
        left = followers.pop()
        await left.__aexit__()
        async with asyncio.timeout(10):
            while (await _ask(http, 99)).status_code == 503:
                await asyncio.sleep(0.05)
        assert [one.refetch_count for one in followers] == [0] * len(followers)
        assert engine.find(left.handle) is None


@with_engine(shapes_max=SHAPES_MAX)
async def test_a_storm_of_first_requests_is_answered_or_told_to_come_again(
    http: EngineHttp,
) -> None:
    http.stage.put("t", "a", {"n": 1})
    answers = await asyncio.gather(*(_ask(http, number) for number in range(60)))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {200, 409, 503}
    assert 200 in statuses
    assert len(http.stage.engine.shapes()) <= SHAPES_MAX
    assert (await http.client.get("/v1/health")).status_code == 200
