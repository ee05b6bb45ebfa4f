"""A broker that goes away and comes back: clients wait, then have exactly the topic's state."""

from pathlib import Path

import pytest

from tests.support.kafka_server import ServerMaker
from tests.support.npm_clients import NpmClients
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic


@pytest.mark.node
def test_clients_outlive_the_broker_and_the_server_stops_without_it(
    tmp_path: Path, npm: NpmClients
) -> None:
    with ServerMaker() as maker, maker.start(tmp_path / "broker") as broker:
        (tmp_path / "shapes").mkdir()
        with ShapeServer(broker.bootstrap, tmp_path / "shapes") as server:
            topic = ShapeTopic(broker.bootstrap, "away")
            traffic = Traffic(topic)
            traffic.add(50)
            names = ["away-poll", "away-sse"]
            for name in names:
                is_sse = name == "away-sse"
                npm.follow(name, url=server.url, params={"table": "away"}, liveSse=is_sse)
            npm.wait(topic.rows(), *names)
            broker.kill()
            npm.follow("away-late", url=server.url, params={"table": "away"})
            npm.wait(topic.rows(), *names, "away-late")
            broker.start()
            traffic.change(50)
            npm.wait(topic.rows(), *names, "away-late")
            npm.leave(*names, "away-late", refetches=0)
            broker.kill()
            server.stop()
