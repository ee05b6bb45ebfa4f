"""Mutated index, snapshot, checkpoint and metadata files meet the readers: named errors only.

VARVE_FUZZ_COUNT sets how many mutations are tried, VARVE_FUZZ_SEED where they start.
"""

import io
import os
import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.check_builder import ROOT, build_store, open_directory, write_file
from tests.support.check_open_log import check_log
from tests.support.directory_check import check_log_directory
from varve.cli.dump.files import dump_paths
from varve.cli.dump.records import DumpOptions
from varve.cli.dump.text import JsonFormat, TextFormat
from varve.commit_log.check import inspect_directory
from varve.commit_log.check.findings import FindingList, Severity
from varve.commit_log.check.partition import PartitionContext
from varve.commit_log.check.repair import Quarantine, RepairTools, repair_directory
from varve.commit_log.check.segment import CheckedSegment, OffsetEntryCheck, TimeEntryCheck
from varve.commit_log.directory_files import (
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_meta_properties,
    encode_partition_metadata,
)
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.commit_log.producer_snapshots import (
    decode_producer_snapshot,
    encode_producer_snapshot,
    load_snapshot,
)
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import StoreError
from varve.kernels.crc import crc32c

COUNT = int(os.environ.get("VARVE_FUZZ_COUNT", "50000"))
SEED = int(os.environ.get("VARVE_FUZZ_SEED", "1"))
WHOLE_STORE_COUNT = max(COUNT // 500, 1)
BASE_OFFSET = 29
NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 29, 104)
OFFSETS = (-(2**63), -1, 0, BASE_OFFSET, 40, 104, 2**31, 2**63 - 1)

Reader = Callable[[bytes, "Evidence"], None]


class Evidence:
    """The store the mutations start from."""

    def __init__(self) -> None:
        self.fs, self.clock = build_store()
        partition = f"{ROOT}/orders-0"
        self.files = {
            path: self.fs.read(path)
            for path in (
                *(f"{ROOT}/{name}" for name in self.fs.names(ROOT)),
                *(f"{partition}/{name}" for name in self.fs.names(partition)),
            )
            if not self.fs.info(path).is_directory and not path.endswith(".lock")
        }
        self.table = self._read_table(f"{partition}/{BASE_OFFSET:020d}.log")

    def _read_table(self, path: str) -> BatchTable:
        with self.fs.open(path) as file:
            walk = BatchWalk(file, start=0, end=file.size(), verify_crc=True)
            (table,) = list(walk)
        return table


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to three changes of the kinds that disks, tools and crashes make."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(MUTATIONS)(changed, rng)
    return bytes(changed)


def _flip_bit(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_number(data: bytearray, rng: random.Random) -> None:
    size = rng.choice((2, 4, 8))
    if len(data) >= size:
        value = rng.choice(NUMBERS) % (1 << (8 * size))
        position = rng.randrange(len(data) - size + 1)
        data[position : position + size] = value.to_bytes(size, "big")


def _write_digits(data: bytearray, rng: random.Random) -> None:
    position = rng.randrange(len(data) + 1)
    data[position : position + rng.randrange(3)] = str(rng.choice(NUMBERS)).encode()


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randrange(1, 48)]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = data[start : start + rng.randrange(1, 48)]


def _fill(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    size = rng.randrange(1, 64)
    data[start : start + size] = bytes([rng.choice((0, 255, 10, 32))]) * size


def seal(path: str, data: bytes) -> bytes:
    """The same with true checksums, so that what lies behind them is read too."""
    sealed = bytearray(data)
    if path.endswith(".snapshot") and len(data) >= 10:
        sealed[2:6] = _checksum(data, 6, len(data))
    position = 0
    while path.endswith(".log") and position + 61 <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if size < 61 or position + size > len(data):
            break
        sealed[position + 17 : position + 21] = _checksum(data, position + 21, position + size)
        position += size
    return bytes(sealed)


def _checksum(data: bytes, start: int, end: int) -> bytes:
    return int(crc32c(np.frombuffer(data, np.uint8), start, end)).to_bytes(4, "big")


PLACE = CheckedSegment(directory="orders-0", base_offset=BASE_OFFSET, is_recovered=False)
MUTATIONS = (_flip_bit, _flip_bit, _set_number, _write_digits, _cut, _remove, _repeat, _fill)


def read_offset_index(data: bytes, evidence: Evidence) -> None:
    index = OffsetIndex.decode(data, BASE_OFFSET, 4096)
    assert index.count == len(data) // 8
    for offset in OFFSETS:
        found, position = index.lookup(offset)
        assert isinstance(found, int)
        assert isinstance(position, int)
    check = OffsetEntryCheck(FindingList(), PLACE, index.entries())
    check.observe(evidence.table)
    check.report(end=evidence.table.end)
    index.truncate_to(40)
    OffsetIndex.decode(data, BASE_OFFSET, 4096).check("index")


def read_time_index(data: bytes, evidence: Evidence) -> None:
    index = TimeIndex.decode(data, BASE_OFFSET, 4096)
    assert index.count == len(data) // 12
    for timestamp in OFFSETS:
        index.lookup(timestamp)
    assert len(index.last) == 2
    check = TimeEntryCheck(FindingList(), PLACE, index.entries())
    check.observe(evidence.table)
    check.report(is_whole=True)
    index.truncate_to(40)
    TimeIndex.decode(data, BASE_OFFSET, 4096).check("index")


def read_txn_index(data: bytes, evidence: Evidence) -> None:
    index = TransactionIndex.decode(data, BASE_OFFSET)
    for offset in OFFSETS:
        index.collect(offset, 2**63 - 1)
    assert index.encode() == data
    index.check("index")


def read_snapshot(data: bytes, evidence: Evidence) -> None:
    states = ProducerStateManager()
    load_snapshot(states, data)
    assert encode_producer_snapshot(decode_producer_snapshot(data)) == data
    assert len(states.ongoing) <= len(states.entries)


def read_epochs(data: bytes, evidence: Evidence) -> None:
    epochs = LeaderEpochs.decode(data)
    for number in OFFSETS:
        epochs.epoch_for_offset(number)
        epochs.end_offset_for(number, 104)
    assert LeaderEpochs.decode(epochs.encode()).entries == epochs.entries


def read_checkpoint(data: bytes, evidence: Evidence) -> None:
    offsets = decode_offsets(data)
    assert decode_offsets(encode_offsets(offsets)) == offsets


def read_partition_metadata(data: bytes, evidence: Evidence) -> None:
    topic_id = decode_partition_metadata(data)
    assert decode_partition_metadata(encode_partition_metadata(topic_id)) == topic_id


def read_directory_metadata(data: bytes, evidence: Evidence) -> None:
    metadata = decode_meta_properties(data)
    assert decode_meta_properties(encode_meta_properties(metadata)) == metadata


def read_clean_shutdown(data: bytes, evidence: Evidence) -> None:
    epoch = decode_clean_shutdown(data)
    assert epoch is None or epoch >= 0


READERS: dict[str, tuple[Reader, int]] = {
    f"orders-0/{BASE_OFFSET:020d}.index": (read_offset_index, 4),
    f"orders-0/{BASE_OFFSET:020d}.timeindex": (read_time_index, 4),
    f"orders-0/{0:020d}.txnindex": (read_txn_index, 4),
    f"orders-0/{BASE_OFFSET:020d}.snapshot": (read_snapshot, 4),
    "orders-0/leader-epoch-checkpoint": (read_epochs, 3),
    "recovery-point-offset-checkpoint": (read_checkpoint, 3),
    "orders-0/partition.metadata": (read_partition_metadata, 1),
    "meta.properties": (read_directory_metadata, 1),
    ".kafka_cleanshutdown": (read_clean_shutdown, 1),
}
SHARES = sum(share for _, share in READERS.values())


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_read_or_refused_by_name(name: str, evidence: Evidence) -> None:
    reader, share = READERS[name]
    original = evidence.files[f"{ROOT}/{name}"]
    rng = random.Random(f"{SEED} {name}")
    refused = 0
    for number in range(COUNT * share // SHARES):
        data = mutate(original, rng)
        if number % 2:
            data = seal(name, data)
        try:
            reader(data, evidence)
        except StoreError:
            refused += 1
        except Exception as error:
            error.add_note(f"mutation {number} of seed {SEED}: {data.hex()}")
            raise
    assert refused or name == ".kafka_cleanshutdown" or name.endswith(".index")


def _mutated(path: str, evidence: Evidence, rng: random.Random) -> bytes:
    data = mutate(evidence.files[path], rng)
    return seal(path, data) if rng.random() < 0.5 else data


def _restore(fs: FileSystem, evidence: Evidence) -> None:
    for directory in (ROOT, f"{ROOT}/orders-0"):
        for name in fs.names(directory):
            path = f"{directory}/{name}"
            if path not in evidence.files and not fs.info(path).is_directory:
                fs.remove(path)
    for path, data in evidence.files.items():
        write_file(fs, path, data)


def test_check_and_dump_survive_any_mutated_file(evidence: Evidence) -> None:
    rng = random.Random(f"{SEED} whole")
    fs = evidence.fs
    for _ in range(WHOLE_STORE_COUNT):
        path = rng.choice(sorted(evidence.files))
        write_file(fs, path, _mutated(path, evidence, rng))
        for finding in check_log_directory(
            fs, ROOT, deep=True, now_ms=evidence.clock.now_ms(), lock=False
        ):
            assert finding.rule
            assert finding.message
        _dump(fs, rng)
        write_file(fs, path, evidence.files[path])
    assert check_log_directory(fs, ROOT, lock=False) == []


def _dump(fs: FileSystem, rng: random.Random) -> None:
    out = io.StringIO()
    format = (TextFormat if rng.random() < 0.5 else JsonFormat)(out, out)
    options = DumpOptions(has_records=True, has_values=True, sanity_check=rng.random() < 0.1)
    dump_paths(fs, [ROOT], options, format)
    assert out.getvalue()
    assert "Ignoring" not in out.getvalue()


def test_a_repaired_store_opens_whatever_was_mutated(evidence: Evidence) -> None:
    rng = random.Random(f"{SEED} repair")
    fs, clock = evidence.fs, ManualClock(evidence.clock.now_ms())
    context = PartitionContext(now_ms=clock.now_ms(), deep=True)
    tools = RepairTools(
        fs=fs,
        clock=clock,
        random=rng,
        quarantine=Quarantine(fs, "/store/kept"),
        allow_data_loss=True,
    )
    for number in range(max(WHOLE_STORE_COUNT // 4, 1)):
        for path in rng.sample(sorted(evidence.files), rng.choice((1, 1, 2, 4))):
            write_file(fs, path, _mutated(path, evidence, rng))
        report = repair_directory(inspect_directory(fs, ROOT, context), tools)
        after = inspect_directory(fs, ROOT, context).findings
        unmended = [f for f in after if f.severity is Severity.ERROR and f.repair is not None]
        assert report.refused or unmended == [], (number, unmended)
        directory = open_directory(fs, clock)
        if not report.refused:
            assert not directory.unreadable, (number, directory.unreadable)
            for log in directory.logs.values():
                broken = [f for f in check_log(log) if f.repair is not None]
                assert broken == [], number
        directory.abandon()
        _restore(fs, evidence)
    assert np.all(evidence.table.rows[:, 0] >= 0)
