"""Everything at once, in any order: every client ends with exactly the topic's state.

Carries S1.
"""

import random
from collections.abc import Callable
from typing import Final

import pytest

from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import MODES, Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, Rows, ShapeTopic
from tests.support.shape_traffic import Traffic

STEP_COUNT: Final = 14
KILL_COUNT: Final = 2
WHERE: Final = "state <> 'arrived' AND grams >= 5000"


class Storm:
    """A topic and two shapes of it, with clients of both kinds that come and go."""

    def __init__(self, server: ShapeServer, topic: ShapeTopic, audience: Audience) -> None:
        self._server = server
        self._topic = topic
        self._audience = audience
        self._random = random.Random(11)
        self._traffic = Traffic(topic)
        self._rotation_count = 0

    def join(self) -> None:
        """A client of each kind and mode, of either shape."""
        for is_sse in MODES:
            asked = self._asked()
            rows = self._filtered_rows if "where" in asked else self._topic.rows
            self._audience.join(asked, rows, modes=(is_sse,), resumes=False)

    def _asked(self) -> dict[str, str]:
        is_filtered = self._random.random() < 0.5
        return {"table": self._topic.name, **({"where": WHERE} if is_filtered else {})}

    def _filtered_rows(self) -> Rows:
        def is_wanted(row: Row) -> bool:
            return bool(row["state"] != "arrived" and row["grams"] >= 5000)

        return self._topic.rows(is_wanted)

    def change(self) -> None:
        self._traffic.change(self._random.randrange(1, 200))

    def compact(self) -> None:
        self._server.compact(self._handle())

    def rotate(self) -> None:
        self._rotation_count += 1
        self._server.rotate(self._handle())

    def _handle(self) -> str:
        """That of a shape that is served now, whatever clients know."""
        return self._server.ask_handle(**self._asked())

    def kill(self) -> None:
        self._server.kill()
        self.change()
        self._server.start()

    def settle(self) -> None:
        """Every client has exactly the rows."""
        self._audience.settle()

    def check(self) -> None:
        """Nobody has begun anew for anything but a rotation."""
        assert max(self._audience.refetch_counts()) <= self._rotation_count
        assert self._audience.errors() == []


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
    with Audience(mortal_server.host, mortal_server.port, npm) as audience:
        storm = Storm(mortal_server, topic, audience)
        draws = random.Random(partition_count)
        others = [storm.change, storm.compact, storm.rotate, storm.join, storm.settle]
        steps = [draws.choice(others) for _ in range(STEP_COUNT)] + [storm.kill] * KILL_COUNT
        draws.shuffle(steps)
        storm.change()
        storm.join()
        for step in steps:
            storm.change()
            step()
        storm.settle()
        storm.check()
