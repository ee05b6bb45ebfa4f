"""G7: whatever the bytes of a small file are, its reader gives a value or a named error."""

import contextlib
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from varve.commit_log.directory_files import (
    DirectoryMetadata,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_meta_properties,
    encode_partition_metadata,
)
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import TopicPartition, parse_file_name, parse_partition_directory
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.commit_log.producer_snapshots import (
    SnapshotEntry,
    encode_producer_snapshot,
    load_snapshot,
)
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import Corrupt
from varve.kernels.crc import crc32c


def read_offset_index(data: bytes) -> None:
    index = OffsetIndex.decode(data, 7, 64)
    assert index.count == len(data) // 8
    assert index.is_ascending in (True, False)
    index.lookup(9)
    index.truncate_to(11)
    index.check("x")


def read_time_index(data: bytes) -> None:
    index = TimeIndex.decode(data, 7, 96)
    assert index.count == len(data) // 12
    assert index.is_ascending in (True, False)
    index.lookup(1000)
    index.truncate_to(11)
    index.check("x")


def read_txn_index(data: bytes) -> None:
    index = TransactionIndex.decode(data, 7, "x")
    index.collect(5, 90)
    assert index.encode() == data
    index.check("x")


def read_snapshot(data: bytes) -> None:
    states = ProducerStateManager()
    load_snapshot(states, data, now_ms=1000, expiration_ms=10)
    states.advance_high_watermark(10)


def read_snapshot_with_right_crc(data: bytes) -> None:
    if len(data) >= 6:
        crc = int(crc32c(np.frombuffer(data, np.uint8), 6, len(data)))
        data = b"\0\1" + struct.pack(">I", crc) + data[6:]
    read_snapshot(data)


def read_epochs(data: bytes) -> None:
    epochs = LeaderEpochs.decode(data, "x")
    assert LeaderEpochs.decode(epochs.encode(), "x").entries == epochs.entries


def read_offsets(data: bytes) -> None:
    offsets = decode_offsets(data, "x")
    assert decode_offsets(encode_offsets(offsets), "x") == offsets


def read_partition_metadata(data: bytes) -> None:
    topic_id = decode_partition_metadata(data, "x")
    assert decode_partition_metadata(encode_partition_metadata(topic_id), "x") == topic_id


def read_meta_properties(data: bytes) -> None:
    metadata = decode_meta_properties(data, "x")
    assert decode_meta_properties(encode_meta_properties(metadata), "x") == metadata


def read_clean_shutdown(data: bytes) -> None:
    decode_clean_shutdown(data)


def read_directory_name(data: bytes) -> None:
    name = data.decode(errors="replace")
    parse_file_name(name)
    parse_partition_directory(name)


_SNAPSHOT = encode_producer_snapshot([SnapshotEntry(1, 0, 5, 9, 2, 995, 3, 7)] * 2)
_TXN = TransactionIndex(7)
_TXN.append(AbortedTransaction(1, 2, 8, 9))
_TXN.append(AbortedTransaction(2, 5, 80, 90))
_OFFSETS = OffsetIndex(7, 64)
_TIMES = TimeIndex(7, 96)
for _n in range(4):
    _OFFSETS.append(8 + _n, 100 * _n)
    _TIMES.append(1000 + _n, 8 + _n)

READERS: list[tuple[Callable[[bytes], None], bytes]] = [
    (read_offset_index, _OFFSETS.encode()),
    (read_time_index, _TIMES.encode()),
    (read_txn_index, _TXN.encode()),
    (read_snapshot, _SNAPSHOT),
    (read_snapshot_with_right_crc, _SNAPSHOT),
    (read_epochs, b"0\n2\n0 0\n4 50\n"),
    (read_offsets, encode_offsets({TopicPartition("a", 0): 5, TopicPartition("b", 1): 77})),
    (read_partition_metadata, b"version: 0\ntopic_id: Wh88LottT3CaIcPU5fYHGA"),
    (
        read_meta_properties,
        encode_meta_properties(DirectoryMetadata(cluster_id="c\u20ac", node_id=1)),
    ),
    (read_clean_shutdown, b'{"version":0,"brokerEpoch":5}'),
    (read_directory_name, b"topic-0.0123456789abcdef0123456789abcdef-delete"),
]

Edit = tuple[int, int, int]  # position, bytes taken out there, byte put in (256 none)
EDITS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 9), st.integers(0, 256)), max_size=4)


def edited(data: bytes, edits: list[Edit]) -> bytes:
    changed = bytearray(data)
    for position, taken, put in edits:
        start = position % (len(changed) + 1)
        changed[start : start + taken] = bytes([put]) if put < 256 else b""
    return bytes(changed)


@pytest.mark.parametrize("read", [read for read, _ in READERS])
@given(data=st.binary(max_size=150))
@example(data=b"")
@example(data=bytes(120))
@example(data=b"\xff" * 120)
def test_any_bytes(read: Callable[[bytes], None], data: bytes) -> None:
    with contextlib.suppress(Corrupt):
        read(data)


@pytest.mark.parametrize(
    ("read", "good"), [pytest.param(*reader, id=reader[0].__name__) for reader in READERS]
)
@given(edits=EDITS)
def test_edited_files(read: Callable[[bytes], None], good: bytes, edits: list[Edit]) -> None:
    if not edits:
        read(good)
        return
    with contextlib.suppress(Corrupt):
        read(edited(good, edits))
