"""More shapes are asked for than there may be: the server stays within its limit and goes on.

Carries S5.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage
from tests.support.shape_engine_http import open_http, open_stage
from tests.support.shape_follower import Follower
from varve.http.server import HttpServer

SHAPES_MAX: Final = 8
FILES_MORE_MAX: Final = 30
ROWS: Final = {'"public"."t"/"a"': {"key": "a", "n": 1}}

Scene = Callable[[Stage, HttpServer], Awaitable[None]]


def _play(scene: Scene) -> None:
    async def run(stage: Stage) -> None:
        async with open_http(stage) as door:
            await scene(stage, door)

    with memory_directory() as path:
        stage = open_stage(path, shapes_max=SHAPES_MAX)
        stage.store.create_topic("t")
        stage.put("t", "a", {"n": 1})
        asyncio.run(run(stage))
        stage.close()


@asynccontextmanager
async def _client(door: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{door.port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
        yield client


async def _ask(client: httpx.AsyncClient, number: int, **query: str) -> httpx.Response:
    wanted = {"table": "t", "where": f"n > -{number}", "offset": "-1", **query}
    return await client.get("/v1/shape", params=wanted)


def _follow(door: HttpServer, number: int) -> Follower:
    return Follower("127.0.0.1", door.port, {"table": "t", "where": f"n > -{number}"})


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_filters_of_one_client_stay_within_the_limit() -> None:
    async def scene(stage: Stage, door: HttpServer) -> None:
        async with _client(door) as client:
            first = await _ask(client, 0)
            files = _open_files()
            for number in range(1, 60):
                assert (await _ask(client, number)).status_code == 200
                assert len(stage.engine.shapes()) <= SHAPES_MAX
            assert _open_files() - files < FILES_MORE_MAX
            handle = first.headers["electric-handle"]
            told = await _ask(client, 0, offset="0_inf", handle=handle, live="true")
            assert told.status_code == 409
            assert told.headers["electric-handle"] not in ("", handle)
        root = Path(stage.engine.root)
        async with asyncio.timeout(10):
            # A worker of the engine removes them, beside whom nobody else may.
            while list((root / ".trash").iterdir()):
                await asyncio.sleep(0.02)
        assert len(list(root.glob("??/??/*"))) <= SHAPES_MAX

    _play(scene)


def test_a_shape_that_is_followed_outlives_a_storm_though_nothing_happens_in_it() -> None:
    async def scene(stage: Stage, door: HttpServer) -> None:
        async with _follow(door, 0) as quiet, _client(door) as client:
            await quiet.wait_rows(ROWS)
            for start in range(1, 101, 20):
                await asyncio.gather(*(_ask(client, start + more) for more in range(20)))
            stage.put("t", "b", {"n": 2})
            await quiet.wait_rows({**ROWS, '"public"."t"/"b"': {"key": "b", "n": 2}})
            assert quiet.refetch_count == 0
            assert len(stage.engine.shapes()) <= SHAPES_MAX

    _play(scene)


def test_where_all_are_followed_who_comes_new_waits_until_one_is_left() -> None:
    async def scene(stage: Stage, door: HttpServer) -> None:
        async with AsyncExitStack() as stack, _client(door) as client:
            followers = [_follow(door, number) for number in range(SHAPES_MAX)]
            for one in followers:
                await stack.enter_async_context(one)
            # Who waits for a snapshot follows as well, and then not until it asks again.
            for one in followers:
                await one.wait_rows(ROWS)
            async with asyncio.timeout(10):
                while sum(shape._users > 0 for shape in stage.engine.shapes()) < SHAPES_MAX:
                    await asyncio.sleep(0.01)
            refused = await _ask(client, 99)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert "shapes.max" in refused.json()["message"]
            left = followers.pop()
            await left.__aexit__()
            async with asyncio.timeout(10):
                while (await _ask(client, 99)).status_code == 503:
                    await asyncio.sleep(0.05)
            assert [one.refetch_count for one in followers] == [0] * len(followers)
            assert stage.engine.find(left.handle) is None

    _play(scene)


def test_a_storm_of_first_requests_is_answered_or_told_to_come_again() -> None:
    async def scene(stage: Stage, door: HttpServer) -> None:
        async with _client(door) as client:
            answers = await asyncio.gather(*(_ask(client, number) for number in range(60)))
            statuses = [answer.status_code for answer in answers]
            assert set(statuses) <= {200, 409, 503}
            assert 200 in statuses
            assert len(stage.engine.shapes()) <= SHAPES_MAX
            assert (await client.get("/v1/health")).status_code == 200

    _play(scene)
