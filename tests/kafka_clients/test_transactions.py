"""Transactions: whole or not there, one producer per id, and offsets that go with the records."""

import random
import threading

import pytest

from tests.support.kafka_clients import (
    AdminClient,
    ConsumerOptions,
    Fenced,
    KafkaClient,
    ProducerOptions,
)
from tests.support.kafka_proxy import Fault
from tests.support.kafka_reading import QUIET_SECONDS, read_all, read_count
from tests.support.kafka_server import ServerProcess
from varve.wire import ApiKey

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def _values(client: KafkaClient, server: ServerProcess, topic: str, count: int) -> list[bytes]:
    """Committed values of two partitions, those of the first before those of the second."""
    found = read_all(
        client, server.bootstrap, [(topic, 0), (topic, 1)], count, isolation="read_committed"
    )
    return [one.value or b"" for one in sorted(found, key=lambda one: (one.partition, one.offset))]


def test_only_committed_records_are_seen_by_those_who_read_committed(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, 2)
    options = ProducerOptions(transactional_id=name)
    with client.producer(server.bootstrap, options) as producer:
        for at in range(4):
            producer.begin()
            for number in range(2):
                producer.send((name, number), b"%d" % at)
            producer.flush()
            if at % 2:
                producer.abort()
            else:
                producer.commit()
    assert _values(client, server, name, 4) == [b"0", b"2", b"0", b"2"]
    seen = read_all(client, server.bootstrap, [(name, 0)], 4)
    assert [one.value for one in seen] == [b"0", b"1", b"2", b"3"]


def test_an_open_transaction_holds_back_what_follows_it(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name)
    with (
        client.producer(server.bootstrap, ProducerOptions(transactional_id=name)) as producer,
        client.producer(server.bootstrap, ProducerOptions()) as other,
        client.consumer(server.bootstrap, ConsumerOptions(isolation="read_committed")) as reader,
    ):
        reader.assign({(name, 0): "beginning"})
        producer.begin()
        producer.send((name, 0), b"open")
        producer.flush()
        other.send((name, 0), b"after")
        other.flush()
        assert admin.latest((name, 0), "read_committed") == 0
        assert admin.latest((name, 0)) == 2
        assert reader.poll(QUIET_SECONDS) == []
        producer.commit()
        assert [one.value for one in read_count(reader, 2)] == [b"open", b"after"]
        assert admin.latest((name, 0), "read_committed") == 3


def test_a_newer_producer_fences_the_one_before(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, 2)
    options = ProducerOptions(transactional_id=name)
    with client.producer(server.bootstrap, options) as older:
        older.begin()
        older.send((name, 0), b"older")
        older.flush()
        with client.producer(server.bootstrap, options) as newer:
            newer.begin()
            newer.send((name, 1), b"newer")
            with pytest.raises(Fenced):
                older.commit()
            newer.commit()
    assert _values(client, server, name, 1) == [b"newer"]


def test_a_transaction_that_is_open_too_long_is_aborted(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name)
    options = ProducerOptions(transactional_id=name, transaction_timeout_ms=1000)
    with (
        client.producer(server.bootstrap, options) as producer,
        client.producer(server.bootstrap, ProducerOptions()) as other,
        client.consumer(server.bootstrap, ConsumerOptions(isolation="read_committed")) as reader,
    ):
        producer.begin()
        producer.send((name, 0), b"too long")
        producer.flush()
        other.send((name, 0), b"after")
        other.flush()
        reader.assign({(name, 0): "beginning"})
        assert [one.value for one in read_count(reader, 1)] == [b"after"]


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
def test_offsets_are_committed_with_the_records_made_from_them(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str, is_committed: bool
) -> None:
    source, result = f"{name}-in", f"{name}-out"
    admin.create(source)
    admin.create(result, 2)
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        for at in range(5):
            producer.send((source, 0), b"%d" % at)
        producer.flush()
    with (
        client.consumer(server.bootstrap, ConsumerOptions(group=name)) as consumer,
        client.producer(server.bootstrap, ProducerOptions(transactional_id=name)) as producer,
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
    assert sorted(_values(client, server, result, count)) == [
        b"made of %d" % at for at in range(count)
    ]
    assert admin.group_offsets(name) == {(source, 0): count}


@pytest.mark.parametrize(
    "api",
    [ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID],
    ids=lambda api: api.name.lower(),
)
def test_a_transaction_survives_lost_answers(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str, api: ApiKey
) -> None:
    admin.create(name, 2)
    lock, source, left = threading.Lock(), random.Random(name), 3

    def decide(asked: ApiKey) -> Fault:
        nonlocal left
        with lock:
            if asked is not api or not left or (left < 3 and source.random() < 0.4):
                return Fault.NONE
            left -= 1
            return Fault.CUT_AFTER

    server.proxy.heal()
    server.proxy.decide = decide
    with client.producer(server.proxied, ProducerOptions(transactional_id=name)) as producer:
        for at in range(6):
            producer.begin()
            for number in range(2):
                producer.send((name, number), b"%d" % at)
            if at % 3 == 2:
                producer.abort()
            else:
                producer.commit()
        server.proxy.heal()
    assert _values(client, server, name, 8) == [b"0", b"1", b"3", b"4"] * 2
