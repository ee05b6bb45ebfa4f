"""`kill -9` of a deduplication with RocksDB at random moments: exactly once all the same: G3."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import varve
from tests.support.dedup_cases import (
    OUTPUT,
    SIDE,
    SOURCE,
    append,
    committed,
    draw_records,
    model_of,
    open_transactions,
    rules_of,
)
from tests.support.kafka_server import ServerMaker
from varve.embedded import Store
from varve.kafka_client.address import parse_cluster_address
from varve.kafka_client.client import KafkaClient
from varve.kafka_client.transaction import TransactionalProducer
from varve.records import Producer, Record, build_batch, stamp_producer

SCRIPT = Path(__file__).with_name("killed_dedup.py")
RULES = rules_of()
PARTITIONS = 2
ROUNDS = 4
ROUND_RECORDS = 160
FACTOR_MAX = 5
"""All that was ever written is read again after each round."""


@pytest.fixture(scope="module")
def forker() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded everything and forks a deduplication per line of input."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(forker: subprocess.Popen[str], order: str, kill_after: int | None) -> bool:
    """Has a deduplication killed once it told of so many commits; whether it came to its end."""
    assert forker.stdin is not None
    assert forker.stdout is not None
    print(order, file=forker.stdin, flush=True)
    word, pid = forker.stdout.readline().split()
    assert word == "pid"
    watchdog = threading.Timer(60, os.kill, (int(pid), signal.SIGKILL))
    watchdog.start()
    told, is_done = 0, False
    for line in forker.stdout:
        if line == "dead\n":
            break
        told += line.startswith("at ")
        is_done |= line == "done\n"
        if told == kill_after and line.startswith("at "):
            os.kill(int(pid), signal.SIGKILL)
    watchdog.cancel()
    return is_done


def check(store: Store, records: dict[int, list[Record]], *, is_whole: bool) -> None:
    for partition, given in records.items():
        model = model_of(RULES, given)
        for topic, expected in ((OUTPUT, model.output), (SIDE, model.side)):
            seen = committed(store, topic, partition)
            assert seen == (expected if is_whole else expected[: len(seen)])
    if is_whole:
        assert open_transactions(store) == 0


def draw(source: random.Random, records: dict[int, list[Record]]) -> dict[int, list[Record]]:
    """The next records of each partition, in time behind those before."""
    return {
        partition: draw_records(source, ROUND_RECORDS, first=len(given))
        for partition, given in records.items()
    }


def test_a_deduplication_in_a_directory_is_killed(
    forker: subprocess.Popen[str], tmp_path: Path, rounds_factor: int
) -> None:
    source = random.Random(31)
    records: dict[int, list[Record]] = {number: [] for number in range(PARTITIONS)}
    for seed in range(ROUNDS * min(rounds_factor, FACTOR_MAX)):
        with varve.open(tmp_path / "log", maintain=False) as store:
            topic = store.create_topic(SOURCE, partitions=PARTITIONS, exist_ok=True)
            for partition, more in draw(source, records).items():
                append(topic, partition, more)
                records[partition] += more
            if seed:
                check(store, records, is_whole=False)
        run(forker, f"{tmp_path}/log {tmp_path}/state {seed}", source.randint(1, 60))
    assert run(forker, f"{tmp_path}/log {tmp_path}/state 0", None)
    with varve.open(tmp_path / "log", maintain=False) as store:
        check(store, records, is_whole=True)


def test_a_deduplication_behind_a_server_is_killed_and_the_server_too(
    forker: subprocess.Popen[str], tmp_path: Path, rounds_factor: int
) -> None:
    source = random.Random(32)
    records: dict[int, list[Record]] = {number: [] for number in range(PARTITIONS)}
    with ServerMaker() as maker, maker.start(tmp_path / "log") as server:
        order = f"{server.bootstrap} {tmp_path}/state"
        for seed in range(ROUNDS * min(rounds_factor, FACTOR_MAX)):
            produce(server.bootstrap, draw(source, records), records)
            run(forker, f"{order} {seed}", source.randint(1, 40))
            if seed % 2:
                server.kill()
                server.start()
        assert run(forker, f"{order} 0", None)
        server.stop()
        with varve.open(tmp_path / "log", maintain=False) as store:
            check(store, records, is_whole=True)
        server.start()


def produce(
    bootstrap: str, more: dict[int, list[Record]], records: dict[int, list[Record]]
) -> None:
    """Appends through the server, each time in a transaction of its own."""
    address = parse_cluster_address({"bootstrap.servers": bootstrap})
    assert address is not None
    client = KafkaClient(address, threading.Event().wait)
    client.create_topic(SOURCE, partitions=PARTITIONS, exist_ok=True)
    producer = TransactionalProducer(client, "source", timeout_ms=30_000)
    producer.begin()
    producer.add_partitions(SOURCE, list(more))
    known = Producer(producer.producer_id, producer.producer_epoch)
    for partition, given in more.items():
        starts = range(0, len(given), 8)
        batches = [build_batch(given[start : start + 8]) for start in starts]
        joined = [
            stamp_producer(batch, known, start)
            for batch, start in zip(batches, starts, strict=True)
        ]
        producer.append_all(SOURCE, partition, joined)
        records[partition] += given
    producer.end(is_committed=True)
    client.close()
