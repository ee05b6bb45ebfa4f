"""What several folders share: Apache Kafka, varve's own servers, names that no other test has."""

import itertools
from collections.abc import Iterator

import pytest

from tests.conformance.tools.toolchain import Toolchain, ToolchainMissing, prepare_toolchain
from tests.support.kafka_server import ServerMaker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """Java with Apache Kafka on its class path; skips with the reason when it is out of reach."""
    try:
        return prepare_toolchain()
    except ToolchainMissing as missing:
        pytest.skip(f"not compared with Apache Kafka: {missing}")


@pytest.fixture(scope="session")
def server_maker() -> Iterator[ServerMaker]:
    with ServerMaker() as maker:
        yield maker


@pytest.fixture
def name() -> str:
    """For a topic, a table, a group or a producer."""
    return f"name{next(_numbers)}"
