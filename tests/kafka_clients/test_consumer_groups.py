"""Groups of KIP-848: the broker assigns, and members follow step by step."""

import time
from collections.abc import Iterator

import pytest

from tests.support.kafka_clients import AdminClient, ConsumerOptions, ProducerOptions
from tests.support.kafka_confluent import ConfluentAdmin, ConfluentClient
from tests.support.kafka_members import count, poll_until, settle
from tests.support.kafka_server import ServerMaker, ServerProcess

PARTITIONS = 6
SESSION_TIMEOUT_MS = 1_000


@pytest.fixture(scope="module")
def server(
    server_maker: ServerMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Its members are asked to say often that they are there, and missed soon."""
    with server_maker.start(
        tmp_path_factory.mktemp("served"),
        group_consumer_heartbeat_interval_ms="100",
        group_consumer_session_timeout_ms=str(SESSION_TIMEOUT_MS),
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client() -> Iterator[ConfluentClient]:
    """The one of the three clients that has the protocol."""
    one = ConfluentClient()
    yield one
    one.close()


@pytest.fixture(scope="module")
def admin(server: ServerProcess) -> Iterator[AdminClient]:
    with ConfluentAdmin(server.bootstrap) as admin:
        yield admin


def _options(group: str, instance: str | None = None) -> ConsumerOptions:
    return ConsumerOptions(group=group, instance=instance, protocol="consumer")


def test_members_share_partitions_as_they_join_crash_and_leave(
    client: ConfluentClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    server.proxy.heal()
    with (
        client.consumer(server.bootstrap, _options(name)) as first,
        client.consumer(server.proxied, _options(name)) as lost,
    ):
        first.subscribe(name)
        settle([first], PARTITIONS)
        lost.subscribe(name)
        settle([first, lost], PARTITIONS)
        assert admin.group(name).member_count == 2
        server.proxy.cut_off()
        began = time.monotonic()
        settle([first], PARTITIONS)
        assert time.monotonic() - began >= SESSION_TIMEOUT_MS / 2000
        assert admin.group(name).member_count == 1
        with client.consumer(server.bootstrap, _options(name)) as third:
            third.subscribe(name)
            settle([first, third], PARTITIONS)
        settle([first], PARTITIONS)
        server.proxy.heal()


def test_a_group_resumes_where_it_committed(
    client: ConfluentClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        for number in range(PARTITIONS):
            for value in (b"0", b"1", b"2"):
                producer.send((name, number), value)
        producer.flush()
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        poll_until([consumer], lambda seen: count(seen) == PARTITIONS * 3)
        assert consumer.committed((name, 0)) is None
        consumer.commit({(name, number): min(number, 3) for number in range(PARTITIONS)})
        assert consumer.committed((name, 1)) == 1
    assert admin.group(name).state == "Empty"
    assert admin.group_offsets(name)[(name, 2)] == 2
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        (found,) = poll_until([consumer], lambda seen: count(seen) >= 6)
    assert sorted((one.partition, one.offset) for one in found) == [
        (number, offset) for number in range(PARTITIONS) for offset in range(min(number, 3), 3)
    ]


def test_a_static_member_that_comes_back_keeps_its_partitions(
    client: ConfluentClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    with client.consumer(server.bootstrap, _options(name, "stays")) as stays:
        stays.subscribe(name)
        with client.consumer(server.bootstrap, _options(name, "returns")) as leaves:
            leaves.subscribe(name)
            settle([stays, leaves], PARTITIONS)
            before = stays.assignment(), leaves.assignment()
        with client.consumer(server.bootstrap, _options(name, "returns")) as again:
            again.subscribe(name)
            settle([stays, again], PARTITIONS)
            assert (stays.assignment(), again.assignment()) == before
            assert admin.group(name).member_count == 2
