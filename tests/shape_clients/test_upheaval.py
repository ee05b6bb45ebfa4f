"""Clients end with exactly the topic's state whatever happens to the server and their shape.

Carries S1, S4 and S5.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import pytest

from tests.support.kafka_server import ServerProcess
from tests.support.npm_clients import NpmClients
from tests.support.shape_follower import Follower, Pace
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

SLOW: Final = Pace(piece_bytes=8_192, rest_seconds=2.0)
SLOW_COUNT: Final = 100
PINNED_MAX_BYTES: Final = 2 << 20
MODES = pytest.mark.parametrize("is_sse", [False, True], ids=["long-poll", "sse"])


@pytest.mark.node
def test_a_restart_in_the_middle_goes_unnoticed(
    mortal_server: ShapeServer, make_topic: Callable[..., ShapeTopic], npm: NpmClients
) -> None:
    topics = [make_topic(partition_count=count) for count in (1, 3)]
    traffics = [Traffic(topic) for topic in topics]
    names: dict[str, ShapeTopic] = {}
    for topic, traffic in zip(topics, traffics, strict=True):
        traffic.add(100)
        for is_sse in (False, True):
            name = f"{topic.name}-{is_sse}"
            names[name] = topic
            npm.follow(name, url=mortal_server.url, params={"table": topic.name}, liveSse=is_sse)
    for name, topic in names.items():
        npm.wait(topic.rows(), name)
    for end in (mortal_server.kill, mortal_server.stop):
        for traffic in traffics:
            traffic.change(50)
        end()
        for traffic in traffics:
            traffic.change(50)
        mortal_server.start()
        for name, topic in names.items():
            npm.wait(topic.rows(), name)
        for traffic in traffics:
            traffic.change(50)
        for name, topic in names.items():
            npm.wait(topic.rows(), name)
    npm.leave(*names, refetches=0)  # the shapes outlive their server


@pytest.mark.node
@MODES
def test_a_deleted_shape_sends_its_clients_to_a_new_one(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, *, is_sse: bool
) -> None:
    traffic = Traffic(topic)
    traffic.add(100)
    names = [f"{topic.name}-{number}" for number in range(5)]
    npm.follow(*names, url=shape_server.url, params={"table": topic.name}, liveSse=is_sse)
    npm.wait(topic.rows(), *names)
    handles = {npm.facts(names[0])["handle"]}
    for _ in range(2):
        shape_server.rotate(npm.facts(names[0])["handle"])
        traffic.change(50)
        npm.wait(topic.rows(), *names)
        handles.add(npm.facts(names[0])["handle"])
    assert len(handles) == 3
    npm.leave(*names, refetches=2)


@pytest.mark.node
def test_a_topic_that_is_deleted_and_made_again_is_followed_again(
    shape_server: ShapeServer, broker: ServerProcess, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(20)
    names = [f"{topic.name}-{is_sse}" for is_sse in (False, True)]
    for name, is_sse in zip(names, (False, True), strict=True):
        npm.follow(name, url=shape_server.url, params={"table": topic.name}, liveSse=is_sse)
    npm.wait(topic.rows(), *names)
    topic.remove()
    shape_server.wait_gone(topic.name)
    with ShapeTopic(broker.bootstrap, topic.name) as again:
        Traffic(again).add(10)
        npm.wait(again.rows(), *names)
    npm.leave(*names, refetches=1)


@pytest.mark.node
@MODES
def test_compaction_in_the_middle_goes_unnoticed(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, *, is_sse: bool
) -> None:
    traffic = Traffic(topic)
    traffic.add(20)
    name, late = f"{topic.name}-early", f"{topic.name}-late"
    table = {"table": topic.name}
    npm.follow(name, url=shape_server.url, params=table, liveSse=is_sse)
    npm.wait(topic.rows(), name)
    handle = npm.facts(name)["handle"]
    for _ in range(3):
        traffic.change(300)
        assert shape_server.compact(handle)["outcome"] == "done"
        traffic.change(10)
        npm.wait(topic.rows(), name)
    npm.follow(late, url=shape_server.url, params=table, liveSse=is_sse)
    npm.wait(topic.rows(), late)
    assert {npm.facts(one)["handle"] for one in (name, late)} == {handle}
    npm.leave(name, late, refetches=0)


def test_a_row_that_changed_often_costs_a_new_client_little_after_compaction(
    shape_server: ShapeServer, topic: ShapeTopic
) -> None:
    topic.put("one", {"count": 0})
    topic.flush()
    handle = shape_server.ask_handle(table=topic.name)

    async def receive_bytes() -> int:
        table = {"table": topic.name}
        async with Follower(shape_server.host, shape_server.port, table) as one:
            await one.wait_rows(topic.rows())
            assert one.handle == handle
            return one.received_bytes

    few = asyncio.run(receive_bytes())
    for count in range(1, 3_001):
        topic.put("one", {"count": count})
    topic.flush()
    assert asyncio.run(receive_bytes()) > 100 * few
    shape_server.compact(handle)
    assert asyncio.run(receive_bytes()) < 2 * few


@pytest.mark.node
def test_a_slow_client_arrives_and_holds_up_nobody(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(3_000)
    name, slow = f"{topic.name}-quick", f"{topic.name}-slow"
    table = {"table": topic.name}
    npm.follow(
        slow, url=shape_server.url, params=table, slow={"piece_bytes": 16_384, "rest_ms": 30}
    )
    npm.follow(name, url=shape_server.url, params=table)
    npm.wait(topic.rows(), name)
    handle = npm.facts(name)["handle"]
    for _ in range(3):
        traffic.change(200)
        npm.wait(topic.rows(), name, seconds=5)
        shape_server.compact(handle)
    npm.wait(topic.rows(), slow)
    npm.leave(name, slow)


def test_clients_that_do_not_read_cost_the_server_little_memory(
    shape_server: ShapeServer, topic: ShapeTopic
) -> None:
    for number in range(40):
        topic.put(f"{number}", {"text": f"{number:02}" * 100_000})
    topic.flush()
    table = {"table": topic.name}

    async def run() -> None:
        async with AsyncExitStack() as stack:
            quick = Follower(shape_server.host, shape_server.port, table)
            await (await stack.enter_async_context(quick)).wait_rows(topic.rows())
            before = shape_server.rss_bytes()
            slow = [
                Follower(shape_server.host, shape_server.port, table, pace=SLOW)
                for _ in range(SLOW_COUNT)
            ]
            for one in slow:
                await stack.enter_async_context(one)
            topic.put("last", {"text": "end"})
            topic.flush()
            await quick.wait_rows(topic.rows(), 10)
            for one in slow:
                await one.wait_begun()
            assert shape_server.rss_bytes() - before < SLOW_COUNT * PINNED_MAX_BYTES
            assert not any(one.rows for one in slow)

    asyncio.run(run())
