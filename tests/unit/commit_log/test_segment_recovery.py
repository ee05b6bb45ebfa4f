"""Recovering one segment: what is cut, what is rebuilt, what is left alone."""

import zlib
from struct import pack, pack_into

import numpy as np
import pytest

from tests.support.log_bench import NOW_MS, Bench, make_batch, make_marker, read_all
from varve.commit_log import AppendOrigin
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.crc import crc32c

SIZE = len(make_batch())


def old_message(magic: int, size: int = 40) -> bytes:
    """A whole message of format 0 or 1 at offset 0."""
    body = bytes([magic]) + bytes(size)
    return pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


def with_crc(data: bytearray) -> bytes:
    pack_into(">I", data, 17, crc32c(np.frombuffer(data, np.uint8), 21, len(data)))
    return bytes(data)


def append_bytes(bench: Bench, data: bytes, offset: int = 0) -> None:
    bench.write(offset, ".log", bench.read_file(offset) + data)


def filled(bench: Bench, count: int = 3) -> Bench:
    bench.open()
    bench.fill(count)
    return bench


@pytest.mark.parametrize("size", [1, 11, 12, 16, 17, 60, SIZE - 1])
def test_an_incomplete_tail_is_cut(bench: Bench, size: int) -> None:
    append_bytes(filled(bench), make_batch(base_offset=3)[:size])
    log = bench.crash()
    assert read_all(log) == [0, 1, 2]
    assert len(bench.read_file(0)) == 3 * SIZE
    assert f"cut {size} bytes" in log.recovered[0]


@pytest.mark.parametrize("position", [8, 17, 21, 30, 61, SIZE - 1])
def test_a_batch_with_a_wrong_byte_is_cut_with_all_behind_it(bench: Bench, position: int) -> None:
    filled(bench, 4)
    data = bytearray(bench.read_file(0))
    data[2 * SIZE + position] ^= 0x41
    bench.write(0, ".log", bytes(data))
    log = bench.crash()
    assert read_all(log) == [0, 1]
    assert bench.log.append(make_batch()).base_offset == 2


def test_zeros_behind_the_last_batch_are_cut(bench: Bench) -> None:
    append_bytes(filled(bench), bytes(5000))
    assert read_all(bench.crash()) == [0, 1, 2]
    assert len(bench.read_file(0)) == 3 * SIZE


def test_offsets_that_do_not_ascend_are_cut_where_they_begin(bench: Bench) -> None:
    append_bytes(filled(bench), make_batch(base_offset=1) + make_batch(base_offset=9))
    log = bench.crash()
    assert read_all(log) == [0, 1, 2]
    assert "does not ascend" in log.recovered[0]


def test_an_offset_below_the_base_is_cut(bench: Bench) -> None:
    bench.open()
    bench.log.reset_at(10)
    append_bytes(bench, make_batch(base_offset=10) + make_batch(base_offset=3), 10)
    assert read_all(bench.crash()) == [10]


def test_a_marker_that_cannot_be_read_is_cut(bench: Bench) -> None:
    filled(bench)
    marker = bytearray(make_marker(committed=True))
    marker[0:8] = (3).to_bytes(8, "big")
    marker[66:68] = b"\xff\xff"  # the control key's version: -1
    append_bytes(bench, with_crc(marker) + make_batch(base_offset=4))
    log = bench.crash()
    assert read_all(log) == [0, 1, 2]
    assert "control record" in log.recovered[0]


def test_indexes_are_rebuilt_as_appending_made_them(bench: Bench) -> None:
    bench.set(index_interval_bytes=2 * SIZE).open()
    for time in (1, 9, 4, 9, 12, 3, 2, 20, 1, 1):
        bench.log.append(make_batch(time=time))
    bench.log.close()
    expected = (bench.read_file(0, ".index"), bench.read_file(0, ".timeindex"))
    for kind in (".index", ".timeindex"):
        bench.write(0, kind, b"\x01" * 24)
    bench.open()
    assert (bench.read_file(0, ".index"), bench.read_file(0, ".timeindex")) == expected


def test_the_final_time_entry_is_added(bench: Bench) -> None:
    bench.open()
    bench.fill(1, time=5)
    bench.crash()
    index = TimeIndex.decode(bench.read_file(0, ".timeindex"), 0, 100)
    assert index.entries().tolist() == [[NOW_MS + 5, 0]]


def test_a_replicated_set_is_indexed_batch_by_batch(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    bench.log.append_replicated(b"".join(make_batch(base_offset=i) for i in range(4)))
    bench.crash()
    index = OffsetIndex.decode(bench.read_file(0, ".index"), 0, 1000)
    assert index.entries().tolist() == [[i, i * SIZE] for i in range(1, 4)]


def test_aborted_transactions_are_rebuilt(bench: Bench) -> None:
    bench.open()
    for producer in (1, 2):
        bench.log.append(
            make_batch(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        )
    bench.log.append(make_marker(committed=False, producer_id=2), origin=AppendOrigin.COORDINATOR)
    bench.crash()
    assert bench.log.aborted_transactions() == [AbortedTransaction(2, 1, 2, 0)]
    assert bench.log.last_stable_offset == 0


def test_epochs_newer_than_known_are_assigned(bench: Bench) -> None:
    bench.open()
    for epoch in (1, 3):
        bench.log.append(make_batch(2), leader_epoch=epoch)
    bench.fs.remove("data/topic-0/leader-epoch-checkpoint")
    bench.crash()
    assert bench.fs.read("data/topic-0/leader-epoch-checkpoint") == b"0\n2\n1 0\n3 2\n"


def test_producers_are_rebuilt_and_a_snapshot_is_taken(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(3, producer_id=1, producer_epoch=0, base_sequence=0))
    bench.crash()
    assert bench.names(".snapshot") == ["00000000000000000003.snapshot"]
    again = bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=3))
    assert again.base_offset == 3


def test_recovery_twice_gives_the_same_files(bench: Bench) -> None:
    append_bytes(filled(bench), b"torn")
    bench.crash()
    first = {name: bench.fs.read(f"data/topic-0/{name}") for name in bench.names()}
    bench.crash()
    assert {name: bench.fs.read(f"data/topic-0/{name}") for name in bench.names()} == first


# Old formats


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_named_with_file_position_and_remedy(bench: Bench, magic: int) -> None:
    append_bytes(filled(bench), old_message(magic))
    bench.write(0, ".index", b"kept")
    before = {name: bench.fs.read(f"data/topic-0/{name}") for name in bench.names()}
    with pytest.raises(UnsupportedFormat, match=rf"0\.log: position {3 * SIZE}: .*Rewrite"):
        bench.crash()
    assert {name: bench.fs.read(f"data/topic-0/{name}") for name in bench.names()} == before


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_found_after_a_clean_stop_too(bench: Bench, magic: int) -> None:
    bench.open()
    bench.log.close()
    bench.write(0, ".log", old_message(magic))
    with pytest.raises(UnsupportedFormat, match="rewrite"):
        bench.open(clean=True)
    assert bench.read_file(0) == old_message(magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_torn_header_is_not_taken_for_an_old_format(bench: Bench, magic: int) -> None:
    torn = make_batch(base_offset=3)[:16] + bytes([magic]) + bytes(SIZE)
    append_bytes(filled(bench), torn)
    assert read_all(bench.crash()) == [0, 1, 2]


def test_garbage_in_the_tail_of_a_cleanly_closed_log_is_named(bench: Bench) -> None:
    filled(bench).log.close()
    append_bytes(bench, b"\xff" * 100)
    with pytest.raises(Corrupt, match=f"position {3 * SIZE}"):
        bench.open(clean=True)
