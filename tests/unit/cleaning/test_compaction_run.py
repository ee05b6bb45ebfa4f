"""A run over one partition: what it leaves aside when it fails, and what a held segment forbids."""

import contextlib
import errno
import struct
from typing import NoReturn

import pytest

from tests.support.cleaning_bench import (
    DIRECTORY,
    PARTITION,
    RETENTION_MS,
    CleaningBench,
    compacted,
)
from tests.support.crash_images import crash_images, named, record
from varve.cleaning.metrics import CleanProgress
from varve.commit_log.names import CLEANED, LOG, log_name
from varve.foundation.errors import StoreError
from varve.foundation.settings import LONG_MAX
from varve.records import Record
from varve.testing.faulty_disk import CrashMode


def _fill(bench: CleaningBench, rounds: int = 3) -> None:
    """Segments of the same five keys, each superseding the one before."""
    for number in range(rounds):
        for key in range(5):
            bench.put(f"key-{key}", f"value-{number}")
        bench.put(f"own-{number}", "")
        bench.roll()
    bench.put("tail", "")


def _flip_last_byte(bench: CleaningBench, base_offset: int) -> bytes:
    path = f"{DIRECTORY}/{log_name(base_offset, LOG)}"
    data = bench.disk.read(path)
    with bench.disk.open_writable(path) as file:
        file.write_at(len(data) - 1, struct.pack("B", data[-1] ^ 0xFF))
    return data


def _values(bench: CleaningBench) -> dict[bytes, bytes | None]:
    return {key: record.value for key, record in bench.state().items()}


@pytest.mark.parametrize("mixes_producers", [False, True])
def test_an_aborted_transaction_stays_known_while_its_records_are_held(
    mixes_producers: bool,
) -> None:
    bench = CleaningBench(compacted())
    bench.put("x", "0")
    bench.roll()
    bench.put("k", "good")
    if mixes_producers:
        bench.append([Record(b"m", b"bad")], producer_id=7, transactional=True)
        bench.end_transaction(7, committed=False)
    bench.append([Record(b"k", b"bad")], producer_id=7, transactional=True)
    bench.put("z", "1")
    bench.roll()
    bench.put("y", "1")
    bench.end_transaction(7, committed=False)
    bench.put("y", "2")
    bench.roll()
    data = _flip_last_byte(bench, 1)
    (hold,) = bench.clean().holds
    assert hold.base_offset == 1
    with bench.disk.open_writable(f"{DIRECTORY}/{log_name(1, LOG)}") as file:
        file.write_at(0, data)
    assert _values(bench) == {b"x": b"0", b"k": b"good", b"z": b"1", b"y": b"2"}
    bench.reopen()
    bench.clean()
    assert _values(bench) == {b"x": b"0", b"k": b"good", b"z": b"1", b"y": b"2"}


def test_a_retention_without_end_keeps_tombstones_forever() -> None:
    bench = CleaningBench(compacted(delete_retention_ms=LONG_MAX))
    bench.append([Record(b"k", b"1", timestamp=5), Record(b"k", None, timestamp=7)])
    bench.append([Record(b"n", None)])
    bench.roll()
    for number in range(3):
        bench.clean()
        assert bench.offsets()[:2] == [1, 2]
        assert [record.timestamp for record in bench.committed()[:2]] == [7, -1]
        bench.advance(10**12)
        bench.put("new", str(number))
        bench.roll()


def test_a_balance_that_cannot_be_put_on_record_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = CleaningBench(compacted())
    _fill(bench)

    def fail() -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(bench.cleaner.removals.get(bench.log), "next_id", fail)
        with pytest.raises(StoreError):
            bench.clean()
    assert not [name for name in bench.names() if name.endswith(CLEANED)]


def _with_a_file_left_aside() -> CleaningBench:
    bench = CleaningBench(compacted())
    bench.put("first", "1" * 500)
    bench.roll()
    bench.clean()
    bench.append([Record(b"own", b"1" * 100), Record(b"k", b"old")])
    bench.roll()
    bench.put("k", "new")
    bench.roll()
    with bench.disk.open_writable(f"{DIRECTORY}/{log_name(0, LOG)}{CLEANED}") as file:
        file.sync()
    return bench


def test_what_an_earlier_run_left_aside_undoes_no_later_swap() -> None:
    """Recovery takes a `.cleaned` file for a proof that the swaps behind it are not committed."""
    bench = _with_a_file_left_aside()
    points = record(bench.clean, lambda: None, disk=bench.faulty)
    assert bench.offsets() == [0, 1, 3]
    assert [segment.base_offset for segment in bench.log.view][:2] == [0, 1]
    for image in crash_images(points, lambda step: [(CrashMode.KEEP_ALL, 0)]):
        with named(image):
            found = bench.on(image.disk)
            assert found.state() == found.true_state()


def test_a_swap_that_can_be_neither_made_nor_taken_back_loses_nothing() -> None:
    bench = CleaningBench(compacted())
    for key in ("a", "b"):
        bench.put(key, "old")
        bench.roll()
    bench.append([Record(b"a", b"new"), Record(b"b", b"new")])
    bench.roll()
    measure = bench.copy()
    first = measure.faulty.steps + 1
    measure.clean()
    for step in range(first, measure.faulty.steps + 1):
        broken = bench.copy()
        for number in (step, step + 1):
            broken.faulty.fail_at(number, OSError(errno.EIO, "input/output error"))
        with contextlib.suppress(StoreError):
            broken.clean()
        trace = broken.faulty.describe_trace(40)
        broken.faulty.mend()
        broken.crash()
        assert broken.state() == broken.true_state(), trace


def _uneven(bench: CleaningBench) -> None:
    """Batches whose bytes are nearly all in one of their two records, which stays."""
    for number in range(4):
        bench.append([Record(b"k", b"x"), Record(b"%d" % number, b"x" * 400_000)])
        bench.roll()


def test_segments_are_joined_by_the_bytes_that_stay_of_them() -> None:
    bench = CleaningBench(compacted(segment_bytes=1 << 20))
    _uneven(bench)
    bench.clean()
    closed = bench.log.view.closed
    assert [segment.base_offset for segment in closed] == [0, 4, 6]
    assert max(segment.size for segment in closed) <= bench.settings.segment_bytes


def test_a_topic_that_is_compacted_no_longer_keeps_what_is_left() -> None:
    bench = CleaningBench(compacted(segment_bytes=500_000))
    _uneven(bench)

    def change_policy(progress: CleanProgress) -> None:
        if progress.phase == "copy":
            bench.log.configure(compacted(cleanup_policy=("delete",)))

    report = bench.cleaner.clean(PARTITION, bench.now_ms, progress=change_policy)
    assert "cleanup.policy" in report.note
    assert report.segments_rewritten == 1
    assert bench.directory.cleaner_offset(PARTITION) is None


def test_markers_do_not_pile_up_in_segments_that_stay_as_they_are() -> None:
    """Nothing in such a segment is stale until a rewrite has given its markers a horizon."""
    bench = CleaningBench(compacted(min_stale_ratio=0.1, segment_bytes=2000))
    for _ in range(8):
        for _ in range(12):
            bench.append([Record(b"k", b"v")], producer_id=7, transactional=True)
            bench.end_transaction(7, committed=True)
        bench.roll()
        bench.advance(RETENTION_MS + 1)
        bench.clean()
    assert len(bench.offsets()) <= 40


def test_emptied_batches_of_producers_gone_do_not_stay_for_ever() -> None:
    bench = CleaningBench(compacted(min_stale_ratio=0.1))
    for producer_id in range(20):
        bench.append([Record(b"k", b"v")], producer_id=producer_id)
    bench.roll()
    bench.put("k", "v")
    bench.roll()
    bench.clean()
    assert sum(not batch.records for batch in bench.batches()) == 20
    bench.forget_producers()
    bench.put("other", "v" * 1000)
    bench.roll()
    bench.clean()
    assert not [batch for batch in bench.batches() if not batch.records]


@pytest.mark.parametrize("min_stale_ratio", [0.0, 0.1])
def test_small_segments_are_joined_even_if_nothing_goes(min_stale_ratio: float) -> None:
    bench = CleaningBench(compacted(min_stale_ratio=min_stale_ratio))
    written = 0
    for number in range(100):
        bench.put(f"key-{number}", "value")
        bench.roll()
        written += bench.clean().bytes_written
    assert len(bench.log.view) <= 20
    assert len(bench.state()) == 100
    assert written <= 4 * bench.log.size


def test_a_large_segment_is_not_copied_for_small_ones() -> None:
    bench = CleaningBench(compacted())
    bench.put("large", "x" * 100_000)
    bench.roll()
    for number in range(30):
        bench.put(f"key-{number}", "value")
        bench.roll()
        bench.clean()
    assert [segment.size > 100_000 for segment in bench.log.view][:2] == [True, False]
    assert len(bench.log.view) <= 12


def test_g4_what_a_marker_decided_waits_for_the_marker_to_be_on_disk() -> None:
    bench = CleaningBench()
    bench.put("k", "old")
    new = Record(b"k", b"new", timestamp=bench.now_ms)
    bench.append([new], producer_id=1, transactional=True)
    bench.roll()
    bench.log.flush()
    bench.end_transaction(1, committed=True)
    bench.clean()
    bench.crash(CrashMode.LOSE_UNSYNCED)
    assert bench.state()[b"k"].value == b"new"


def test_g7_a_data_file_that_was_cut_behind_the_logs_back_is_held() -> None:
    bench = CleaningBench()
    for number in range(3):
        bench.put("k", f"value-{number}")
        bench.roll()
    path = bench.log.view.closed[1].path(LOG)
    with bench.disk.open_writable(path) as file:
        file.truncate(file.size() - 1)
    report = bench.clean()
    assert [hold.base_offset for hold in report.holds] == [1]


def test_g4_each_batch_of_a_segment_waits_for_its_own_delete_horizon() -> None:
    bench = CleaningBench(compacted(delete_retention_ms=RETENTION_MS))
    for key in ("early", "late"):
        bench.put(key, None)
        bench.put(f"after-{key}", "1")
        bench.roll()
        bench.clean()
        bench.advance(RETENTION_MS // 2)
    (segment, *_) = bench.segments()
    assert len({batch.delete_horizon_ms for batch in segment.batches if batch.records}) > 2
    bench.put("newest", "1")
    bench.roll()
    bench.clean()
    assert [record.key for record in bench.committed() if record.value is None] == [b"late"]
