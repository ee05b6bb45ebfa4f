"""Every file a real broker left is read as Apache Kafka's own dump tool reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.tools.fingerprint import fingerprint
from tests.conformance.tools.golden_reader import (
    GOLDENS,
    NAMES,
    GoldenPartition,
    fields,
    partitions,
)
from varve.commit_log.directory_files import (
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_meta_properties,
    encode_partition_metadata,
    encode_topic_id,
)
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.commit_log.producer_snapshots import decode_producer_snapshot, encode_producer_snapshot
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.records import Batch, BatchHeader, Record, TimestampType, decode_header

INDEX_BYTES = 4096
TIMESTAMP_NAMES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}

every_partition = pytest.mark.parametrize("partition", partitions(), ids=str)


@every_partition
def test_batches_are_read_as_the_dump_tool_reads_them(partition: GoldenPartition) -> None:
    for path in partition.files(".log"):
        lines = partition.dump_of(path)
        expected = [line for line in lines if line.startswith("baseOffset")]
        described = [_describe(batch, position) for position, batch in _batches(path)]
        assert [fields(line) for line in expected] == [fields(line) for line in described]


@every_partition
def test_records_are_read_as_the_dump_tool_reads_them(partition: GoldenPartition) -> None:
    for path in partition.files(".log"):
        expected = [
            (int(row["offset"]), int(row["keySize"]), int(row["valueSize"]), int(row["sequence"]))
            for row in map(fields, partition.dump_of(path))
            if "keySize" in row
        ]
        assert expected == [
            (record.offset, _size(record.key), _size(record.value), _sequence(batch, record))
            for _, batch in _batches(path)
            for record in batch.records()
        ]


@every_partition
def test_records_are_those_the_consumer_was_given(partition: GoldenPartition) -> None:
    seen = [
        row
        for path in partition.files(".log")
        for _, batch in _batches(path)
        if not batch.header.is_control
        for row in _rows(batch)
        if row[0] >= partition.manifest["log_start_offset"]
    ]
    assert seen == partition.manifest["records"]


@every_partition
def test_offset_indexes_hold_the_entries_of_the_dump(partition: GoldenPartition) -> None:
    for path in partition.files(".index"):
        index = OffsetIndex.decode(path.read_bytes(), int(path.stem), INDEX_BYTES)
        rows = [fields(line) for line in partition.dump_of(path) if line.startswith("offset")]
        expected = [[int(row["offset"]), int(row["position"])] for row in rows]
        assert index.entries()[: len(expected)].tolist() == expected
        assert index.encode() == path.read_bytes()
        index.check(str(path))


@every_partition
def test_time_indexes_hold_the_entries_of_the_dump(partition: GoldenPartition) -> None:
    for path in partition.files(".timeindex"):
        index = TimeIndex.decode(path.read_bytes(), int(path.stem), INDEX_BYTES)
        rows = [fields(line) for line in partition.dump_of(path) if line.startswith("timestamp")]
        expected = [[int(row["timestamp"]), int(row["offset"])] for row in rows]
        assert index.entries()[: len(expected)].tolist() == expected
        assert index.encode() == path.read_bytes()


@every_partition
def test_transaction_indexes_hold_the_entries_of_the_dump(partition: GoldenPartition) -> None:
    for path in partition.files(".txnindex"):
        index = TransactionIndex.decode(path.read_bytes(), int(path.stem), str(path))
        expected = [
            tuple(int(row[name]) for name in TRANSACTION_FIELDS)
            for row in map(fields, partition.dump_of(path))
        ]
        assert expected == [
            (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
            for entry in index.entries()
        ]
        assert index.encode() == path.read_bytes()
        index.check(str(path))


TRANSACTION_FIELDS = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")


@every_partition
def test_producer_snapshots_hold_the_entries_of_the_dump(partition: GoldenPartition) -> None:
    for path in partition.files(".snapshot"):
        entries = decode_producer_snapshot(path.read_bytes(), str(path))
        rows = [fields(line) for line in partition.dump_of(path)]
        assert [
            (
                entry.producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                _optional(entry.transaction_first_offset),
                entry.last_sequence,
                entry.last_offset,
            )
            for entry in entries
        ] == [
            (
                int(row["producerId"]),
                int(row["producerEpoch"]),
                int(row["coordinatorEpoch"]),
                row["currentTxnFirstOffset"],
                int(row.get("lastSequence", -1)),
                int(row.get("lastOffset", -1)),
            )
            for row in rows
        ]
        assert encode_producer_snapshot(entries) == path.read_bytes()


@every_partition
def test_small_files_of_a_partition_are_written_as_kafka_wrote_them(
    partition: GoldenPartition,
) -> None:
    epochs = (partition.directory / "leader-epoch-checkpoint").read_bytes()
    assert LeaderEpochs.decode(epochs).encode() == epochs
    metadata = (partition.directory / "partition.metadata").read_bytes()
    topic_id = decode_partition_metadata(metadata)
    assert encode_partition_metadata(topic_id) == metadata
    if "topic_id" in partition.manifest:
        assert encode_topic_id(topic_id) == partition.manifest["topic_id"]


@pytest.mark.parametrize("golden", NAMES)
def test_small_files_of_a_directory_are_read(golden: str) -> None:
    directory = GOLDENS / golden / "data"
    for name in ("recovery-point", "log-start", "replication"):
        _check_offset_checkpoint(directory / f"{name}-offset-checkpoint")
    _check_offset_checkpoint(directory / "cleaner-offset-checkpoint")
    owner = decode_meta_properties((directory / "meta.properties").read_bytes())
    assert (owner.version, owner.node_id) == (1, 1)
    assert decode_meta_properties(encode_meta_properties(owner)) == owner


def test_clean_shutdown_marker_yields_the_broker_epoch() -> None:
    marker = (GOLDENS / "clean" / "data" / ".kafka_cleanshutdown").read_bytes()
    epoch = decode_clean_shutdown(marker)
    assert epoch is not None
    assert f'"brokerEpoch":{epoch}}}'.encode() in marker


def _check_offset_checkpoint(path: Path) -> None:
    data = path.read_bytes()
    again = encode_offsets(decode_offsets(data))
    assert sorted(again.splitlines()) == sorted(data.splitlines())


def _batches(path: Path) -> Iterator[tuple[int, Batch]]:
    data = path.read_bytes()
    position = 0
    # A preallocated file of a killed broker ends in zeros.
    while position < len(data) and any(data[position : position + 61]):
        header = decode_header(data, position, where=str(path))
        yield position, Batch(data[position : position + header.size], where=str(path))
        position += header.size


def _describe(batch: Batch, position: int) -> str:
    header: BatchHeader = batch.header
    horizon = _optional(-1 if header.delete_horizon_ms is None else header.delete_horizon_ms)
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset}"
        f" count: {header.records_count} baseSequence: {header.base_sequence}"
        f" lastSequence: {header.last_sequence} producerId: {header.producer_id}"
        f" producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.partition_leader_epoch}"
        f" isTransactional: {str(header.is_transactional).lower()}"
        f" isControl: {str(header.is_control).lower()} deleteHorizonMs: {horizon}"
        f" position: {position} {TIMESTAMP_NAMES[header.timestamp_type]}: {header.max_timestamp}"
        f" size: {header.size} magic: {header.magic} compresscodec: {header.codec.name.lower()}"
        f" crc: {header.crc} isvalid: {str(batch.is_valid_crc()).lower()}"
    )


def _optional(number: int) -> str:
    return "OptionalLong.empty" if number == -1 else f"OptionalLong[{number}]"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _sequence(batch: Batch, record: Record) -> int:
    header = batch.header
    if header.base_sequence == -1:
        return -1
    return header.base_sequence + record.offset - header.base_offset


def _rows(batch: Batch) -> Iterator[list[object]]:
    for record in batch.records():
        yield [
            record.offset,
            record.timestamp,
            TIMESTAMP_NAMES[batch.header.timestamp_type],
            batch.header.partition_leader_epoch,
            fingerprint(record.key),
            fingerprint(record.value),
            [[name, fingerprint(value)] for name, value in record.headers],
        ]
