"""Fixtures for pytest: `varve_kit`, a `VirtualStore`, and `varve_kafka`, a `KafkaKit`.

Both are checked when the test ends.

In a conftest: `pytest_plugins = ["varve.testing.pytest_plugin"]`. docs/testing.md
"""

from collections.abc import Iterator, Mapping

import pytest

from varve.foundation.settings import GivenValue
from varve.testing.kafka_kit import KafkaKit
from varve.testing.virtual_store import VirtualStore


@pytest.fixture
def varve_settings() -> Mapping[str, GivenValue]:
    """The settings of a kit's store; a test module or conftest may have its own."""
    return {}


@pytest.fixture
def varve_kit(varve_settings: Mapping[str, GivenValue]) -> Iterator[VirtualStore]:
    """A store in memory with a clock of its own; every invariant is checked at the end."""
    with VirtualStore(settings=varve_settings) as kit:
        yield kit


@pytest.fixture
def varve_kafka(varve_settings: Mapping[str, GivenValue]) -> Iterator[KafkaKit]:
    """A server on loopback for any client of Kafka; every invariant is checked at the end."""
    with KafkaKit(settings=varve_settings) as kit:
        yield kit
