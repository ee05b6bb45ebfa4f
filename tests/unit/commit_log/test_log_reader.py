"""Reads by offset up to each limit, by time, and while the log changes under the reader."""

import errno
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.support.log_bench import (
    BROKEN,
    DIRECTORY,
    NOW_MS,
    Bench,
    FaultyBench,
    make_batch,
    offsets_in,
    read_all,
    split_batches,
)
from varve.commit_log import AbortedRange, Isolation, Log, TimestampOffset, segment_reader
from varve.commit_log.segment_reader import ReadableSegment
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    InvalidRequest,
    OffsetOutOfRange,
    Unavailable,
    UnsupportedFormat,
)
from varve.records import Record, build_batch

SIZE = len(make_batch())


def transaction(bench: Bench, producer: int, *, committed: bool, count: int = 1) -> int:
    """A transaction of one batch and its marker; gives the batch's offset."""
    fields: dict[str, Any] = {
        "producer_id": producer,
        "producer_epoch": 0,
        "transactional": True,
    }
    known = bench.log.producers.entries.get(producer)
    sequence = known.last_sequence + 1 if known else 0
    result = bench.log.append(make_batch(count, base_sequence=sequence, **fields))
    bench.log.end_transaction(producer_id=producer, producer_epoch=0, committed=committed)
    return result.base_offset


# By offset


def test_below_the_log_start_is_out_of_range(bench: Bench) -> None:
    bench.open()
    bench.fill(5)
    bench.log.delete_records(2)
    with pytest.raises(OffsetOutOfRange, match="begins at 2 and whose records end before 5"):
        bench.log.read(start_offset=1)
    assert offsets_in(bench.log.read(start_offset=2)) == [2, 3, 4]


def test_a_read_stays_within_a_segment(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2)
    fetched = bench.log.read(start_offset=0)
    assert (offsets_in(fetched), fetched.next_offset) == ([0, 1], 2)


def test_max_bytes_ends_the_read_at_a_whole_batch(bench: Bench) -> None:
    bench.open()
    bench.fill(5)
    assert offsets_in(bench.log.read(start_offset=1, max_bytes=2 * SIZE)) == [1, 2]
    assert offsets_in(bench.log.read(start_offset=1, max_bytes=3 * SIZE - 1)) == [1, 2]


@pytest.mark.parametrize("max_bytes", [0, 1, SIZE - 1])
def test_min_one_lets_the_first_batch_exceed_max_bytes(bench: Bench, max_bytes: int) -> None:
    bench.open()
    bench.fill(5)
    assert offsets_in(bench.log.read(start_offset=1, max_bytes=max_bytes)) == [1]


@pytest.mark.parametrize("max_bytes", [0, 1, SIZE - 1])
def test_without_min_one_max_bytes_may_return_nothing(bench: Bench, max_bytes: int) -> None:
    bench.open()
    bench.fill(5)
    fetched = bench.log.read(start_offset=1, max_bytes=max_bytes, min_one=False)
    assert (bytes(fetched.data), fetched.next_offset) == (b"", 1)


def test_negative_max_bytes_are_refused(bench: Bench) -> None:
    bench.open()
    with pytest.raises(InvalidRequest, match="max_bytes"):
        bench.log.read(start_offset=0, max_bytes=-1)


def test_a_batch_larger_than_the_probe_is_passed_over(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(value=bytes(20_000)))
    bench.fill(1)
    assert offsets_in(bench.log.read(start_offset=1)) == [1]


# Limits


def test_each_isolation_has_its_limit(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(1)
    bench.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    bench.fill(2)
    bench.log.advance_high_watermark(3)
    assert offsets_in(bench.log.read(start_offset=0, isolation=Isolation.LOG_END)) == [0, 1, 2, 3]
    assert offsets_in(bench.log.read(start_offset=0)) == [0, 1, 2]
    committed = bench.log.read(start_offset=0, isolation=Isolation.READ_COMMITTED)
    assert offsets_in(committed) == [0]
    assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)


def test_a_batch_that_reaches_the_limit_is_held_back(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(2, count=4)
    bench.log.advance_high_watermark(6)
    assert offsets_in(bench.log.read(start_offset=0)) == [0, 1, 2, 3]


def test_above_the_limit_there_is_nothing(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(4)
    bench.log.advance_high_watermark(1)
    fetched = bench.log.read(start_offset=3)
    assert (bytes(fetched.data), fetched.next_offset) == (b"", 3)


def test_the_limit_may_lie_segments_ahead(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(2, 2, 2)
    bench.log.advance_high_watermark(3)
    assert read_all(bench.log) == [0, 1, 2]


# Holes


def test_a_hole_between_segments_is_jumped(bench: Bench) -> None:
    bench.open()
    bench.fill(2)
    bench.log.roll()
    bench.log.append_replicated(make_batch(base_offset=10))
    assert offsets_in(bench.log.read(start_offset=5)) == [10]


def test_a_hole_at_the_tail_ends_at_the_log_end(bench: Bench) -> None:
    bench.open()
    bench.fill(3, count=4)
    bench.log.truncate_to(10)
    assert bench.log.end_offset == 10
    fetched = bench.log.read(start_offset=8)
    assert (bytes(fetched.data), fetched.next_offset) == (b"", 10)


# Transactions


def test_a_committed_read_lists_what_was_aborted_in_its_range(bench: Bench) -> None:
    bench.open()
    first = transaction(bench, 1, committed=False)
    transaction(bench, 2, committed=True)
    second = transaction(bench, 3, committed=False)
    fetched = bench.log.read(start_offset=0, isolation=Isolation.READ_COMMITTED)
    assert fetched.aborted == (AbortedRange(1, first), AbortedRange(3, second))
    assert bench.log.read(start_offset=0).aborted == ()


def test_what_ended_before_the_read_is_not_listed(bench: Bench) -> None:
    bench.open()
    transaction(bench, 1, committed=False)
    offset = transaction(bench, 1, committed=False)
    fetched = bench.log.read(start_offset=offset, isolation=Isolation.READ_COMMITTED)
    assert fetched.aborted == (AbortedRange(1, offset),)


def test_what_begins_after_the_read_is_not_listed(bench: Bench) -> None:
    bench.open()
    first = transaction(bench, 1, committed=False)
    transaction(bench, 1, committed=False)
    fetched = bench.log.read(start_offset=0, max_bytes=1, isolation=Isolation.READ_COMMITTED)
    assert fetched.aborted == (AbortedRange(1, first),)


def test_earlier_segments_with_aborts_are_not_opened(bench: Bench) -> None:
    bench.open()
    for _ in range(4):
        transaction(bench, 1, committed=False)
        bench.log.roll()
    bases = [segment.base_offset for segment in bench.log.view.may_hold_aborted(5)]
    assert bases == [4, 6, 8]


# By time


def test_the_record_inside_the_batch_is_found(bench: Bench) -> None:
    bench.open()
    records = [Record(b"k", b"v", timestamp=NOW_MS + t) for t in (1, 9, 5)]
    bench.log.append(build_batch(records))
    assert bench.log.find_offset_by_time(NOW_MS + 2) == TimestampOffset(NOW_MS + 9, 1)


def test_records_before_the_log_start_are_not_found_by_time(bench: Bench) -> None:
    bench.open()
    bench.fill(4)
    bench.log.delete_records(2)
    assert bench.log.find_offset_by_time(0) == TimestampOffset(NOW_MS, 2)


def test_records_above_the_high_watermark_are_not_found_by_time(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(2)
    assert bench.log.find_offset_by_time(0) is None
    bench.log.advance_high_watermark(1)
    assert bench.log.find_offset_by_time(0) == TimestampOffset(NOW_MS, 0)


@pytest.mark.parametrize("time", [None, -1])
def test_a_log_without_timestamps_has_no_max_timestamp(bench: Bench, time: int | None) -> None:
    bench.open()
    if time is not None:
        bench.fill(2, 2, time=time)
    assert bench.log.find_max_timestamp() is None


def test_time_queries_work_after_the_time_index_was_lost(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2, time=3)
    bench.log.close()
    for offset in (0, 2):
        bench.fs.remove(bench.path(offset, ".timeindex"))
    bench.open(clean=True)
    assert bench.log.find_offset_by_time(NOW_MS) == TimestampOffset(NOW_MS + 3, 0)
    assert bench.log.find_max_timestamp() == TimestampOffset(NOW_MS + 3, 0)


# What is damaged or changes


def test_old_formats_in_a_closed_segment_are_named_with_position_and_remedy(bench: Bench) -> None:
    bench.open()
    bench.fill(3, 1)
    bench.log.close()
    data = bytearray(bench.read_file(0))
    data[SIZE + 16] = 1
    bench.write(0, ".log", bytes(data))
    bench.open(clean=True, recovery_point=4)
    with pytest.raises(UnsupportedFormat, match=f"0.log: position {SIZE}: .*format 1.*rewrite"):
        bench.log.read(start_offset=2)
    assert bench.read_file(0) == bytes(data)


@pytest.mark.parametrize("left", [5, 40, SIZE - 1])
def test_a_reader_that_comes_to_a_torn_batch_is_told_and_does_not_take_it_for_the_end(
    bench: Bench, left: int
) -> None:
    bench.open()
    bench.fill(3, 2)
    bench.reopen(high_watermark=5)
    bench.write(0, ".log", bench.read_file(0)[: 2 * SIZE + left])
    bench.reopen(high_watermark=5)
    assert bench.log.read(start_offset=0).next_offset == 2
    with pytest.raises(Corrupt, match=f"position {2 * SIZE}: .*varve check"):
        bench.log.read(start_offset=2)


def test_garbage_in_a_closed_segment_is_named_with_its_position(bench: Bench) -> None:
    bench.open()
    bench.fill(3, 1)
    bench.log.close()
    data = bytearray(bench.read_file(0))
    data[SIZE + 8 : SIZE + 12] = bytes(4)
    bench.write(0, ".log", bytes(data))
    bench.open(clean=True, recovery_point=4)
    with pytest.raises(Corrupt, match=f"position {SIZE}"):
        bench.log.read(start_offset=2)


@pytest.mark.parametrize(
    "look",
    [
        lambda log: log.read(start_offset=0),
        lambda log: log.find_offset_by_time(0),
        lambda log: log.find_max_timestamp(),
        lambda log: log.aborted_transactions(),
    ],
)
def test_a_broken_disk_is_told_as_ours_by_every_read(
    faulty: FaultyBench, look: Callable[[Log], object]
) -> None:
    faulty.open()
    transaction(faulty, 1, committed=False)
    faulty.fill(1, 1)
    faulty.fs.fail_under("data", BROKEN)
    with pytest.raises(DirectoryOffline):
        look(faulty.log)


def test_past_reads_do_not_keep_a_rolled_segment_open(bench: Bench) -> None:
    bench.open()
    rolled = []
    for _ in range(5):
        bench.fill(2)
        bench.log.read(start_offset=bench.log.end_offset - 2, max_bytes=SIZE)
        rolled.append(weakref.ref(bench.log.view.active))
        bench.log.roll()
    bench.log.flush()
    bench.fill(1)
    bench.log.read(start_offset=bench.log.end_offset - 1)
    assert [segment() for segment in rolled] == [None] * 5


def test_a_reader_holds_its_files_while_segments_leave(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2)
    closed = bench.log.view.closed[0]
    file = closed.file()
    closed.mark_deleted()
    assert len(file.read_at(0, SIZE)) == SIZE


def test_a_read_that_a_truncation_overtakes_looks_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.set(index_interval_bytes=0).open()
    bench.fill(6, value=b"before" * 9)
    find = segment_reader.find_batch_position
    overtaken: list[int] = []

    def find_slowly(segment: ReadableSegment, offset: int, *, size: int) -> tuple[int, int] | None:
        found = find(segment, offset, size=size)
        if not overtaken:
            overtaken.append(offset)
            bench.log.truncate_to(2)
            bench.fill(6, value=b"after")
        return found

    monkeypatch.setattr(segment_reader, "find_batch_position", find_slowly)
    fetched = bench.log.read(start_offset=4)
    records = [record for batch in split_batches(fetched.data) for record in batch.records()]
    assert [(record.offset, record.value) for record in records] == [
        (offset, b"after") for offset in range(4, 8)
    ]


def test_readers_see_one_log_or_the_other_while_it_is_truncated_and_rewritten(
    bench: Bench,
) -> None:
    bench.set(index_interval_bytes=200, segment_bytes=2000).open()
    bench.fill(40, value=b"a" * 20)
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            for start in (0, 7, 19, 33):
                with suppress(OffsetOutOfRange):
                    fetched = bench.log.read(start_offset=start, isolation=Isolation.LOG_END)
                    found = offsets_in(fetched)
                    assert found == sorted(set(found))
                    assert all(batch.is_valid_crc() for batch in split_batches(fetched.data))

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(follow) for _ in range(2)]
        for turn in range(60):
            bench.log.truncate_to(5 + turn % 30)
            while bench.log.end_offset < 40:
                bench.log.append(make_batch(1 + turn % 3, value=b"b" * (turn % 50)))
        done.set()
        for reader in readers:
            reader.result()


def test_too_many_open_files_refuse_a_read_and_keep_the_log(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(1, 1)
    faulty.fs.fail_under(DIRECTORY, OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(Unavailable, match="ulimit"):
        faulty.log.read(start_offset=0)
    faulty.fs.mend()
    assert read_all(faulty.log) == [0, 1]
    faulty.log.append(make_batch())
