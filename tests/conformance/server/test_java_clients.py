"""Apache Kafka's Java clients against the server: groups, transactions, fencing."""

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.tools.shell import JavaShell, to_text
from tests.conformance.tools.toolchain import Toolchain
from tests.support.kafka_server import ServerProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

POLLS = 150
both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


@pytest.fixture(scope="module")
def members(toolchain: Toolchain, server: ServerProcess) -> Iterator[JavaShell]:
    with JavaShell(toolchain, "varve.conformance.GroupShell", server.bootstrap) as shell:
        yield shell


@pytest.fixture(scope="module")
def make_topic(clients: JavaShell) -> Callable[[str, int], None]:
    def make(topic: str, partitions: int) -> None:
        clients.call("create_topic", topic=topic, partitions=partitions)

    return make


class Group:
    """Members of one group, polled in turn."""

    def __init__(self, shell: JavaShell, name: str, protocol: str, **configs: str) -> None:
        self._shell = shell
        self._name = name
        own = {"heartbeat.interval.ms": "300", "session.timeout.ms": "6000"}
        if protocol == "consumer":
            own = {}
        given = {key.replace("_", "."): value for key, value in configs.items()}
        self._configs = {"group.id": name, "group.protocol": protocol, **own, **given}
        self.assigned: dict[str, list[str]] = {}
        self.values: list[str] = []
        self.generations: dict[str, int] = {}

    def join(self, member: str, **where: str) -> None:
        own = {"group.instance.id": where.pop("instance")} if "instance" in where else {}
        configs = {**self._configs, **own}
        self._shell.call(
            "open_consumer",
            consumer=f"{self._name}-{member}",
            configs=configs,
            **(where or {"topic": self._name}),
        )
        self.assigned[member] = []

    def leave(self, member: str) -> None:
        self._shell.call("close_consumer", consumer=f"{self._name}-{member}")
        del self.assigned[member]

    def commit(self) -> None:
        for member in self.assigned:
            self._shell.call("commit_offsets", consumer=f"{self._name}-{member}")

    def committed(self, member: str) -> dict[str, int]:
        return self._shell.call("committed", consumer=f"{self._name}-{member}")

    def poll_until(self, is_done: Callable[[], bool]) -> None:
        for _ in range(POLLS):
            for member in self.assigned:
                answer = self._shell.call("poll", consumer=f"{self._name}-{member}")
                self.values += answer["values"]
                self.assigned[member] = answer["assignment"]
                self.generations[member] = answer["generation"]
            if is_done():
                return
        raise AssertionError(f"after {POLLS} polls: {self.assigned}, {len(self.values)} values")

    def share(self) -> list[int]:
        return sorted(len(one) for one in self.assigned.values())


def send(shell: JavaShell, producer: str, topic: str, first: int, end: int) -> list[str]:
    values = [f"{number:04}" for number in range(first, end)]
    shell.call("send", producer=producer, topic=topic, values=values)
    return values


@both_protocols
def test_members_share_a_topic_and_take_over(
    members: JavaShell, make_topic: Callable[[str, int], None], name: str, protocol: str
) -> None:
    make_topic(name, 4)
    members.call("open_producer", producer=name, configs={})
    wanted = send(members, name, name, 0, 100)
    group = Group(members, name, protocol)
    group.join("one")
    group.poll_until(lambda: len(group.values) >= 100)
    assert sorted(group.values) == wanted
    group.commit()

    group.join("two")
    group.poll_until(lambda: group.share() == [2, 2])
    wanted += send(members, name, name, 100, 200)
    group.poll_until(lambda: len(group.values) >= 200)
    group.commit()
    assert sorted(group.values) == wanted

    group.leave("one")
    group.poll_until(lambda: group.share() == [4])
    wanted += send(members, name, name, 200, 300)
    group.poll_until(lambda: len(group.values) >= 300)
    group.commit()
    assert sorted(group.values) == wanted
    assert sum(group.committed("two").values()) == 300
    group.leave("two")
    members.call("close_producer", producer=name)


def test_cooperative_members_keep_what_they_have(
    members: JavaShell, make_topic: Callable[[str, int], None], name: str
) -> None:
    make_topic(name, 6)
    group = Group(members, name, "classic", partition_assignment_strategy=COOPERATIVE)
    for member, share in [("one", [6]), ("two", [3, 3]), ("three", [2, 2, 2])]:
        before = {one: set(partitions) for one, partitions in group.assigned.items()}
        group.join(member)
        group.poll_until(lambda share=share: group.share() == share)  # type: ignore[misc]
        assert all(set(group.assigned[one]) <= partitions for one, partitions in before.items())
    for member in list(group.assigned):
        group.leave(member)


@both_protocols
def test_a_pattern_finds_topics_made_later(
    members: JavaShell, make_topic: Callable[[str, int], None], name: str, protocol: str
) -> None:
    make_topic(f"{name}-a", 1)
    group = Group(members, name, protocol)
    group.join("one", pattern=f"{name}-.*")
    group.poll_until(lambda: group.assigned["one"] == [f"{name}-a-0"])
    make_topic(f"{name}-b", 1)
    group.poll_until(lambda: group.assigned["one"] == [f"{name}-a-0", f"{name}-b-0"])
    group.leave("one")


@both_protocols
def test_a_static_member_returns_to_its_partitions(
    members: JavaShell, make_topic: Callable[[str, int], None], name: str, protocol: str
) -> None:
    make_topic(name, 4)
    group = Group(members, name, protocol)
    group.join("one", topic=name, instance="first")
    group.join("two", topic=name, instance="second")
    group.poll_until(lambda: group.share() == [2, 2])
    before = dict(group.assigned)
    group.leave("two")
    group.join("two", topic=name, instance="second")
    group.poll_until(lambda: group.share() == [2, 2])
    assert group.assigned == before
    for member in list(group.assigned):
        group.leave(member)


@both_protocols
def test_offsets_are_committed_with_a_transaction(
    members: JavaShell, make_topic: Callable[[str, int], None], name: str, protocol: str
) -> None:
    make_topic(name, 2)
    make_topic(f"{name}-copy", 1)
    members.call("open_producer", producer=f"{name}-source", configs={})
    wanted = send(members, f"{name}-source", name, 0, 50)
    members.call("open_producer", producer=name, configs={"transactional.id": name})
    group = Group(members, name, protocol, isolation_level="read_committed")
    group.join("one")
    group.poll_until(lambda: len(group.values) >= 50)
    for end, total in [("abort", -2), ("commit", 50)]:
        members.call("begin", producer=name)
        members.call("send", producer=name, topic=f"{name}-copy", values=group.values)
        members.call("send_offsets", producer=name, consumer=f"{name}-one")
        members.call(end, producer=name)
        assert sum(group.committed("one").values()) == total
    group.leave("one")
    copies = Group(members, f"{name}-copy", protocol, isolation_level="read_committed")
    copies.join("one")
    copies.poll_until(lambda: len(copies.values) >= 50)
    assert sorted(copies.values) == wanted
    copies.leave("one")


def test_the_second_producer_of_an_id_fences_the_first(
    members: JavaShell, make_topic: Callable[[str, int], None], name: str
) -> None:
    make_topic(name, 1)
    configs = {"transactional.id": name}
    members.call("open_producer", producer=f"{name}-1", configs=configs)
    members.call("begin", producer=f"{name}-1")
    send(members, f"{name}-1", name, 0, 10)
    members.call("open_producer", producer=f"{name}-2", configs=configs)
    answer = members.try_call("commit", producer=f"{name}-1")
    assert answer["error"] in {"ProducerFencedException", "InvalidProducerEpochException"}
    members.call("begin", producer=f"{name}-2")
    wanted = send(members, f"{name}-2", name, 10, 20)
    members.call("commit", producer=f"{name}-2")
    group = Group(members, name, "consumer", isolation_level="read_committed")
    group.join("one")
    group.poll_until(lambda: len(group.values) >= 10)
    assert group.values == wanted
    group.leave("one")


def test_an_admin_client_sees_and_trims_a_log(
    clients: JavaShell, make_topic: Callable[[str, int], None], name: str
) -> None:
    make_topic(name, 1)
    configs = {"transactional.id": name, "compression.type": "lz4"}
    clients.call("open_producer", producer=name, configs=configs)
    clients.call("begin", producer=name)
    records = [{"key": to_text(b"k"), "value": to_text(b"%d" % n)} for n in range(5)]
    clients.call("send", producer=name, topic=name, records=records)
    (open_one,) = clients.call("producers", topic=name)["producers"]
    assert open_one["current_txn_first_offset"] == 0
    assert open_one["last_sequence"] == 4
    offsets = clients.call("offsets", topic=name, times=[0])
    assert (offsets["high_watermark"], offsets["last_stable_offset"]) == (5, 0)
    clients.call("commit", producer=name)
    offsets = clients.call("offsets", topic=name, times=[0])
    assert (offsets["high_watermark"], offsets["last_stable_offset"]) == (6, 6)
    assert clients.call("delete_records", topic=name, offset=3)["log_start_offset"] == 3
    read = clients.call("read", topic=name, isolation="read_committed")
    assert [record["offset"] for record in read["records"]] == [3, 4]
    clients.call("alter_topic", topic=name, configs={"retention.ms": "1000000"})
