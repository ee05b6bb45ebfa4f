"""Clients end with exactly the topic's state whatever happens to the server and their shape."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka_server import ServerProcess
from tests.support.npm_clients import NpmClients
from tests.support.shape_follower import Follower, Pace
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

MODES = pytest.mark.parametrize("is_sse", [False, True], ids=["long-poll", "sse"])


@pytest.mark.node
@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_restart_in_the_middle_goes_unnoticed(
    own_server: ShapeServer, make_topic: Callable[..., ShapeTopic], npm: NpmClients, ending: str
) -> None:
    topics = [make_topic(partition_count=count) for count in (1, 3)]
    traffics = [Traffic(topic) for topic in topics]
    names: dict[str, ShapeTopic] = {}
    for topic, traffic in zip(topics, traffics, strict=True):
        traffic.add(100)
        for is_sse in (False, True):
            name = f"{topic.name}-{is_sse}"
            names[name] = topic
            npm.follow(name, url=own_server.url, params={"table": topic.name}, liveSse=is_sse)
    for name, topic in names.items():
        npm.wait(topic.rows(), name)
    for traffic in traffics:
        traffic.change(50)
    own_server.kill() if ending == "kill" else own_server.stop()
    for traffic in traffics:
        traffic.change(50)
    own_server.start()
    for name, topic in names.items():
        npm.wait(topic.rows(), name)
    for traffic in traffics:
        traffic.change(50)
    for name, topic in names.items():
        npm.wait(topic.rows(), name)
        facts = npm.facts(name)
        assert facts["errors"] == []
        assert facts["refetches"] == 0, "the shape outlives its server"
    npm.stop(*names)


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
    for name in names:
        facts = npm.facts(name)
        assert facts["refetches"] == 2
        assert facts["errors"] == []
    npm.stop(*names)


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
        shape_server.compact(handle)
        traffic.change(10)
        npm.wait(topic.rows(), name)
    npm.follow(late, url=shape_server.url, params=table, liveSse=is_sse)
    npm.wait(topic.rows(), late)
    for one in (name, late):
        facts = npm.facts(one)
        assert facts["handle"] == handle
        assert facts["refetches"] == 0
        assert facts["errors"] == []
    npm.stop(name, late)


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
    assert npm.facts(slow)["errors"] == []
    npm.stop(name, slow)


def test_clients_that_do_not_read_cost_the_server_little_memory(
    broker: ServerProcess, topic: ShapeTopic, tmp_path: Path
) -> None:
    for number in range(40):
        topic.put(f"{number}", {"text": f"{number}" * 100_000})
    topic.flush()
    size = sum(len(row["text"]) for row in topic.state.values())

    async def run(server: ShapeServer) -> None:
        table = {"table": topic.name}
        pace = Pace(piece_bytes=8_192, rest_seconds=2.0)
        async with Follower(server.host, server.port, table) as quick:
            await quick.wait_rows(topic.rows())
            before = server.rss_bytes()
            slow = [Follower(server.host, server.port, table, pace=pace) for _ in range(40)]
            for one in slow:
                await one.__aenter__()
            topic.put("last", {"text": "end"})
            topic.flush()
            await quick.wait_rows(topic.rows(), 10)
            assert server.rss_bytes() - before < 40 * size / 4
            assert not any(one.is_current for one in slow)
            for one in slow:
                await one.__aexit__()

    with ShapeServer(broker.bootstrap, tmp_path) as server:
        asyncio.run(run(server))
