"""The index rule: which appends get an entry, and what the entry says."""

import pytest

from tests.support.log_bench import NOW_MS, Bench, make_batch
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.foundation.errors import InvalidSetting

SIZE = len(make_batch())


def offset_entries(bench: Bench) -> list[tuple[int, int]]:
    return [(int(o), int(p)) for o, p in bench.log.view.active.offset_index().entries()]


def time_entries(bench: Bench) -> list[tuple[int, int]]:
    entries = bench.log.view.active.time_index().entries()
    return [(int(t) - NOW_MS, int(o)) for t, o in entries]


def test_the_first_append_is_never_indexed(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    bench.log.append(make_batch())
    assert offset_entries(bench) == []


def test_an_entry_comes_once_more_than_the_interval_lies_behind(bench: Bench) -> None:
    bench.set(index_interval_bytes=2 * SIZE).open()
    bench.fill(10)
    assert offset_entries(bench) == [(3, 3 * SIZE), (6, 6 * SIZE), (9, 9 * SIZE)]


def test_exactly_the_interval_is_not_enough(bench: Bench) -> None:
    bench.set(index_interval_bytes=SIZE).open()
    bench.fill(3)
    assert offset_entries(bench) == [(2, 2 * SIZE)]


def test_an_entry_names_the_last_offset_and_the_start_of_its_append(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    first, second = make_batch(3), make_batch(5)
    bench.log.append(first)
    bench.log.append(second)
    assert offset_entries(bench) == [(7, len(first))]


def test_a_replicated_set_gets_one_entry_at_its_start(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    bench.log.append_replicated(make_batch(base_offset=0))
    many = b"".join(make_batch(base_offset=offset) for offset in (1, 2, 3))
    bench.log.append_replicated(many)
    assert offset_entries(bench) == [(3, SIZE)]


def test_a_time_entry_holds_the_largest_timestamp_and_its_batchs_last_offset(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    for time in (5, 9, 3):
        bench.log.append(make_batch(2, time=time))
    assert time_entries(bench) == [(9, 3)]


def test_a_timestamp_that_is_not_larger_adds_no_time_entry(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    for time in (5, 5, 4, 6):
        bench.log.append(make_batch(time=time))
    assert time_entries(bench) == [(5, 0), (6, 3)]


def test_of_equal_timestamps_the_earliest_batch_counts(bench: Bench) -> None:
    bench.open()
    for time in (1, 7, 7):
        bench.log.append(make_batch(2, time=time))
    bench.log.roll()
    assert bench.log.view.closed[0].time_index().last == (NOW_MS + 7, 3)


def test_the_earliest_of_a_replicated_set_counts(bench: Bench) -> None:
    bench.open()
    batches = [make_batch(2, base_offset=2 * i, time=t) for i, t in enumerate((1, 7, 7))]
    bench.log.append_replicated(b"".join(batches))
    assert bench.log.view.active.max_timestamp_offset == 3


def test_rolling_adds_the_final_time_entry(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(time=4))
    bench.log.roll()
    index = TimeIndex.decode(bench.read_file(0, ".timeindex"), 0, 1000)
    assert index.entries().tolist() == [[NOW_MS + 4, 0]]


def test_closing_adds_the_final_time_entry(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(time=4))
    bench.log.close()
    index = TimeIndex.decode(bench.read_file(0, ".timeindex"), 0, 1000)
    assert index.entries().tolist() == [[NOW_MS + 4, 0]]


def test_no_timestamp_makes_no_time_entry(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    for _ in range(3):
        bench.log.append(make_batch(time=-1))
    bench.log.roll()
    assert bench.read_file(0, ".timeindex") == b""
    assert len(bench.read_file(0, ".index")) == 2 * 8


def test_the_final_time_entry_may_use_the_reserved_slot(bench: Bench) -> None:
    bench.set(segment_index_bytes=12).open()
    for time in range(3):
        bench.log.append(make_batch(time=time))
    assert len(bench.log.view) == 3
    assert len(bench.read_file(0, ".timeindex")) == 12


def test_index_files_are_exactly_their_entries(bench: Bench) -> None:
    bench.set(index_interval_bytes=0).open()
    bench.fill(5)
    bench.log.roll()
    entries = OffsetIndex.decode(bench.read_file(0, ".index"), 0, 1 << 20).entries()
    assert entries.tolist() == [[i, i * SIZE] for i in range(1, 5)]


def test_the_counter_is_zero_after_a_reopen(bench: Bench) -> None:
    bench.set(index_interval_bytes=SIZE).open()
    bench.fill(2)
    bench.reopen()
    bench.log.append(make_batch())
    assert offset_entries(bench) == []
    bench.fill(2)
    assert offset_entries(bench) == [(4, 4 * SIZE)]


def test_the_counter_is_zero_after_a_truncation(bench: Bench) -> None:
    bench.set(index_interval_bytes=SIZE).open()
    bench.fill(3)
    bench.log.truncate_to(2)
    bench.log.append(make_batch())
    assert offset_entries(bench) == []


def test_an_index_smaller_than_an_entry_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidSetting, match="index"):
        bench.set(segment_index_bytes=7).open()


def test_no_transaction_index_is_made_until_needed(bench: Bench) -> None:
    bench.open()
    bench.fill(1, 1)
    bench.log.close()
    assert bench.names(".txnindex") == []


def test_preallocate_gives_the_file_its_size_and_roll_takes_it_back(bench: Bench) -> None:
    bench.set(preallocate=True, segment_bytes=4096).open()
    bench.fill(1, 1)
    assert len(bench.read_file(0)) == SIZE
    assert len(bench.read_file(1)) == 4096
    assert bench.log.size == 2 * SIZE
    bench.log.close()
    assert len(bench.read_file(1)) == SIZE


def test_the_zeros_of_a_preallocated_file_are_cut_by_recovery(bench: Bench) -> None:
    bench.set(preallocate=True, segment_bytes=4096).open()
    bench.fill(1, 2)
    bench.crash()
    assert bench.log.end_offset == 3
    assert len(bench.read_file(1)) == 2 * SIZE


def test_preallocate_writes_from_the_start(bench: Bench) -> None:
    bench.set(preallocate=True, segment_bytes=4096).open()
    bench.fill(1, 1)
    assert bench.read_file(1)[:8] == (1).to_bytes(8, "big")
