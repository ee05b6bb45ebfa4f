"""Two thousand clients at once: each ends with exactly the topic's state."""

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import MODES, Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, ShapeTopic
from tests.support.shape_traffic import Traffic

NPM_COUNT: Final = 200
LIGHT_COUNT: Final = 1_800
FILTERS: Final[dict[str, Callable[[Row], bool]]] = {
    "": lambda row: True,
    "state = 'moving'": lambda row: bool(row["state"] == "moving"),
    "state = 'waiting'": lambda row: bool(row["state"] == "waiting"),
    "grams > 10000": lambda row: bool(row["grams"] > 10_000),
}


@pytest.mark.node
@pytest.mark.timeout(120)
def test_a_crowd_of_clients_follows_four_shapes(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(40)
    kind_count = len(FILTERS) * len(MODES)
    with Audience(shape_server.host, shape_server.port, npm) as audience:
        for where, is_wanted in FILTERS.items():
            audience.join(
                {"table": topic.name, **({"where": where} if where else {})},
                partial(topic.rows, is_wanted),
                light_count=LIGHT_COUNT // kind_count,
                npm_count=NPM_COUNT // kind_count,
                resumes=False,
            )
        for _ in range(3):
            traffic.change(20)
            audience.settle()
        assert audience.client_count == LIGHT_COUNT + NPM_COUNT
        assert audience.refetch_count() == 0
        assert audience.errors() == []
