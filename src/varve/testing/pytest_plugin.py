"""Fixtures for pytest: `varve_store`, a `VirtualStore`, and `varve_kafka`, a `KafkaKit`.

When the test ends each checks the invariants of its store. Enable them in a conftest:
`pytest_plugins = ["varve.testing.pytest_plugin"]`. docs/how-to/test-your-program.md
"""

from collections.abc import Iterator, Mapping

import pytest

from varve.foundation.settings import GivenValue
from varve.testing.kafka_kit import KafkaKit
from varve.testing.virtual_store import VirtualStore


@pytest.fixture
def varve_settings() -> Mapping[str, GivenValue]:
    """The settings of the store; override this fixture in a test module or conftest."""
    return {}


@pytest.fixture
def varve_store(varve_settings: Mapping[str, GivenValue]) -> Iterator[VirtualStore]:
    """A store in memory with a manual clock; every invariant is checked at the end."""
    with VirtualStore(settings=varve_settings) as kit:
        yield kit


@pytest.fixture
def varve_kafka(varve_settings: Mapping[str, GivenValue]) -> Iterator[KafkaKit]:
    """A server on loopback for any Kafka client; every invariant is checked at the end."""
    with KafkaKit(settings=varve_settings) as kit:
        yield kit
