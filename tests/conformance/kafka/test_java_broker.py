"""A real broker serves the directories varve wrote, and varve goes on where the broker stopped."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tools.broker import Broker, read_with_java, write_with_java
from tests.conformance.tools.dump import dump_partition
from tests.conformance.tools.our_consumer import consume
from tests.conformance.tools.toolchain import Toolchain
from tests.support.lab import open_logs
from varve.commit_log import AppendOrigin, Isolation, Log, LogManager, LogSettings, TopicPartition
from varve.commit_log.directory_files import decode_topic_id
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.records import Codec, Record, build_batch, end_transaction_marker

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

SHARED = TopicPartition("shared", 0)
OWN = TopicPartition("own", 0)
SETTINGS = LogSettings(segment_bytes=3_000, index_interval_bytes=300, segment_index_bytes=4_096)
TOPIC_CONFIGS = {"internal.segment.bytes": "3000", "index.interval.bytes": "300"}


@pytest.fixture
def broker(toolchain: Toolchain, tmp_path: Path) -> Iterator[Broker]:
    with Broker(toolchain, tmp_path / "broker") as formatted:
        formatted.format()
        yield formatted


def _open_store(broker: Broker) -> LogManager:
    return open_logs(RealFileSystem(), SystemClock(), SETTINGS, paths=[str(broker.data)])


def _fill(log: Log, leader_epoch: int) -> None:
    """Every codec, a producer with sequences, transactions of both ends, one left open."""
    now_ms = SystemClock().now_ms()

    def append(count: int, **fields: Any) -> None:
        records = [
            Record(b"key %d" % number, b"value" * 9, (("h", b"x"), ("n", None)), now_ms + number)
            for number in range(count)
        ]
        log.append(build_batch(records, **fields), leader_epoch=leader_epoch)

    def end(producer_id: int, *, committed: bool) -> None:
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=now_ms,
        )
        log.append(marker, origin=AppendOrigin.COORDINATOR, leader_epoch=leader_epoch)

    for codec in Codec:
        append(20, codec=codec)
    for sequence in range(0, 60, 5):
        append(5, producer_id=7_000, producer_epoch=0, base_sequence=sequence)
    for turn in range(6):
        producer_id = 7_001 + turn % 2
        sequence = turn // 2 * 4
        fields = {"producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        append(4, producer_id=producer_id, codec=Codec.LZ4, **fields)
        append(1)
        end(producer_id, committed=turn % 3 == 0)
    append(2, producer_id=7_009, producer_epoch=0, base_sequence=0, transactional=True)
    append(3)


def _seen_by_us(log: Log, isolation: Isolation) -> list[Record]:
    return [one for _, one in consume(log, isolation)]


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_broker_and_varve_take_turns_on_one_directory(
    toolchain: Toolchain, broker: Broker, clean: bool
) -> None:
    broker.start()
    with broker.clients() as clients:
        ids = {
            partition: clients.call("create_topic", topic=partition.topic, configs=TOPIC_CONFIGS)
            for partition in (SHARED, OWN)
        }
        write_with_java(clients, "shared")
        first_java = read_with_java(clients, "shared", "read_committed")
    broker.stop()
    shutil.rmtree(broker.data / "own-0")

    store = _open_store(broker)
    assert _seen_by_us(store.get(SHARED), Isolation.READ_COMMITTED) == first_java
    _fill(store.get(SHARED), leader_epoch=2)
    _fill(store.create(OWN, decode_topic_id(ids[OWN]["topic_id"])), leader_epoch=0)
    ours = {
        (name, isolation): _seen_by_us(store.get(name), isolation)
        for name in (SHARED, OWN)
        for isolation in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)
    }
    if clean:
        store.close()
        for name in (SHARED, OWN):
            dump = dump_partition(toolchain, broker.data / str(name), "--print-data-log")
            assert dump.complaints() == []
    else:
        store.abandon()

    broker.start()
    with broker.clients() as clients:
        for (name, isolation), expected in ours.items():
            assert read_with_java(clients, name.topic, str(isolation)) == expected
        for name in (SHARED, OWN):
            offsets = clients.call("offsets", topic=name.topic, times=[0])
            assert offsets["last_stable_offset"] < offsets["high_watermark"]
            open_producers = [
                state["producer_id"]
                for state in clients.call("producers", topic=name.topic)["producers"]
                if state["current_txn_first_offset"] >= 0
            ]
            assert open_producers == [7_009]
            write_with_java(clients, name.topic)
        theirs = {name: read_with_java(clients, name.topic, "read_uncommitted") for name in ids}
    broker.stop()

    store = _open_store(broker)
    for name, expected in theirs.items():
        assert _seen_by_us(store.get(name), Isolation.READ_UNCOMMITTED) == expected
    store.close()
