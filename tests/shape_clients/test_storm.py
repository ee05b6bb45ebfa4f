"""Everything at once, in any order: every client ends with exactly the topic's state.

Carries S1.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import pytest

from tests.support.npm_clients import NpmClients
from tests.support.shape_follower import Follower
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, Rows, ShapeTopic
from tests.support.shape_traffic import Traffic

STEP_COUNT: Final = 14
KILL_COUNT: Final = 2
WHERE: Final = "state <> 'arrived' AND grams >= 5000"


def _is_wanted(row: Row) -> bool:
    return bool(row["state"] != "arrived" and row["grams"] >= 5000)


class Storm:
    """A topic and two shapes of it, with clients of both kinds that come and go."""

    def __init__(
        self, server: ShapeServer, topic: ShapeTopic, npm: NpmClients, stack: AsyncExitStack
    ) -> None:
        self._server = server
        self._topic = topic
        self._npm = npm
        self._stack = stack
        self._random = random.Random(11)
        self._traffic = Traffic(topic)
        self._light: list[tuple[bool, Follower]] = []
        self._names: dict[str, bool] = {}
        self._rotation_count = 0

    async def join(self) -> None:
        """Two light clients and one of npm."""
        for is_sse in (False, True):
            is_filtered = self._random.random() < 0.5
            one = Follower(
                self._server.host, self._server.port, self._asked(is_filtered), is_sse=is_sse
            )
            self._light.append((is_filtered, await self._stack.enter_async_context(one)))
        is_filtered, is_sse = self._random.random() < 0.5, self._random.random() < 0.5
        name = f"{self._topic.name}-{len(self._names)}"
        self._names[name] = is_filtered
        asked = self._asked(is_filtered)
        self._npm.follow(name, url=self._server.url, params=asked, liveSse=is_sse)

    def _asked(self, is_filtered: bool) -> dict[str, str]:
        return {"table": self._topic.name, **({"where": WHERE} if is_filtered else {})}

    async def change(self) -> None:
        await asyncio.to_thread(self._traffic.change, self._random.randrange(1, 200))

    async def compact(self) -> None:
        await asyncio.to_thread(self._server.compact, self._handle())

    async def rotate(self) -> None:
        self._rotation_count += 1
        await asyncio.to_thread(self._server.rotate, self._handle())

    def _handle(self) -> str:
        """That of a shape that is served now, whatever clients know."""
        is_filtered = self._random.random() < 0.5
        return self._server.ask_handle(**self._asked(is_filtered))

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await self.change()
        await asyncio.to_thread(self._server.start)

    async def settle(self) -> None:
        """Every client has exactly the rows."""
        await asyncio.gather(*(one.wait_rows(self._rows(wanted)) for wanted, one in self._light))
        for is_filtered in (False, True):
            names = [name for name, wanted in self._names.items() if wanted == is_filtered]
            await asyncio.to_thread(self._npm.wait, self._rows(is_filtered), *names)

    def _rows(self, is_filtered: bool) -> Rows:
        return self._topic.rows(_is_wanted if is_filtered else lambda row: True)

    def leave(self) -> None:
        """Nobody has begun anew for anything but a rotation."""
        for _, one in self._light:
            assert one.refetch_count <= self._rotation_count
        for name in self._names:
            assert self._npm.facts(name)["refetches"] <= self._rotation_count
        self._npm.leave(*self._names)


@pytest.mark.node
@pytest.mark.timeout(120)
@pytest.mark.parametrize("partition_count", [1, 3])
def test_a_storm_leaves_every_client_with_the_topics_state(
    mortal_server: ShapeServer,
    make_topic: Callable[..., ShapeTopic],
    npm: NpmClients,
    partition_count: int,
) -> None:
    topic = make_topic(partition_count=partition_count)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            storm = Storm(mortal_server, topic, npm, stack)
            draws = random.Random(partition_count)
            others = [storm.change, storm.compact, storm.rotate, storm.join, storm.settle]
            steps = [draws.choice(others) for _ in range(STEP_COUNT)] + [storm.kill] * KILL_COUNT
            draws.shuffle(steps)
            await storm.change()
            await storm.join()
            for step in steps:
                await storm.change()
                await step()
            await storm.settle()
            storm.leave()

    asyncio.run(run())
