"""The bits of a plan come back as they were planned, from memory or from a work area."""

import errno
import sys
from pathlib import Path

import numpy as np
import pytest

from varve.cleaning.compaction.key_plan import KeyPlan, lay_out_bits
from varve.foundation.errors import Corrupt, DiskFull, Unavailable
from varve.jobs import key_plans
from varve.jobs.key_plans import LatestRecords, RangeFold, RangeOutcome, WorkArea, remove_folder
from varve.jobs.tasks import TaskError
from varve.kernels.key_merge import TALLY_COUNT
from varve.object_store import MemoryObjectStore

COUNTS = [100, 0, 9, 70_000]
RANGES = 5


def make_plans() -> list[KeyPlan]:
    """Ranges that each set every fifth bit, of tombstones every tenth."""
    starts, size = lay_out_bits(COUNTS)
    plans = []
    for number in range(RANGES):
        flags = np.zeros(size * 8, np.uint8)
        for start, count in zip(starts.tolist(), COUNTS, strict=True):
            flags[start + number : start + count : RANGES] = 1
        tombstones = flags.copy()
        tombstones[1::2] = 0
        keep, gone = (np.packbits(bits, bitorder="little") for bits in (flags, tombstones))
        tallies = np.full((len(COUNTS), TALLY_COUNT), number, np.int64)
        plans.append(KeyPlan(keep, gone, starts, tallies, 1, number / 10))
    return plans


def fold(area: WorkArea | None) -> LatestRecords:
    folded = RangeFold(COUNTS, area)
    for number, plan in enumerate(make_plans()):
        folded.add(RangeOutcome.store(plan, area, number))
    return folded.result()


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def area(store: MemoryObjectStore) -> WorkArea:
    return WorkArea(lambda: store, "work/job/")


def test_bits_come_back_for_any_segments_from_memory_and_from_an_area(area: WorkArea) -> None:
    for found in (fold(None), fold(area)):
        assert found.tallies.tolist() == [[10] * TALLY_COUNT] * len(COUNTS)
        assert (found.range_count, found.buffer_utilisation) == (RANGES, 0.4)
        for first in range(len(COUNTS)):
            for end in range(first + 1, len(COUNTS) + 1):
                some = found.bits.read(first, COUNTS[first:end])
                for bits, count in zip(some, COUNTS[first:end], strict=True):
                    flags = np.unpackbits(bits.keep, bitorder="little")
                    assert flags[:count].all()
                    assert not flags[count:].any()
                    gone = np.unpackbits(bits.tombstones, bitorder="little")
                    assert gone[:count].tolist() == [1, 0] * (count // 2) + [1] * (count % 2)


def test_work_that_is_gone_or_damaged_says_so(area: WorkArea, store: MemoryObjectStore) -> None:
    found = fold(area)
    data = bytearray(store.get(area.key(2)))
    data[-3] ^= 1
    store.put(area.key(2), bytes(data))
    with pytest.raises(Corrupt, match="run the job again"):
        found.bits.read(3, COUNTS[3:])
    store.put(area.key(2), bytes(data[:20]))
    with pytest.raises(Corrupt, match="run the job again"):
        found.bits.read(0, COUNTS)
    assert remove_folder(store, area.folder) == RANGES
    with pytest.raises(Unavailable, match="run it again"):
        found.bits.read(0, COUNTS)


def test_a_range_that_failed_fails_the_plan(area: WorkArea) -> None:
    folded = RangeFold(COUNTS, area)
    folded.add(TaskError(Unavailable("the store is away")))
    folded.add(RangeOutcome.store(make_plans()[0], area, 1))
    with pytest.raises(Unavailable, match="the store is away"):
        folded.result()


def test_large_bits_lie_in_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(key_plans, "_FILE_BYTES", 1 << 20)
    small, large = key_plans.file_bits(1 << 20), key_plans.file_bits((1 << 20) + 1)
    assert not large.any()
    large[-1] = 255
    assert (int(large[-1]), small.size) == (255, 1 << 20)
    if sys.platform == "linux":
        maps = Path("/proc/self/maps").read_text()
        assert [line for line in maps.splitlines() if str(tmp_path) in line], "not a file"
    assert list(tmp_path.iterdir()) == []


def test_a_full_temporary_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(DiskFull, match=str(tmp_path)):
        key_plans.file_bits((16 << 20) + 1)
