"""The producer snapshot keeps Kafka's bytes and trusts nothing that fails its checksum."""

import struct

import numpy as np
import pytest

from tests.support.cases import case
from varve.commit_log.producer_snapshots import (
    SnapshotEntry,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.crc import crc32c

GOLDEN = bytes.fromhex(
    "0001c871c62e0000000100000000000000090001ffffffffffffffffffffffff"
    "0000000000000000000007d000000007ffffffffffffffff"
)
ENTRY = SnapshotEntry(
    producer_id=9,
    epoch=1,
    last_sequence=-1,
    last_offset=-1,
    offset_delta=0,
    timestamp=2000,
    coordinator_epoch=7,
    transaction_first_offset=-1,
)


def with_crc(data: bytes) -> bytes:
    crc = int(crc32c(np.frombuffer(data, np.uint8), 6, len(data)))
    return data[:2] + struct.pack(">I", crc) + data[6:]


def test_known_bytes_are_written_and_read() -> None:
    assert encode_producer_snapshot([ENTRY]) == GOLDEN
    assert decode_producer_snapshot(GOLDEN, "x") == [ENTRY]


def test_no_producers_are_a_header() -> None:
    data = encode_producer_snapshot([])
    assert len(data) == 10
    assert decode_producer_snapshot(data, "x") == []


def test_any_changed_byte_is_found() -> None:
    for position in range(len(GOLDEN)):
        with case(position=position):
            data = bytearray(GOLDEN)
            data[position] ^= 0x10
            with pytest.raises(Corrupt, match="some/file"):
                decode_producer_snapshot(data, "some/file")


@pytest.mark.parametrize("size", [0, 1, 5, 6, 9, 10, 55])
def test_torn_file_is_refused(size: int) -> None:
    with pytest.raises(Corrupt):
        decode_producer_snapshot(GOLDEN[:size], "x")


@pytest.mark.parametrize("version", [0, 2, -1])
def test_only_version_one_is_read(version: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"version {version}"):
        decode_producer_snapshot(struct.pack(">h", version) + GOLDEN[2:], "x")


@pytest.mark.parametrize("count", [0, 2, -1, 2**31 - 1])
def test_count_must_fit_the_length(count: int) -> None:
    data = with_crc(GOLDEN[:6] + struct.pack(">i", count) + GOLDEN[10:])
    with pytest.raises(Corrupt, match=f"{count} entries"):
        decode_producer_snapshot(data, "x")
