"""Transactions: whole or not there, one producer per id, and offsets that go with the records."""

import random
import threading

import pytest

from tests.support.kafka_clients import Fenced
from tests.support.kafka_proxy import Fault
from tests.support.kafka_reading import QUIET_SECONDS, Lab, read_count
from varve.wire import ApiKey

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def _values(lab: Lab, topic: str, count: int) -> list[bytes]:
    """Committed values of two partitions, those of the first before those of the second."""
    found = lab.read(topic, count, partitions=(0, 1), isolation="read_committed")
    return [one.value or b"" for one in sorted(found, key=lambda one: (one.partition, one.offset))]


def test_only_committed_records_are_seen_by_those_who_read_committed(lab: Lab, name: str) -> None:
    lab.admin.create(name, 2)
    with lab.producer(transactional_id=name) as producer:
        for at in range(4):
            producer.begin()
            for number in range(2):
                producer.send((name, number), b"%d" % at)
            producer.flush()
            if at % 2:
                producer.abort()
            else:
                producer.commit()
    assert _values(lab, name, 4) == [b"0", b"2", b"0", b"2"]
    seen = lab.read(name, 4)
    assert [one.value for one in seen] == [b"0", b"1", b"2", b"3"]


def test_an_open_transaction_holds_back_what_follows_it(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    with (
        lab.producer(transactional_id=name) as producer,
        lab.consumer(isolation="read_committed") as reader,
    ):
        reader.assign({(name, 0): "beginning"})
        producer.begin()
        producer.send((name, 0), b"open")
        producer.flush()
        lab.write(name, b"after")
        assert lab.admin.latest((name, 0), "read_committed") == 0
        assert lab.admin.latest((name, 0)) == 2
        assert reader.poll(QUIET_SECONDS) == []
        producer.commit()
        assert [one.value for one in read_count(reader, 2)] == [b"open", b"after"]
        assert lab.admin.latest((name, 0), "read_committed") == 3


def test_a_newer_producer_fences_the_one_before(lab: Lab, name: str) -> None:
    lab.admin.create(name, 2)
    with lab.producer(transactional_id=name) as older:
        older.begin()
        older.send((name, 0), b"older")
        older.flush()
        with lab.producer(transactional_id=name) as newer:
            newer.begin()
            newer.send((name, 1), b"newer")
            with pytest.raises(Fenced):
                older.commit()
            newer.commit()
    assert _values(lab, name, 1) == [b"newer"]


def test_a_transaction_that_is_open_too_long_is_aborted(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    with (
        lab.producer(transactional_id=name, transaction_timeout_ms=1000) as producer,
        lab.consumer(isolation="read_committed") as reader,
    ):
        producer.begin()
        producer.send((name, 0), b"too long")
        producer.flush()
        lab.write(name, b"after")
        reader.assign({(name, 0): "beginning"})
        assert [one.value for one in read_count(reader, 1)] == [b"after"]


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
def test_offsets_are_committed_with_the_records_made_from_them(
    lab: Lab, name: str, is_committed: bool
) -> None:
    source, result = f"{name}-in", f"{name}-out"
    lab.admin.create(source)
    lab.admin.create(result, 2)
    lab.write(source, *(b"%d" % at for at in range(5)))
    with (
        lab.consumer(group=name) as consumer,
        lab.producer(transactional_id=name) as producer,
    ):
        consumer.subscribe(source)
        for one in read_count(consumer, 5):
            producer.begin()
            producer.send((result, one.offset % 2), b"made of " + (one.value or b""))
            producer.send_offsets({(source, 0): one.offset + 1}, consumer, name)
            if is_committed or one.offset < 2:
                producer.commit()
            else:
                producer.abort()
        assert consumer.committed((source, 0)) == (5 if is_committed else 2)
    count = 5 if is_committed else 2
    assert sorted(_values(lab, result, count)) == [b"made of %d" % at for at in range(count)]
    assert lab.admin.group_offsets(name) == {(source, 0): count}


@pytest.mark.parametrize(
    "api",
    [ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID],
    ids=lambda api: api.name.lower(),
)
def test_a_transaction_survives_lost_answers(lab: Lab, name: str, api: ApiKey) -> None:
    lab.admin.create(name, 2)
    lock, source, left = threading.Lock(), random.Random(name), 3

    def decide(asked: ApiKey) -> Fault:
        nonlocal left
        with lock:
            if asked is not api or not left or (left < 3 and source.random() < 0.4):
                return Fault.NONE
            left -= 1
            return Fault.CUT_AFTER

    lab.server.proxy.heal()
    lab.server.proxy.decide = decide
    with lab.producer(lab.server.proxied, transactional_id=name) as producer:
        for at in range(6):
            producer.begin()
            for number in range(2):
                producer.send((name, number), b"%d" % at)
            if at % 3 == 2:
                producer.abort()
            else:
                producer.commit()
        lab.server.proxy.heal()
    assert _values(lab, name, 8) == [b"0", b"1", b"3", b"4"] * 2
