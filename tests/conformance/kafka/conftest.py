"""Apache Kafka for tests marked `java`: fetched once, skipped with the reason when out of reach."""

from collections.abc import Iterator

import pytest

from conformance.recovery import LOG_SHELL
from conformance.shell import JavaShell
from conformance.toolchain import Toolchain, ToolchainMissing, prepare_toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """Java with Apache Kafka on its class path."""
    try:
        return prepare_toolchain()
    except ToolchainMissing as missing:
        pytest.skip(f"not compared with Apache Kafka: {missing}")


@pytest.fixture(scope="module")
def kafka_log(toolchain: Toolchain) -> Iterator[JavaShell]:
    """Apache Kafka's record code and partition log, without a broker."""
    with JavaShell(toolchain, LOG_SHELL) as shell:
        yield shell
