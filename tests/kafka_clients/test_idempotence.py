"""Answers are lost and connections are cut, yet every record is there once and in order."""

import random
import threading

import pytest

from tests.support.kafka_proxy import Decide, Fault
from tests.support.kafka_reading import Lab
from varve.wire import ApiKey

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

COUNT = 150
# A broker knows the last five batches of a producer; a busy machine must not time out more.
REQUEST_TIMEOUT_MS = 1_500
PARTITIONS = 2


def _some_of(fault: Fault, source: random.Random, *, fault_max: int) -> Decide:
    """A share of the produce requests has the fault, the first one for sure."""
    lock = threading.Lock()
    left = fault_max

    def decide(api: ApiKey) -> Fault:
        nonlocal left
        with lock:
            if api is not ApiKey.PRODUCE or not left:
                return Fault.NONE
            if left < fault_max and source.random() < 0.5:
                return Fault.NONE
            left -= 1
            return fault

    return decide


@pytest.mark.parametrize(
    ("fault", "fault_max"),
    [(Fault.CUT_AFTER, 6), (Fault.CUT_BEFORE, 6), (Fault.LOSE_ANSWER, 2)],
    ids=lambda value: value.name.lower() if isinstance(value, Fault) else "",
)
def test_retries_of_an_idempotent_producer_leave_neither_duplicates_nor_gaps(
    lab: Lab, name: str, fault: Fault, fault_max: int
) -> None:
    lab.admin.create(name, PARTITIONS)
    lab.server.proxy.heal()
    options = {"is_idempotent": True, "request_timeout_ms": REQUEST_TIMEOUT_MS}
    with lab.producer(lab.server.proxied, **options) as producer:
        lab.server.proxy.decide = _some_of(fault, random.Random(name), fault_max=fault_max)
        sent = []
        for at in range(COUNT):
            sent.append(producer.send((name, at % PARTITIONS), b"%d" % at))
            if at % 30 == 0:
                producer.flush()
        producer.flush()
        assert lab.server.proxy.fault_count >= min(2, fault_max)
        lab.server.proxy.heal()
    found = lab.read(name, partitions=(0, 1), count=COUNT)
    for number in range(PARTITIONS):
        values = [one.value for one in found if one.partition == number]
        assert values == [b"%d" % at for at in range(number, COUNT, PARTITIONS)]
    offsets = {(one.partition, one.value): one.offset for one in found}
    for at, one in enumerate(sent):
        assert one.result(0) in (offsets[at % PARTITIONS, b"%d" % at], -1)
