"""`kill -9` of the server in the middle of its clients' work: they go on by themselves.

G1 no acknowledged record, transaction or offset is lost. G2 offsets and order stay, nothing is
there twice. G3 a transaction is whole or not there.
"""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.kafka_clients import (
    AdminClient,
    ConsumerOptions,
    KafkaClient,
    ProducerOptions,
    Received,
)
from tests.support.kafka_python import PythonClient
from tests.support.kafka_reading import read_all, read_count
from tests.support.kafka_server import ServerMaker, ServerProcess
from tests.support.kafka_workers import PARTITIONS, Member, Transactor, Worker, Writer

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ROUNDS = 3
TOPIC, RESULTS, GROUP = "records", "transactions", "readers"
LOOK_SECONDS = 0.002
END = b"end"
PROGRESS_SECONDS = 90.0
"""kafka-python waits ten seconds for a node that was away, and may do so several times."""


def _kill_count(client: KafkaClient, rounds_factor: int) -> int:
    """kafka-python is slow to come back: with it a run of `make test` kills once for each seed."""
    return 1 if isinstance(client, PythonClient) and rounds_factor == 1 else ROUNDS * rounds_factor


def _wait_for_progress(workers: list[Worker], source: random.Random) -> None:
    """Until each has done some more, and one of them a random amount."""
    goals = {one: one.done_count + 1 for one in workers}
    goals[workers[0]] += source.randint(1, 200)
    deadline = time.monotonic() + PROGRESS_SECONDS
    while any(one.done_count < goal for one, goal in goals.items()):
        for one in workers:
            one.check()
        late = [one.name for one, goal in goals.items() if one.done_count < goal]
        assert time.monotonic() < deadline, f"no progress of {', '.join(late)}"
        time.sleep(LOOK_SECONDS)  # noqa: TID251, real processes in real time


def _read_committed(client: KafkaClient, server: ServerProcess) -> list[Received]:
    """All of the transactions, which a last one ends."""
    options = ProducerOptions(transactional_id="last")
    with client.producer(server.bootstrap, options) as producer:
        producer.begin()
        for number in PARTITIONS:
            producer.send((RESULTS, number), END)
        producer.commit()
    found: list[Received] = []
    options_of_reader = ConsumerOptions(isolation="read_committed")
    with client.consumer(server.bootstrap, options_of_reader) as consumer:
        consumer.assign({(RESULTS, number): "beginning" for number in PARTITIONS})
        while sum(one.value == END for one in found) < len(PARTITIONS):
            found += read_count(consumer, 1)
    return [one for one in found if one.value != END]


def _check_records(client: KafkaClient, server: ServerProcess, writer: Writer) -> None:
    partitions = [(TOPIC, number) for number in PARTITIONS]
    found = read_all(client, server.bootstrap, partitions, len(writer.sent))
    for number in PARTITIONS:
        values = [int(one.value or b"") for one in found if one.partition == number]
        assert values == list(range(writer.counts[number]))
    for one in found:
        told = writer.sent[one.partition, int(one.value or b"")].result(0)
        assert told in (one.offset, -1)  # -1: acknowledged as a duplicate of what is there


def _check_transactions(found: list[Received], transactor: Transactor) -> None:
    counts = [
        Counter(int(one.value or b"") for one in found if one.partition == number)
        for number in PARTITIONS
    ]
    assert counts[0] == counts[1]
    assert set(counts[0]) == set(transactor.committed)
    for number in PARTITIONS:
        order = [int(one.value or b"") for one in found if one.partition == number]
        assert order == sorted(order)


def _check_group(admin: AdminClient, member: Member) -> None:
    committed = admin.group_offsets(GROUP)
    for number, offset in member.acknowledged.items():
        assert committed.get((TOPIC, number), 0) >= offset
    for number in PARTITIONS:
        offsets = [one.offset for one in member.read if one.partition == number]
        assert set(offsets) == set(range(max(offsets) + 1))


@pytest.mark.parametrize("seed", [1, 2])
def test_g1_g2_g3_clients_go_on_when_their_server_is_killed(
    client: KafkaClient,
    server_maker: ServerMaker,
    tmp_path: Path,
    seed: int,
    rounds_factor: int,
) -> None:
    source = random.Random(seed)
    with server_maker.start(tmp_path) as server, client.admin(server.bootstrap) as admin:
        admin.create(TOPIC, len(PARTITIONS))
        admin.create(RESULTS, len(PARTITIONS))
        bootstrap = server.bootstrap
        with (
            Writer(client, bootstrap, TOPIC, random.Random(seed)) as writer,
            Transactor(client, bootstrap, RESULTS, random.Random(seed)) as transactor,
            Member(client, bootstrap, TOPIC, GROUP) as member,
        ):
            workers: list[Worker] = [writer, transactor, member]
            for _ in range(_kill_count(client, rounds_factor)):
                _wait_for_progress(workers, source)
                server.kill()
                server.start()
            _wait_for_progress(workers, source)
        for worker in workers:
            worker.check()
        _check_records(client, server, writer)
        _check_transactions(_read_committed(client, server), transactor)
        _check_group(admin, member)
