"""Two thousand clients at once: each ends with exactly the topic's state."""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import pytest

from tests.support.npm_clients import NpmClients
from tests.support.shape_follower import Follower
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

NPM_COUNT: Final = 200
LIGHT_COUNT: Final = 1_800
SSE_SHARE: Final = 3
FILTERS: Final = ("", "state = 'moving'", "state = 'waiting'", "grams > 10000")


def _wanted(topic: ShapeTopic, where: str) -> dict[str, dict[str, object]]:
    match where:
        case "":
            return topic.rows()
        case "grams > 10000":
            return topic.rows(lambda row: row["grams"] > 10_000)
        case _:
            return topic.rows(lambda row: row["state"] == where.split("'")[1])


@pytest.mark.node
@pytest.mark.timeout(120)
def test_a_crowd_of_clients_follows_four_shapes(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(40)
    each = NPM_COUNT // len(FILTERS)
    names = {where: [f"{topic.name}-{where}-{n}" for n in range(each)] for where in FILTERS}
    for where, those in names.items():
        asked = {"table": topic.name, **({"where": where} if where else {})}
        for is_sse in (False, True):
            few = those[is_sse::2]
            npm.follow(*few, url=shape_server.url, params=asked, liveSse=is_sse)
    asyncio.run(_crowd(shape_server, topic, traffic, npm, names))
    for those in names.values():
        npm.leave(*those)


async def _crowd(
    server: ShapeServer,
    topic: ShapeTopic,
    traffic: Traffic,
    npm: NpmClients,
    names: dict[str, list[str]],
) -> None:
    async with AsyncExitStack() as stack:
        light: list[tuple[str, Follower]] = []
        for number in range(LIGHT_COUNT):
            where = FILTERS[number % len(FILTERS)]
            asked = {"table": topic.name, **({"where": where} if where else {})}
            is_sse = number % SSE_SHARE == 0
            one = Follower(server.host, server.port, asked, is_sse=is_sse)
            light.append((where, await stack.enter_async_context(one)))
        for _ in range(3):
            await asyncio.to_thread(traffic.change, 20)
            await asyncio.gather(*(one.wait_rows(_wanted(topic, where)) for where, one in light))
            for where, those in names.items():
                await asyncio.to_thread(npm.wait, _wanted(topic, where), *those)
        assert all(one.refetch_count == 0 for _, one in light)
