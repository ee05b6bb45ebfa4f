"""Apache Kafka, servers of shapes beside it, and clients of npm; skipped where one is missing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.toolchain import Toolchain
from tests.support.kafka_server import ServerMaker, ServerProcess
from tests.support.npm_clients import NpmClients
from tests.support.shape_server import ShapeServer
from tests.support.web_setup import find_missing

LIFE_SECONDS = 900.0


@pytest.fixture(scope="session")
def npm() -> Iterator[NpmClients]:
    missing = find_missing().get("node")
    if missing is not None:
        pytest.skip(f"shapes are not read by clients of npm: there is no {missing}")
    with NpmClients() as clients:
        yield clients


@pytest.fixture(scope="session")
def kafka(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that tests may stop or kill, and must start again."""
    home = tmp_path_factory.mktemp("kafka")
    with Broker(toolchain, home, life_seconds=LIFE_SECONDS) as made:
        made.format()
        made.start()
        yield made


@pytest.fixture(scope="module")
def broker(
    server_maker: ServerMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """varve's own server."""
    with server_maker.start(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def serve(kafka: Broker, tmp_path: Path) -> Iterator[Callable[..., ShapeServer]]:
    """Starts a server of shapes of Kafka's topics, with options; it is ended with the test."""
    made: list[ShapeServer] = []

    def start(*options: str) -> ShapeServer:
        made.append(ShapeServer(kafka.address, tmp_path, *options))
        return made[-1]

    yield start
    for one in made:
        one.__exit__()
