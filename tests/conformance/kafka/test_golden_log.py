"""A log directory that a real broker left shows every reader what Apache Kafka's consumer saw."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.tools.golden_reader import (
    GOLDENS,
    NAMES,
    GoldenPartition,
    fingerprint,
    latest_timestamp,
    manifest_of,
)
from tests.conformance.tools.our_consumer import consume
from varve.cli.dump.records import TIMESTAMP_TYPE_NAMES
from varve.commit_log import Isolation, LogManager, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Record, build_batch


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def data(golden: str, tmp_path: Path) -> Path:
    """A copy of the broker's directory."""
    return Path(shutil.copytree(GOLDENS / golden / "data", tmp_path / "data"))


@pytest.fixture
def store(golden: str, data: Path) -> Iterator[LogManager]:
    with _open(golden, data) as opened:
        yield opened


def _open(golden: str, data: Path) -> LogManager:
    return LogManager(
        [str(data)],
        fs=RealFileSystem(),
        clock=ManualClock(latest_timestamp(golden)),
        random=random.Random(0),
    )


def _partitions(golden: str) -> Iterator[tuple[GoldenPartition, TopicPartition]]:
    for name in manifest_of(golden)["partitions"]:
        topic, partition = name.rsplit("-", maxsplit=1)
        yield GoldenPartition(golden, name), TopicPartition(topic, int(partition))


def test_every_partition_is_served(golden: str, store: LogManager) -> None:
    assert sorted(map(str, store.partitions)) == sorted(manifest_of(golden)["partitions"])


def test_topic_ids_are_kept(golden: str, store: LogManager) -> None:
    for partition, name in _partitions(golden):
        topic_id = store.topic_id(name)
        assert topic_id is not None
        if "topic_id" in partition.manifest:
            assert encode_topic_id(topic_id) == partition.manifest["topic_id"]


def test_offsets_are_those_of_the_broker(golden: str, store: LogManager) -> None:
    for partition, name in _partitions(golden):
        log, expected = store.get(name), partition.manifest
        assert (log.log_start_offset, log.high_watermark, log.last_stable_offset) == (
            expected["log_start_offset"],
            expected["high_watermark"],
            expected["last_stable_offset"],
        ), name


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_readers_get_the_records_the_consumer_got(
    golden: str, store: LogManager, max_bytes: int
) -> None:
    for partition, name in _partitions(golden):
        rows = [
            [
                record.offset,
                record.timestamp,
                TIMESTAMP_TYPE_NAMES[batch.header.timestamp_type],
                batch.header.partition_leader_epoch,
                fingerprint(record.key),
                fingerprint(record.value),
                [[header, fingerprint(value)] for header, value in record.headers],
            ]
            for batch, record in consume(store.get(name), Isolation.READ_UNCOMMITTED, max_bytes)
        ]
        assert rows == partition.manifest["records"], name


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_readers_of_committed_records_get_those_the_consumer_got(
    golden: str, store: LogManager, max_bytes: int
) -> None:
    for partition, name in _partitions(golden):
        records = consume(store.get(name), Isolation.READ_COMMITTED, max_bytes)
        offsets = [record.offset for _, record in records]
        assert offsets == partition.manifest["committed_offsets"], name


def test_times_lead_to_the_offsets_the_broker_named(golden: str, store: LogManager) -> None:
    for partition, name in _partitions(golden):
        for timestamp, offset, found_timestamp in partition.manifest["for_times"]:
            found = store.get(name).find_offset_by_time(timestamp)
            seen = (-1, -1) if found is None else (found.offset, found.timestamp)
            assert seen == (offset, found_timestamp), (name, timestamp)


def test_largest_timestamp_is_where_the_broker_found_it(golden: str, store: LogManager) -> None:
    for partition, name in _partitions(golden):
        found = store.get(name).find_max_timestamp()
        assert found is not None
        assert [found.offset, found.timestamp] == partition.manifest["max_timestamp"], name


def test_directory_goes_on_after_a_clean_close(golden: str, data: Path) -> None:
    with _open(golden, data) as store:
        ends = {name: store.get(name).end_offset for _, name in _partitions(golden)}
        for name in ends:
            store.get(name).append(build_batch([Record(b"k", b"more", timestamp=1)]))
    assert (data / ".kafka_cleanshutdown").exists()
    with _open(golden, data) as store:
        for name, end in ends.items():
            assert store.get(name).end_offset == end + 1
            *_, (_, last) = consume(store.get(name), Isolation.READ_UNCOMMITTED)
            assert (last.offset, last.value) == (end, b"more")
