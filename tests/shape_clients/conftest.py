"""A broker and a server of shapes per session, and the clients that follow them."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kafka_server import ServerMaker, ServerProcess
from tests.support.npm_clients import NpmClients
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic

_numbers = itertools.count()
_TIGHT = (
    "chunk.bytes=4000",
    "checkpoint.ms=50",
    "max.poll.records=7",
    "max.unflushed.rows=20",
    "maintenance.interval.ms=100",
    "http.long.poll.ms=700",
    "http.events.ms=1500",
    "http.shared.response.bytes=1",
    "http.allowed.origins=*",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Connections that Kafka clients of other tests left open are collected here."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerMaker() as maker, maker.start(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="session")
def shape_server(
    broker: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShapeServer]:
    with ShapeServer(broker.bootstrap, tmp_path_factory.mktemp("shapes")) as server:
        yield server


@pytest.fixture(scope="session")
def mortal_server(
    broker: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShapeServer]:
    """A server that tests may kill, and must start again; all it does is in small pieces."""
    given = [f"--set=shapes.{one}" for one in _TIGHT]
    with ShapeServer(broker.bootstrap, tmp_path_factory.mktemp("mortal"), *given) as server:
        yield server


@pytest.fixture(scope="session")
def npm() -> Iterator[NpmClients]:
    with NpmClients() as clients:
        yield clients


@pytest.fixture
def make_topic(broker: ServerProcess) -> Callable[..., ShapeTopic]:
    """Makes a topic of this broker that no other test has."""

    def make(*, partition_count: int = 1) -> ShapeTopic:
        name = f"parcels{next(_numbers)}"
        return ShapeTopic(broker.bootstrap, name, partition_count=partition_count)

    return make


@pytest.fixture
def topic(make_topic: Callable[..., ShapeTopic]) -> ShapeTopic:
    return make_topic()
