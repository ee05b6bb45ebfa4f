"""A server per module, and Apache Kafka's tools and clients that talk to it."""

from collections.abc import Iterator

import pytest

from tests.conformance.tools.kafka_tools import KafkaTools
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain
from tests.support.kafka_server import ServerMaker, ServerProcess

CLIENT_SHELL = "varve.conformance.ClientShell"


@pytest.fixture(scope="session")
def tools(toolchain: Toolchain) -> Iterator[KafkaTools]:
    with KafkaTools(toolchain) as tools:
        yield tools


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
