"""A directory that Apache Kafka wrote, served: its records are read, and more come behind them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_clients import ConsumerClient, ConsumerOptions, ProducerOptions, Received
from tests.support.kafka_confluent import ConfluentAdmin, ConfluentClient
from tests.support.kafka_reading import read_count
from varve.testing.kafka_kit import KafkaKit

_FIXTURES = Path(__file__).parents[1] / "fixtures" / "kafka"


class _Kafkas:
    """A copy of one of Kafka's directories, and what Kafka's own consumer read of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.directory = folder / "data"
        shutil.copytree(_FIXTURES / name / "data", self.directory)
        told = json.loads((_FIXTURES / name / "manifest.json").read_text())
        self.partitions: dict[tuple[str, int], dict[str, Any]] = {}
        for partition, facts in told["partitions"].items():
            topic, _, number = partition.rpartition("-")
            if not topic.startswith("__"):
                self.partitions[topic, int(number)] = facts
        self.now_ms = 1 + max(facts["max_timestamp"][1] for facts in self.partitions.values())


@pytest.fixture(params=["clean", "unclean"])
def kafkas(request: pytest.FixtureRequest, tmp_path: Path) -> _Kafkas:
    return _Kafkas(request.param, tmp_path)


@pytest.fixture
def client() -> Iterator[ConfluentClient]:
    one = ConfluentClient()
    yield one
    one.close()


def _read(consumer: ConsumerClient, partition: tuple[str, int], total: int) -> list[Received]:
    """The first records of a partition."""
    consumer.assign({partition: "beginning"})
    return read_count(consumer, total)[:total]


def _check(client: ConfluentClient, kit: KafkaKit, kafkas: _Kafkas) -> None:
    """What is read begins with what Kafka told."""
    with (
        client.consumer(kit.bootstrap, ConsumerOptions(isolation="read_uncommitted")) as every,
        client.consumer(kit.bootstrap, ConsumerOptions(isolation="read_committed")) as committed,
    ):
        for partition, facts in kafkas.partitions.items():
            told = [(row[0], row[1], _text(row[4])) for row in facts["records"]]
            found = _read(every, partition, len(told))
            assert [(one.offset, one.timestamp_ms, _hex(one.key)) for one in found] == told
            offsets = facts["committed_offsets"]
            found = _read(committed, partition, len(offsets))
            assert [one.offset for one in found] == offsets


def _append(client: ConfluentClient, kit: KafkaKit, kafkas: _Kafkas) -> None:
    """One record goes to each partition, behind those of Kafka."""
    with (
        ConfluentAdmin(kit.bootstrap) as admin,
        client.producer(kit.bootstrap, ProducerOptions(is_idempotent=True)) as producer,
    ):
        for partition, facts in kafkas.partitions.items():
            end = admin.latest(partition)
            # A transaction that Kafka left open may have ended with a marker meanwhile.
            assert end - facts["high_watermark"] in (0, 1)
            sent = producer.send(partition, b"by varve", key=b"k")
            producer.flush()
            assert sent.result() == end


def _hex(data: bytes | None) -> str | None:
    return None if data is None else f"hex:{data.hex()}"


def _text(told: str | None) -> str | None:
    assert told is None or told.startswith("hex:"), "a long key stands there by its digest"
    return told


def test_clients_read_what_kafka_wrote_and_write_on(
    client: ConfluentClient, kafkas: _Kafkas
) -> None:
    with KafkaKit(directory=kafkas.directory, now_ms=kafkas.now_ms) as kit:
        _check(client, kit, kafkas)
        _append(client, kit, kafkas)
        kit.restart()
        kit.restart(crash=True)
        _check(client, kit, kafkas)
