"""A server per module, and the clients that talk to it."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.kafka_aio import AioClient
from tests.support.kafka_clients import AdminClient, KafkaClient
from tests.support.kafka_confluent import ConfluentClient
from tests.support.kafka_python import PythonClient
from tests.support.kafka_reading import Lab
from tests.support.kafka_server import ServerMaker, ServerProcess

CLIENTS: dict[str, Callable[[], KafkaClient]] = {
    "confluent": ConfluentClient,
    "kafka-python": PythonClient,
    "aiokafka": AioClient,
}


@pytest.fixture(scope="session")
def server_maker() -> Iterator[ServerMaker]:
    with ServerMaker() as maker:
        yield maker


@pytest.fixture(scope="module")
def server(
    server_maker: ServerMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with server_maker.start(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Iterator[KafkaClient]:
    one = CLIENTS[request.param]()
    yield one
    one.close()


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, KafkaClient]]:
    """All of them, by name."""
    made = {name: make() for name, make in CLIENTS.items()}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture(scope="module")
def admin(client: KafkaClient, server: ServerProcess) -> Iterator[AdminClient]:
    with client.admin(server.bootstrap) as one:
        yield one


@pytest.fixture(scope="module")
def lab(client: KafkaClient, server: ServerProcess, admin: AdminClient) -> Lab:
    return Lab(client, server, admin)


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test of this server has, for a topic, a group or a producer."""
    return f"name-{next(_numbers)}"
