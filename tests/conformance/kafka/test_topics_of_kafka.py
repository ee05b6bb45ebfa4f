"""Apache Kafka keeps every promise of `varve.topics`: the contract suite once more."""

from collections.abc import Iterator

import pytest

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.toolchain import Toolchain

# All of the suite, also what is added to it later.
from tests.contract.topics.test_topics_contract import *  # noqa: F403
from tests.support.topics_bench import KafkaBench

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def broker(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(toolchain, tmp_path_factory.mktemp("kafka"), {}) as started:
        started.format()
        started.start()
        yield started


@pytest.fixture  # type: ignore[no-redef]  # takes the place of the suite's own
def bench(broker: Broker) -> Iterator[KafkaBench]:
    kafka = KafkaBench(broker.address)
    yield kafka
    kafka.close()
