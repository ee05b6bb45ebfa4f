"""Topics are made, described, changed and deleted by clients."""

import pytest

from tests.support.kafka_reading import Lab


def test_a_topic_is_made_and_described(lab: Lab, name: str) -> None:
    lab.admin.create(name, 3, {"retention.ms": "123456", "cleanup.policy": "compact"})
    assert name in lab.admin.topics()
    assert lab.admin.partition_count(name) == 3
    configs = lab.admin.configs(name)
    assert configs["retention.ms"] == "123456"
    assert configs["cleanup.policy"] == "compact"
    assert configs["segment.bytes"] == str(1 << 30)


def test_a_topic_is_not_made_twice(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    with pytest.raises(Exception, match=r"(?i)exists"):
        lab.admin.create(name)


def test_settings_of_a_topic_are_altered(lab: Lab, name: str) -> None:
    lab.admin.create(name, 1, {"retention.ms": "123456"})
    lab.admin.alter_configs(name, {"retention.ms": "654321", "max.message.bytes": "2000"})
    configs = lab.admin.configs(name)
    assert configs["retention.ms"] == "654321"
    assert configs["max.message.bytes"] == "2000"


def test_a_wrong_setting_is_refused(lab: Lab, name: str) -> None:
    with pytest.raises(Exception, match=r"(?i)config|InvalidConfiguration"):
        lab.admin.create(name, 1, {"retention.ms": "soon"})
    assert name not in lab.admin.topics()


def test_added_partitions_are_written_and_read(lab: Lab, name: str) -> None:
    lab.admin.create(name, 1)
    lab.write(name, b"0")
    lab.admin.add_partitions(name, 3)
    assert lab.admin.partition_count(name) == 3
    with lab.producer() as producer:
        for number in range(3):
            producer.send((name, number), b"new")
        producer.flush()
    lab.read(name, 4, partitions=range(3))


def test_deleted_records_are_gone_and_offsets_stay(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    lab.write(name, b"0", b"1", b"2", b"3")
    assert (lab.admin.earliest((name, 0)), lab.admin.latest((name, 0))) == (0, 4)
    assert lab.admin.delete_records((name, 0), 3) == 3
    assert (lab.admin.earliest((name, 0)), lab.admin.latest((name, 0))) == (3, 4)
    (found,) = lab.read(name, 1)
    assert (found.offset, found.value) == (3, b"3")


def test_a_deleted_topic_leaves_nothing_to_its_successor(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    lab.write(name, b"old", b"old")
    lab.admin.delete(name)
    assert name not in lab.admin.topics()
    lab.admin.create(name)
    lab.write(name, b"new")
    (found,) = lab.read(name, 1)
    assert (found.offset, found.value) == (0, b"new")


def test_a_successor_has_an_id_of_its_own(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    before = lab.admin.topic_id(name)
    lab.admin.delete(name)
    lab.admin.create(name)
    assert lab.admin.topic_id(name) != before


def test_a_producer_goes_on_with_the_successor_of_its_topic(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    with lab.producer() as producer:
        producer.send((name, 0), b"old")
        producer.flush()
        lab.admin.delete(name)
        lab.admin.create(name)
        sent = producer.send((name, 0), b"new")
        producer.flush()
        assert sent.result(0) == 0
    (found,) = lab.read(name, 1)
    assert found.value == b"new"
