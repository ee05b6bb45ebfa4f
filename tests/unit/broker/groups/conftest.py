"""A broker with a topic."""

from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    """With a topic `events` of four partitions."""
    with BrokerKit() as kit:
        kit.make_topic("events", partitions=4)
        yield kit
