"""Topics are made, described, changed and deleted by clients."""

import pytest

from tests.support.kafka_clients import AdminClient, KafkaClient, ProducerOptions
from tests.support.kafka_reading import read_all
from tests.support.kafka_server import ServerProcess


def _produce(client: KafkaClient, server: ServerProcess, topic: str, *values: bytes) -> None:
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        for value in values:
            producer.send((topic, 0), value)
        producer.flush()


def test_a_topic_is_made_and_described(admin: AdminClient, name: str) -> None:
    admin.create(name, 3, {"retention.ms": "123456", "cleanup.policy": "compact"})
    assert name in admin.topics()
    assert admin.partition_count(name) == 3
    configs = admin.configs(name)
    assert configs["retention.ms"] == "123456"
    assert configs["cleanup.policy"] == "compact"
    assert configs["segment.bytes"] == str(1 << 30)


def test_a_topic_is_not_made_twice(admin: AdminClient, name: str) -> None:
    admin.create(name)
    with pytest.raises(Exception, match=r"(?i)exists"):
        admin.create(name)


def test_settings_of_a_topic_are_altered(admin: AdminClient, name: str) -> None:
    admin.create(name, 1, {"retention.ms": "123456"})
    admin.alter_configs(name, {"retention.ms": "654321", "max.message.bytes": "2000"})
    configs = admin.configs(name)
    assert configs["retention.ms"] == "654321"
    assert configs["max.message.bytes"] == "2000"


def test_a_wrong_setting_is_refused(admin: AdminClient, name: str) -> None:
    with pytest.raises(Exception, match=r"(?i)config|InvalidConfiguration"):
        admin.create(name, 1, {"retention.ms": "soon"})
    assert name not in admin.topics()


def test_added_partitions_are_written_and_read(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, 1)
    _produce(client, server, name, b"0")
    admin.add_partitions(name, 3)
    assert admin.partition_count(name) == 3
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        for number in range(3):
            producer.send((name, number), b"new")
        producer.flush()
    read_all(client, server.bootstrap, [(name, number) for number in range(3)], 4)


def test_deleted_records_are_gone_and_offsets_stay(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name)
    _produce(client, server, name, b"0", b"1", b"2", b"3")
    assert (admin.earliest((name, 0)), admin.latest((name, 0))) == (0, 4)
    assert admin.delete_records((name, 0), 3) == 3
    assert (admin.earliest((name, 0)), admin.latest((name, 0))) == (3, 4)
    (found,) = read_all(client, server.bootstrap, [(name, 0)], 1)
    assert (found.offset, found.value) == (3, b"3")


def test_a_deleted_topic_leaves_nothing_to_its_successor(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name)
    _produce(client, server, name, b"old", b"old")
    admin.delete(name)
    assert name not in admin.topics()
    admin.create(name)
    _produce(client, server, name, b"new")
    (found,) = read_all(client, server.bootstrap, [(name, 0)], 1)
    assert (found.offset, found.value) == (0, b"new")


def test_a_successor_has_an_id_of_its_own(admin: AdminClient, name: str) -> None:
    admin.create(name)
    before = admin.topic_id(name)
    admin.delete(name)
    admin.create(name)
    assert admin.topic_id(name) != before


def test_a_producer_goes_on_with_the_successor_of_its_topic(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name)
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        producer.send((name, 0), b"old")
        producer.flush()
        admin.delete(name)
        admin.create(name)
        sent = producer.send((name, 0), b"new")
        producer.flush()
        assert sent.result(0) == 0
    (found,) = read_all(client, server.bootstrap, [(name, 0)], 1)
    assert found.value == b"new"
