"""Groups: who reads what, what is committed, and what happens when members come and go.

Classic groups, in which a member assigns, and those of KIP-848, in which the broker does.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.support.kafka_clients import (
    WAIT_SECONDS,
    ConsumerClient,
    GroupProtocol,
    Partition,
    Received,
)
from tests.support.kafka_reading import Lab
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


def _write(lab: Lab, topic: str, value: bytes) -> None:
    """One record to each partition."""
    with lab.producer() as producer:
        for number in range(PARTITIONS):
            producer.send((topic, number), value)
        producer.flush()


def _member(
    lab: Lab,
    group: str,
    protocol: GroupProtocol = "classic",
    instance: str | None = None,
    bootstrap: str | None = None,
) -> ConsumerClient:
    """A member of a group that reads the topic of its name."""
    member = lab.consumer(
        bootstrap,
        group=group,
        instance=instance,
        protocol=protocol,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )
    member.subscribe(group)
    return member


_POLL_SECONDS = 0.5
_LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Seen:
    """What a member has read, and what it has to read."""

    records: list[Received] = field(default_factory=list)
    partitions: set[Partition] = field(default_factory=set)


def poll_until(
    members: Sequence[ConsumerClient], is_enough: Callable[[list[Seen]], bool]
) -> list[list[Received]]:
    """What each member has read when it was enough; each polls in a thread of its own."""
    seen = [Seen() for _ in members]
    enough = threading.Event()
    deadline = time.monotonic() + WAIT_SECONDS

    def poll(member: ConsumerClient, found: Seen) -> None:
        while not enough.is_set() and time.monotonic() < deadline:
            found.records += member.poll(_POLL_SECONDS)
            found.partitions = member.assignment()

    with ThreadPoolExecutor(len(members)) as pool:
        polls = [pool.submit(poll, *pair) for pair in zip(members, seen, strict=True)]
        while not is_enough(seen) and not any(one.done() for one in polls):
            enough.wait(_LOOK_SECONDS)
        enough.set()
    for one in polls:
        one.result()
    assert is_enough(seen), seen
    return [one.records for one in seen]


def _settle(members: Sequence[ConsumerClient]) -> None:
    """Waits until all partitions are shared out evenly."""
    share = PARTITIONS // len(members)

    def is_shared(seen: list[Seen]) -> bool:
        every = set().union(*(one.partitions for one in seen))
        return len(every) == PARTITIONS and all(len(one.partitions) == share for one in seen)

    poll_until(members, is_shared)


def count(seen: list[Seen]) -> int:
    """Records that all members together have read."""
    return sum(len(one.records) for one in seen)


@in_both_protocols
def test_members_share_partitions_as_they_join_and_leave(
    lab: Lab, name: str, protocol: GroupProtocol
) -> None:
    lab.admin.create(name, PARTITIONS)
    with _member(lab, name, protocol) as first:
        _settle([first])
        with _member(lab, name, protocol) as second:
            _settle([first, second])
            assert lab.admin.group(name).member_count == 2
            with _member(lab, name, protocol) as third:
                _settle([first, second, third])
                _write(lab, name, b"to three")
                read = poll_until([first, second, third], lambda seen: count(seen) >= PARTITIONS)
                assert [len(part) for part in read] == [2, 2, 2]
            _settle([first, second])
    assert lab.admin.group(name).state == "Empty"


@in_both_protocols
def test_partitions_of_a_crashed_member_go_to_the_others(
    lab: Lab, name: str, protocol: GroupProtocol
) -> None:
    lab.admin.create(name, PARTITIONS)
    lab.server.proxy.heal()
    with (
        _member(lab, name, protocol) as survivor,
        _member(lab, name, protocol, None, lab.server.proxied) as lost,
    ):
        _settle([survivor, lost])
        lab.server.proxy.cut_off()
        began = time.monotonic()
        _settle([survivor])
        took_ms = (time.monotonic() - began) * 1000
        assert took_ms >= SESSION_TIMEOUT_MS / 2
        assert lab.admin.group(name).member_count == 1
        lab.server.proxy.heal()


@in_both_protocols
def test_a_static_member_that_comes_back_keeps_its_partitions(
    lab: Lab, name: str, protocol: GroupProtocol
) -> None:
    lab.admin.create(name, PARTITIONS)
    with _member(lab, name, protocol, "stays") as stays:
        with _member(lab, name, protocol, "returns") as leaves:
            _settle([stays, leaves])
            before = stays.assignment(), leaves.assignment()
        with _member(lab, name, protocol, "returns") as again:
            _settle([stays, again])
            assert (stays.assignment(), again.assignment()) == before
            assert lab.admin.group(name).member_count == 2


@in_both_protocols
def test_a_group_resumes_where_it_committed(lab: Lab, name: str, protocol: GroupProtocol) -> None:
    lab.admin.create(name, PARTITIONS)
    for value in (b"0", b"1", b"2"):
        _write(lab, name, value)
    with _member(lab, name, protocol) as consumer:
        poll_until([consumer], lambda seen: count(seen) == PARTITIONS * 3)
        assert consumer.committed((name, 0)) is None
        consumer.commit({(name, number): min(number, 3) for number in range(PARTITIONS)})
        assert consumer.committed((name, 1)) == 1
    assert lab.admin.group(name).state == "Empty"
    assert lab.admin.group_offsets(name)[(name, 2)] == 2
    with _member(lab, name, protocol) as consumer:
        (found,) = poll_until([consumer], lambda seen: count(seen) >= 6)
    assert sorted((one.partition, one.offset) for one in found) == [
        (number, offset) for number in range(PARTITIONS) for offset in range(min(number, 3), 3)
    ]


def test_offsets_of_a_group_are_told_and_altered(lab: Lab, name: str) -> None:
    lab.admin.create(name, PARTITIONS)
    for value in (b"0", b"1"):
        _write(lab, name, value)
    with _member(lab, name) as consumer:
        _settle([consumer])
        consumer.commit({(name, 0): 2, (name, 1): 1})
    assert lab.admin.group_offsets(name) == {(name, 0): 2, (name, 1): 1}
    assert name in lab.admin.groups()
    lab.admin.alter_group_offsets(name, {(name, 0): 0, (name, 5): 1})
    assert lab.admin.group_offsets(name) == {(name, 0): 0, (name, 1): 1, (name, 5): 1}
    with _member(lab, name) as consumer:
        (found,) = poll_until([consumer], lambda seen: count(seen) >= 10)
    assert sorted(one.offset for one in found if one.partition in (0, 1, 5)) == [0, 1, 1, 1]


def test_a_group_can_be_deleted_when_it_is_empty(lab: Lab, name: str) -> None:
    lab.admin.create(name, PARTITIONS)
    with _member(lab, name) as consumer:
        _settle([consumer])
        consumer.commit({(name, 0): 0})
        assert lab.admin.group(name).state == "Stable"
        with pytest.raises(Exception, match=r"(?i)non.?empty|not.?empty"):
            lab.admin.delete_groups([name])
    lab.admin.delete_groups([name])
    assert name not in lab.admin.groups()
