"""Producer snapshots: their bytes, what is loaded of them, and what is replayed from batches."""

import random
import struct

import numpy as np
import pytest

from tests.support.cases import case
from tests.support.log_bench import NOW_MS, Bench, make_batch
from varve.commit_log import AppendOrigin, LogAppendResult, LogSettings
from varve.commit_log.names import log_name
from varve.commit_log.producer_snapshots import (
    SnapshotEntry,
    decode_marker,
    decode_producer_snapshot,
    encode_producer_snapshot,
    replay_batches,
    summarize_row,
)
from varve.commit_log.producer_state import Marker, ProducerStateManager
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.transaction_index import TransactionIndex
from varve.foundation.errors import Corrupt, OutOfOrderSequence, UnsupportedFormat
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.crc import crc32c
from varve.records import end_transaction_marker

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


# Replaying stored batches leaves the same producers as appending them did


@pytest.mark.parametrize("seed", range(8))
def test_replay_equals_append(bench: Bench, seed: int) -> None:
    source = random.Random(seed)
    bench.open()
    sequences = dict.fromkeys(range(4), 0)
    in_transaction: set[int] = set()
    for _ in range(120):
        producer = source.choice([-1, *sequences])
        if producer < 0:
            bench.fill(1)
        elif producer in in_transaction and source.random() < 0.4:
            in_transaction.discard(producer)
            bench.log.end_transaction(
                producer_id=producer, producer_epoch=0, committed=source.random() < 0.5
            )
        else:
            transactional = producer in in_transaction or source.random() < 0.3
            count = source.randint(1, 3)
            if transactional:
                in_transaction.add(producer)
            bench.log.append(
                make_batch(
                    count,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequences[producer],
                    transactional=transactional,
                )
            )
            sequences[producer] += count
    expected = bench.log.producers
    replayed, index = ProducerStateManager(), TransactionIndex(0)
    file = bench.log.view.active.file()
    for table in BatchWalk(file, start=0, end=bench.log.size, verify_crc=True):
        replay_batches(table, replayed, index, where="here")
    assert replayed.entries == expected.entries
    assert replayed.ongoing == expected.ongoing
    assert list(index.entries()) == bench.log.aborted_transactions()


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_decoded(committed: bool) -> None:
    batch = end_transaction_marker(
        committed=committed, producer_id=1, producer_epoch=0, coordinator_epoch=7, timestamp=5
    )
    assert decode_marker(memoryview(batch), "here") == Marker(committed, 7)


def test_an_emptied_marker_is_ignored(bench: Bench) -> None:
    bench.open()
    bench.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    row = np.zeros(len(BatchColumn), np.int64)
    row[[BatchColumn.PRODUCER_ID, BatchColumn.ATTRIBUTES, BatchColumn.BASE_SEQUENCE]] = (
        1,
        0x30,
        -1,
    )
    row[[BatchColumn.BASE_OFFSET, BatchColumn.LAST_OFFSET]] = 1
    summary = summarize_row(row.tolist(), None, "here")
    plan = bench.log.producers.check_and_plan([summary], AppendOrigin.REPLICATION)
    assert (plan.entries, plan.completed) == ({}, [])


# Producer state at load: stray snapshots, damaged ones, none at all


def produce(bench: Bench, sequence: int, producer: int = 1, **fields: int) -> LogAppendResult:
    return bench.log.append(
        make_batch(producer_id=producer, producer_epoch=0, base_sequence=sequence, **fields)  # type: ignore[arg-type] # only `time` is passed
    )


def snapshots(bench: Bench) -> list[int]:
    return [int(name[:20]) for name in bench.names(".snapshot")]


def known(bench: Bench) -> dict[int, int]:
    """The last sequence of each producer."""
    entries = bench.log.producers.entries
    return {producer_id: entry.last_sequence for producer_id, entry in entries.items()}


@pytest.fixture
def rolled(bench: Bench) -> Bench:
    """Producer 1 wrote sequences 0..3, one to a segment; closed in order."""
    bench.open()
    for sequence in range(4):
        if sequence:
            bench.log.roll()
        produce(bench, sequence)
    bench.log.close()
    assert snapshots(bench) == [1, 2, 3, 4]
    return bench


def test_snapshots_that_name_no_segment_are_removed(rolled: Bench) -> None:
    rolled.open(clean=True)
    produce(rolled, 4)
    rolled.log.close()
    assert snapshots(rolled) == [1, 2, 3, 4, 5]
    rolled.open(clean=True)
    assert snapshots(rolled) == [1, 2, 3, 5]


def test_the_largest_stray_is_kept_when_it_is_not_below_the_last_segment(rolled: Bench) -> None:
    rolled.open(clean=True)
    assert snapshots(rolled) == [1, 2, 3, 4]


def test_the_largest_stray_below_the_last_segment_goes_too(rolled: Bench) -> None:
    for kind in (".log", ".index", ".timeindex"):
        rolled.fs.remove(rolled.path(1, kind))
    rolled.fs.remove(rolled.path(4, ".snapshot"))
    rolled.open(clean=True)
    assert 1 not in snapshots(rolled)


@pytest.mark.parametrize("clean", [True, False])
def test_without_any_snapshot_a_log_is_replayed(rolled: Bench, clean: bool) -> None:
    for offset in snapshots(rolled):
        rolled.fs.remove(rolled.path(offset, ".snapshot"))
    rolled.open(clean=clean)
    assert known(rolled) == {1: 3}


def test_snapshots_above_the_log_end_are_removed(rolled: Bench) -> None:
    rolled.write(9, ".snapshot", rolled.read_file(4, ".snapshot"))
    rolled.open(clean=True)
    assert 9 not in snapshots(rolled)
    assert known(rolled) == {1: 3}


def test_snapshots_up_to_the_log_start_are_removed(rolled: Bench) -> None:
    rolled.open(clean=True, log_start_offset=2)
    assert snapshots(rolled) == [3, 4]


def test_the_newest_snapshot_is_loaded_and_the_rest_replayed(rolled: Bench) -> None:
    rolled.fs.remove(rolled.path(4, ".snapshot"))
    rolled.open(clean=True)
    assert known(rolled) == {1: 3}
    assert snapshots(rolled) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "damage", [b"", b"\x00", b"\x00\x02" + bytes(8), b"garbage of some length"]
)
def test_a_damaged_snapshot_is_removed_and_the_next_older_serves(
    rolled: Bench, damage: bytes
) -> None:
    rolled.write(4, ".snapshot", damage)
    rolled.write(3, ".snapshot", damage)
    rolled.open(clean=True)
    assert known(rolled) == {1: 3}
    assert len(rolled.read_file(4, ".snapshot")) > len(damage)


def test_when_all_snapshots_are_damaged_the_log_is_replayed_from_its_start(rolled: Bench) -> None:
    for offset in snapshots(rolled):
        rolled.write(offset, ".snapshot", b"x")
    rolled.open(clean=True)
    assert known(rolled) == {1: 3}
    assert snapshots(rolled) == [2, 3, 4]


def test_replay_begins_at_the_log_start(rolled: Bench) -> None:
    rolled.open(clean=True)
    produce(rolled, 0, producer=2)
    rolled.log.close()
    for offset in snapshots(rolled):
        rolled.write(offset, ".snapshot", b"x")
    rolled.open(clean=True, log_start_offset=4)
    assert known(rolled) == {2: 0}


def test_expired_producers_are_dropped_from_a_snapshot(rolled: Bench) -> None:
    rolled.clock.advance(1000)
    rolled.open(clean=True, producer_expiration_ms=1000)
    assert known(rolled) == {}


def test_batches_that_a_snapshot_does_not_tell_are_recalled_from_the_last_two_segments(
    rolled: Bench,
) -> None:
    rolled.open(clean=True)
    assert produce(rolled, 3).is_duplicate
    assert produce(rolled, 2).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        produce(rolled, 1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_may_repeat_its_last_five_batches_after_every_start(
    bench: Bench, clean: bool
) -> None:
    bench.open()
    for sequence in range(7):
        produce(bench, sequence)
    for _ in range(2):
        bench.log.close()
        bench.open(clean=clean)
    entry = bench.log.producers.entries[1]
    assert [one.first_offset for one in entry.batches] == [2, 3, 4, 5, 6]
    assert all(produce(bench, sequence).is_duplicate for sequence in range(2, 7))
    assert not produce(bench, 7).is_duplicate


def test_batches_of_an_older_epoch_are_not_recalled(bench: Bench) -> None:
    bench.open()
    for epoch in (0, 1):
        batch = make_batch(producer_id=1, producer_epoch=epoch, base_sequence=0)
        bench.log.append(batch)
    bench.log.close()
    bench.open(clean=True)
    entry = bench.log.producers.entries[1]
    assert (entry.epoch, len(entry.batches)) == (1, 1)


def test_replay_does_not_check_sequences(bench: Bench) -> None:
    bench.open()
    gapped = (
        make_batch(producer_id=1, producer_epoch=0, base_sequence=s, base_offset=s)
        for s in (0, 7, 9)
    )
    bench.log.append_replicated(b"".join(gapped))
    bench.crash()
    assert known(bench) == {1: 9}


def test_replay_remembers_five_batches_of_each_producer(bench: Bench) -> None:
    bench.open()
    for sequence in range(8):
        produce(bench, sequence, producer=1)
        produce(bench, sequence, producer=2)
    bench.fill(1)
    bench.log.truncate_to(16)
    assert produce(bench, 3, producer=1).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        produce(bench, 2, producer=2)


def test_the_producers_last_timestamp_is_that_of_the_record(bench: Bench) -> None:
    bench.open()
    produce(bench, 0, time=55)
    bench.crash()
    assert bench.log.producers.entries[1].last_timestamp == NOW_MS + 55


def test_a_snapshot_is_left_at_the_last_two_segments_and_the_end(bench: Bench) -> None:
    bench.settings = LogSettings(segment_bytes=len(make_batch()))
    bench.open()
    for sequence in range(6):
        produce(bench, sequence)
    for offset in snapshots(bench):
        bench.fs.remove(bench.path(offset, ".snapshot"))
    bench.crash(recovery_point=5)
    assert snapshots(bench)[-2:] == [5, 6]
    assert log_name(4, ".snapshot") in bench.names()


@pytest.mark.parametrize("step", ["truncate", "truncate all", "reset", "restart", "crash", "drop"])
def test_snapshots_that_vanish_while_the_log_is_open_take_nothing_offline(
    bench: Bench, step: str
) -> None:
    log = bench.open()
    for sequence in range(5):
        log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
        log.roll()
    for offset in snapshots(bench):
        bench.fs.remove(bench.path(offset, ".snapshot"))
    if step == "truncate":
        log.truncate_to(3)
    elif step == "truncate all":
        log.truncate_to(0)
    elif step == "reset":
        log.reset_at(10)
    elif step == "drop":
        log.drop_segments_before(3, now_ms=0)
    elif step == "restart":
        log = bench.reopen()
    else:
        log = bench.crash()
    expected = {"truncate": {1: 2}, "truncate all": {}, "reset": {}}
    assert known(bench) == expected.get(step, {1: 4})
    log.append(make_batch())
    log.flush()
    assert log.health.is_usable
