"""Groups: who reads what, what is committed, and what happens when members come and go."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.support.kafka_clients import (
    WAIT_SECONDS,
    AdminClient,
    ConsumerClient,
    ConsumerOptions,
    KafkaClient,
    Partition,
    ProducerOptions,
    Received,
)
from tests.support.kafka_server import ServerProcess

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PARTITIONS = 6
SESSION_TIMEOUT_MS = 1_500
POLL_SECONDS = 0.5
LOOK_SECONDS = 0.02


@dataclass(slots=True)
class _Seen:
    """What a member has read, and what it has to read."""

    records: list[Received] = field(default_factory=list)
    partitions: set[Partition] = field(default_factory=set)


def _poll_until(
    members: Sequence[ConsumerClient], is_enough: Callable[[list[_Seen]], bool]
) -> list[list[Received]]:
    """What each member has read when it was enough; each polls in a thread of its own."""
    seen = [_Seen() for _ in members]
    enough = threading.Event()
    deadline = time.monotonic() + WAIT_SECONDS

    def poll(member: ConsumerClient, found: _Seen) -> None:
        while not enough.is_set() and time.monotonic() < deadline:
            found.records += member.poll(POLL_SECONDS)
            found.partitions = member.assignment()

    with ThreadPoolExecutor(len(members)) as pool:
        polls = [pool.submit(poll, *pair) for pair in zip(members, seen, strict=True)]
        while not is_enough(seen) and not any(one.done() for one in polls):
            enough.wait(LOOK_SECONDS)
        enough.set()
    for one in polls:
        one.result()
    assert is_enough(seen), seen
    return [one.records for one in seen]


def _settle(members: Sequence[ConsumerClient]) -> None:
    """Waits until all partitions are shared out evenly."""
    share = PARTITIONS // len(members)

    def is_shared(seen: list[_Seen]) -> bool:
        every = set().union(*(one.partitions for one in seen))
        return len(every) == PARTITIONS and all(len(one.partitions) == share for one in seen)

    _poll_until(members, is_shared)


def _produce(client: KafkaClient, server: ServerProcess, topic: str, value: bytes) -> None:
    """One record to each partition."""
    with client.producer(server.bootstrap, ProducerOptions()) as producer:
        for number in range(PARTITIONS):
            producer.send((topic, number), value)
        producer.flush()


def _options(group: str, instance: str | None = None) -> ConsumerOptions:
    return ConsumerOptions(group=group, instance=instance, session_timeout_ms=SESSION_TIMEOUT_MS)


def _count(seen: list[_Seen]) -> int:
    return sum(len(one.records) for one in seen)


def test_members_share_partitions_as_they_join_and_leave(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    with (
        client.consumer(server.bootstrap, _options(name)) as first,
        client.consumer(server.bootstrap, _options(name)) as second,
    ):
        first.subscribe(name)
        _settle([first])
        second.subscribe(name)
        _settle([first, second])
        assert admin.group(name).member_count == 2
        third = client.consumer(server.bootstrap, _options(name))
        third.subscribe(name)
        _settle([first, second, third])
        _produce(client, server, name, b"to three")
        read = _poll_until([first, second, third], lambda seen: _count(seen) >= PARTITIONS)
        assert [len(part) for part in read] == [2, 2, 2]
        third.close()
        _settle([first, second])
    assert admin.group(name).state == "Empty"


def test_partitions_of_a_crashed_member_go_to_the_others(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    server.proxy.heal()
    with (
        client.consumer(server.bootstrap, _options(name)) as survivor,
        client.consumer(server.proxied, _options(name)) as lost,
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


def test_a_static_member_that_comes_back_keeps_its_partitions(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    with client.consumer(server.bootstrap, _options(name, "stays")) as stays:
        stays.subscribe(name)
        with client.consumer(server.bootstrap, _options(name, "returns")) as leaves:
            leaves.subscribe(name)
            _settle([stays, leaves])
            before = stays.assignment(), leaves.assignment()
        with client.consumer(server.bootstrap, _options(name, "returns")) as again:
            again.subscribe(name)
            _settle([stays, again])
            assert (stays.assignment(), again.assignment()) == before
            assert admin.group(name).member_count == 2


def test_a_group_resumes_where_it_committed(
    client: KafkaClient, server: ServerProcess, admin: AdminClient, name: str
) -> None:
    admin.create(name, PARTITIONS)
    for value in (b"0", b"1", b"2"):
        _produce(client, server, name, value)
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        _poll_until([consumer], lambda seen: _count(seen) == PARTITIONS * 3)
        assert consumer.committed((name, 0)) is None
        consumer.commit({(name, number): min(number, 3) for number in range(PARTITIONS)})
        assert consumer.committed((name, 1)) == 1
    with client.consumer(server.bootstrap, _options(name)) as consumer:
        consumer.subscribe(name)
        (found,) = _poll_until([consumer], lambda seen: _count(seen) >= 6)
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
        (found,) = _poll_until([consumer], lambda seen: _count(seen) >= 10)
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
