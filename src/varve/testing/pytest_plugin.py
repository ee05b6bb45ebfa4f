"""Fixtures for pytest: `varve_store`, a `VirtualStore`, and `varve_kafka`, a `KafkaKit`.

pytest finds them wherever varve is installed. When the test ends each checks the invariants of its
store. docs/how-to/test-your-program.md

Invariant  every start of pytest imports this module, so it imports no part of varve but the errors;
           a fixture imports what it needs when a test asks for it.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from varve.foundation.settings import GivenValue
    from varve.testing.kafka_kit import KafkaKit
    from varve.testing.virtual_store import VirtualStore


@pytest.fixture
def varve_settings() -> "Mapping[str, GivenValue]":
    """The settings of the store; override this fixture in a test module or conftest."""
    return {}


@pytest.fixture
def varve_store(varve_settings: "Mapping[str, GivenValue]") -> "Iterator[VirtualStore]":
    """A store in memory with a manual clock; every invariant is checked at the end."""
    from varve.testing.virtual_store import VirtualStore

    with VirtualStore(settings=varve_settings) as kit:
        yield kit


@pytest.fixture
def varve_kafka(varve_settings: "Mapping[str, GivenValue]") -> "Iterator[KafkaKit]":
    """A server on loopback for any Kafka client; every invariant is checked at the end."""
    from varve.testing.kafka_kit import KafkaKit

    with KafkaKit(settings=varve_settings) as kit:
        yield kit
