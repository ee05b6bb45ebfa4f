"""The unmodified npm client ends with exactly the topic's state, by long poll and by SSE.

Carries S1.
"""

from collections.abc import Callable

import pytest

from tests.support.npm_clients import NpmClients
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, ShapeTopic
from tests.support.shape_traffic import Traffic

pytestmark = pytest.mark.node

MODES = pytest.mark.parametrize("is_sse", [False, True], ids=["long-poll", "sse"])


def _is_moving(row: Row) -> bool:
    return bool(row["state"] == "moving")


@MODES
def test_a_client_gets_the_state_then_every_change(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, *, is_sse: bool
) -> None:
    traffic = Traffic(topic)
    traffic.add(200)
    traffic.change(300)
    name = topic.name
    npm.follow(name, url=shape_server.url, params={"table": name}, liveSse=is_sse)
    npm.wait(topic.rows(), name)
    for _ in range(5):
        traffic.change(20)
        npm.wait(topic.rows(), name)
    facts = npm.facts(name)
    assert set(facts["statuses"]) == {"200"}
    assert (facts["sse"] > 0) == is_sse
    npm.leave(name, refetches=0)


@MODES
def test_a_shape_of_an_empty_topic_fills(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, *, is_sse: bool
) -> None:
    name = topic.name
    npm.follow(name, url=shape_server.url, params={"table": name}, liveSse=is_sse)
    npm.wait({}, name)
    Traffic(topic).add(10)
    npm.wait(topic.rows(), name)
    assert npm.facts(name)["requests"] < 20
    npm.stop(name)


def test_rows_enter_and_leave_a_filter(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(100)
    table = {"table": topic.name}
    name, other = f"{topic.name}-literal", f"{topic.name}-parameter"
    npm.follow(name, url=shape_server.url, params={**table, "where": "state = 'moving'"})
    asked = {**table, "where": "state = $1 AND grams > $2", "params": {"1": "moving", "2": "9000"}}
    npm.follow(other, url=shape_server.url, params=asked)
    for _ in range(3):
        traffic.change(50)
        npm.wait(topic.rows(_is_moving), name)
        npm.wait(topic.rows(lambda row: _is_moving(row) and row["grams"] > 9000), other)
    npm.stop(name, other)


@pytest.mark.parametrize("replica", ["default", "full"])
def test_columns_are_chosen_in_each_replica_mode(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, replica: str
) -> None:
    traffic = Traffic(topic)
    traffic.add(50)
    name = topic.name
    asked = {"table": name, "columns": ["key", "state", "grams"], "replica": replica}
    npm.follow(name, url=shape_server.url, params=asked)
    for _ in range(3):
        npm.wait(
            {
                key: {"key": row["key"], "state": row["state"], "grams": row["grams"]}
                for key, row in topic.rows().items()
            },
            name,
        )
        traffic.change(30)
    npm.leave(name)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_by_keys", [False, True], ids=["where", "many keys"])
def test_a_part_is_asked_for_and_kept_up_to_date(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, method: str, *, is_by_keys: bool
) -> None:
    traffic = Traffic(topic)
    traffic.add(60)
    name = topic.name
    npm.follow(
        name, url=shape_server.url, params={"table": name}, log="changes_only", subsetMethod=method
    )
    npm.wait({}, name)
    if is_by_keys:
        asked = sorted([row["key"] for row in topic.rows().values()])[:40]
        npm.subset(name, where="key = ANY($1)", params={"1": "{" + ",".join(asked) + "}"})
        npm.wait(topic.rows(lambda row: row["key"] in asked), name)
    else:
        npm.subset(name, where="grams > $1", params={"1": "1"}, orderBy="key ASC", limit=1000)
        npm.wait(topic.rows(), name)
        traffic.change(30)
        npm.wait(topic.rows(), name)
    npm.leave(name)


def test_partitions_come_together_in_one_shape(
    shape_server: ShapeServer, make_topic: Callable[..., ShapeTopic], npm: NpmClients
) -> None:
    topic = make_topic(partition_count=3)
    traffic = Traffic(topic)
    traffic.add(100)
    npm.follow(topic.name, url=shape_server.url, params={"table": topic.name})
    for _ in range(3):
        npm.wait(topic.rows(), topic.name)
        traffic.change(100)
    npm.wait(topic.rows(), topic.name)
    npm.stop(topic.name)


def test_what_is_wrong_reaches_the_app(shape_server: ShapeServer, npm: NpmClients) -> None:
    npm.follow("wrong", url=shape_server.url, params={"table": "parcels", "where": "state ="})
    with pytest.raises(AssertionError, match="1 of 1 clients are behind"):
        npm.wait({}, "wrong", seconds=20)
    (error,) = npm.facts("wrong")["errors"]
    assert "400" in error
    assert "where" in error
    npm.stop("wrong")
