"""A server per module, and Apache Kafka's tools and clients that talk to it."""

import itertools
from collections.abc import Iterator

import pytest

from tests.conformance.tools.kafka_tools import KafkaTools
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain, ToolchainMissing, prepare_toolchain
from tests.support.kafka_server import ServerMaker, ServerProcess

CLIENT_SHELL = "varve.conformance.ClientShell"


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """Java with Apache Kafka on its class path."""
    try:
        return prepare_toolchain()
    except ToolchainMissing as missing:
        pytest.skip(f"not run with Apache Kafka's clients: {missing}")


@pytest.fixture(scope="session")
def tools(toolchain: Toolchain) -> Iterator[KafkaTools]:
    with KafkaTools(toolchain) as tools:
        yield tools


@pytest.fixture(scope="session")
def server_maker() -> Iterator[ServerMaker]:
    with ServerMaker() as maker:
        yield maker


@pytest.fixture(scope="module")
def server(
    server_maker: ServerMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with server_maker.start(
        tmp_path_factory.mktemp("served"),
        varve_authorizer_enable="true",
        super_users="User:ANONYMOUS",
        group_consumer_heartbeat_interval_ms="500",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def clients(toolchain: Toolchain, server: ServerProcess) -> Iterator[JavaShell]:
    """Kafka's own producers, consumers and admin client."""
    with JavaShell(toolchain, CLIENT_SHELL, server.bootstrap) as shell:
        yield shell


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test has, for a topic, a group or a producer."""
    return f"name-{next(_numbers)}"
