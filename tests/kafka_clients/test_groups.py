"""Groups: who reads what, what is committed, and what happens when members come and go.

Classic groups, in which a member assigns, and those of KIP-848, in which the broker does.
"""

import time
from collections.abc import Iterator, Sequence

import pytest

from tests.support.kafka_clients import (
    AdminClient,
    ConsumerClient,
    ConsumerOptions,
    GroupProtocol,
    KafkaClient,
    ProducerOptions,
)
from tests.support.kafka_members import count, poll_until, settle
from tests.support.kafka_server import ServerMaker, ServerProcess

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PARTITIONS = 6
SESSION_TIMEOUT_MS = 1_500
# The clients that have classic groups alone skip the others.
in_both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture(scope="module")
def server(
    server_maker: ServerMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Members are asked to say often that they are there, and missed soon."""
    with server_maker.start(
        tmp_path_factory.mktemp("served"),
        group_consumer_heartbeat_interval_ms="100",
        group_consumer_session_timeout_ms=str(SESSION_TIMEOUT_MS),
    ) as server:
        yield server


def _produce(client: KafkaClient, server: ServerProcess, topic: str, value: bytes) -> None:
    """One record to each partition."""
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        for number in range(PARTITIONS):
            producer.send((topic, number), value)
        producer.flush()


def _options(
    group: str, protocol: GroupProtocol = "classic", instance: str | None = None
) -> ConsumerOptions:
    return ConsumerOptions(
        group=group,
        instance=instance,
        protocol=protocol,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )


def _settle(members: Sequence[ConsumerClient]) -> None:
    settle(members, PARTITIONS)


@in_both_protocols
def test_members_share_partitions_as_they_join_and_leave(
    client: KafkaClient,
    server: ServerProcess,
    admin: AdminClient,
    name: str,
    protocol: GroupProtocol,
) -> None:
    admin.create(name, PARTITIONS)
    with (
        client.consumer(server.bootstrap, _options(name, protocol)) as first,
        client.consumer(server.bootstrap, _options(name, protocol)) as second,
    ):
        first.subscribe(name)
        _settle([first])
        second.subscribe(name)
        _settle([first, second])
        assert admin.group(name).member_count == 2
        third = client.consumer(server.bootstrap, _options(name, protocol))
        third.subscribe(name)
        _settle([first, second, third])
        _produce(client, server, name, b"to three")
        read = poll_until([first, second, third], lambda seen: count(seen) >= PARTITIONS)
        assert [len(part) for part in read] == [2, 2, 2]
        third.close()
        _settle([first, second])
    assert admin.group(name).state == "Empty"


@in_both_protocols
def test_partitions_of_a_crashed_member_go_to_the_others(
    client: KafkaClient,
    server: ServerProcess,
    admin: AdminClient,
    name: str,
    protocol: GroupProtocol,
) -> None:
    admin.create(name, PARTITIONS)
    server.proxy.heal()
    with (
        client.consumer(server.bootstrap, _options(name, protocol)) as survivor,
        client.consumer(server.proxied, _options(name, protocol)) as lost,
    ):
        survivor.subscribe(name)
        lost.subscribe(name)
        _settle([survivor, lost])
        server.proxy.cut_off()
        began = time.monotonic()
        _settle([survivor])
        took_ms = (time.monotonic() - began) * 1000
        assert took_ms >= SESSION_TIMEOUT_MS / 2
        assert admin.group(name).member_count == 1
        server.proxy.heal()


@in_both_protocols
def test_a_static_member_that_comes_back_keeps_its_partitions(
    client: KafkaClient,
    server: ServerProcess,
    admin: AdminClient,
    name: str,
    protocol: GroupProtocol,
) -> None:
    admin.create(name, PARTITIONS)
    with client.consumer(server.bootstrap, _options(name, protocol, "stays")) as stays:
        stays.subscribe(name)
        with client.consumer(server.bootstrap, _options(name, protocol, "returns")) as leaves:
            leaves.subscribe(name)
            _settle([stays, leaves])
            before = stays.assignment(), leaves.assignment()
        with client.consumer(server.bootstrap, _options(name, protocol, "returns")) as again:
            again.subscribe(name)
            _settle([stays, again])
            assert (stays.assignment(), again.assignment()) == before
            assert admin.group(name).member_count == 2


@in_both_protocols
def test_a_group_resumes_where_it_committed(
    client: KafkaClient,
    server: ServerProcess,
    admin: AdminClient,
    name: str,
    protocol: GroupProtocol,
) -> None:
    admin.create(name, PARTITIONS)
    for value in (b"0", b"1", b"2"):
        _produce(client, server, name, value)
    with client.consumer(server.bootstrap, _options(name, protocol)) as consumer:
        consumer.subscribe(name)
        poll_until([consumer], lambda seen: count(seen) == PARTITIONS * 3)
        assert consumer.committed((name, 0)) is None
        consumer.commit({(name, number): min(number, 3) for number in range(PARTITIONS)})
        assert consumer.committed((name, 1)) == 1
    assert admin.group(name).state == "Empty"
    assert admin.group_offsets(name)[(name, 2)] == 2
    with client.consumer(server.bootstrap, _options(name, protocol)) as consumer:
        consumer.subscribe(name)
        (found,) = poll_until([consumer], lambda seen: count(seen) >= 6)
    assert sorted((one.partition, one.offset) for one in found) == [
        (number, offset) for number in range(PARTITIONS) for offset in range(min(number, 3), 3)
    ]


def test_offsets_of_a_group_are_told_and_altered(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    for value in (b"0", b"1"):
        _produce(client, server, name, value)
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        _settle([consumer])
        consumer.commit({(name, 0): 2, (name, 1): 1})
    assert admin.group_offsets(name) == {(name, 0): 2, (name, 1): 1}
    assert name in admin.groups()
    admin.alter_group_offsets(name, {(name, 0): 0, (name, 5): 1})
    assert admin.group_offsets(name) == {(name, 0): 0, (name, 1): 1, (name, 5): 1}
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        (found,) = poll_until([consumer], lambda seen: count(seen) >= 10)
    assert sorted(one.offset for one in found if one.partition in (0, 1, 5)) == [0, 1, 1, 1]


def test_a_group_can_be_deleted_when_it_is_empty(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        _settle([consumer])
        consumer.commit({(name, 0): 0})
        assert admin.group(name).state == "Stable"
        with pytest.raises(Exception, match=r"(?i)non.?empty|not.?empty"):
            admin.delete_groups([name])
    admin.delete_groups([name])
    assert name not in admin.groups()
