"""The small files a real broker wrote are understood, and written back byte for byte."""

from collections.abc import Callable
from pathlib import Path

import pytest

from varve.commit_log.directory_files import (
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_meta_properties,
    encode_partition_metadata,
)
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import (
    CLEAN_SHUTDOWN_FILE,
    INDEX,
    LEADER_EPOCH_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_file_name,
    parse_partition_directory,
)
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.commit_log.producer_snapshots import (
    decode_producer_snapshot,
    encode_producer_snapshot,
    encode_snapshot,
    load_snapshot,
)
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex

KAFKA = Path(__file__).parents[2] / "fixtures" / "kafka"
DIRECTORIES = [KAFKA / "clean" / "data", KAFKA / "unclean" / "data"]
INDEX_BYTES = 4096


def without_zero_tail(data: bytes, entry_size: int) -> bytes:
    """The entries before the zeros that a running broker preallocates."""
    entries = [data[at : at + entry_size] for at in range(0, len(data), entry_size)]
    count = next((n for n, entry in enumerate(entries) if n and not any(entry)), len(entries))
    return b"".join(entries[:count])


def offset_index(data: bytes, offset: int, where: str) -> bytes:
    index = OffsetIndex.decode(without_zero_tail(data, 8), offset, INDEX_BYTES)
    index.check(where)
    return index.encode()


def time_index(data: bytes, offset: int, where: str) -> bytes:
    index = TimeIndex.decode(without_zero_tail(data, 12), offset, INDEX_BYTES)
    index.check(where)
    return index.encode()


def txn_index(data: bytes, offset: int, where: str) -> bytes:
    index = TransactionIndex.decode(data, offset, where)
    index.check(where)
    return index.encode()


def snapshot(data: bytes, offset: int, where: str) -> bytes:
    entries = decode_producer_snapshot(data, where)
    states = ProducerStateManager(where)
    load_snapshot(states, data, now_ms=0, expiration_ms=1, where=where)
    assert encode_snapshot(states) == data
    assert all(entry.last_offset < offset for entry in entries)
    return encode_producer_snapshot(entries)


ROUND_TRIPS: list[tuple[str, Callable[[bytes, int, str], bytes]]] = [
    (INDEX, offset_index),
    (TIME_INDEX, time_index),
    (TXN_INDEX, txn_index),
    (SNAPSHOT, snapshot),
]


@pytest.mark.parametrize(("kind", "round_trip"), ROUND_TRIPS)
def test_segment_files_come_back_as_they_were(
    kind: str, round_trip: Callable[[bytes, int, str], bytes]
) -> None:
    count = 0
    for directory in DIRECTORIES:
        for path in sorted(directory.glob(f"*/*{kind}")):
            name = parse_file_name(path.name)
            assert name is not None
            data = path.read_bytes()
            written = round_trip(data, name.offset, str(path))
            assert data == written.ljust(len(data), b"\0"), path
            count += 1
    assert count > 10


def test_directories_name_partitions() -> None:
    for directory in DIRECTORIES:
        for path in directory.iterdir():
            if path.is_dir():
                assert str(parse_partition_directory(path.name).topic_partition) == path.name


def test_text_files_of_partitions_come_back_as_they_were() -> None:
    for directory in DIRECTORIES:
        for path in directory.glob(f"*/{LEADER_EPOCH_FILE}"):
            assert LeaderEpochs.decode(path.read_bytes(), str(path)).encode() == path.read_bytes()
        for path in directory.glob(f"*/{PARTITION_METADATA_FILE}"):
            data = path.read_bytes()
            assert encode_partition_metadata(decode_partition_metadata(data, str(path))) == data


def test_checkpoints_come_back_but_for_their_order() -> None:
    for directory in DIRECTORIES:
        for path in directory.glob("*-checkpoint"):
            data = path.read_bytes()
            written = encode_offsets(decode_offsets(data, str(path)))
            assert written.splitlines()[:2] == data.splitlines()[:2]
            assert sorted(written.splitlines()) == sorted(data.splitlines())


def test_owner_and_clean_shutdown_are_read() -> None:
    for directory in DIRECTORIES:
        metadata = decode_meta_properties((directory / META_PROPERTIES_FILE).read_bytes(), "x")
        assert (metadata.version, metadata.node_id) == (1, 1)
        assert metadata.directory_id is not None
        assert decode_meta_properties(encode_meta_properties(metadata)) == metadata
    mark = (DIRECTORIES[0] / CLEAN_SHUTDOWN_FILE).read_bytes()
    assert f'"brokerEpoch":{decode_clean_shutdown(mark)}}}'.encode() in mark
