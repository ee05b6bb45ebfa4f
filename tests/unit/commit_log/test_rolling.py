"""The five reasons to roll at an append, the one without, and what a roll leaves behind."""

import random
from typing import Any

from tests.support.log_bench import NOW_MS, Bench, make_batch, make_marker, offsets_in
from varve.commit_log import AppendOrigin, LogSettings
from varve.commit_log.names import log_name
from varve.commit_log.producer_snapshots import decode_producer_snapshot
from varve.commit_log.segment import draw_jitter

SIZE = len(make_batch())


def bases(bench: Bench) -> list[int]:
    return [segment.base_offset for segment in bench.log.view]


# Size


def test_reaching_segment_bytes_exactly_does_not_roll(bench: Bench) -> None:
    bench.set(segment_bytes=3 * SIZE).open()
    bench.fill(3)
    assert bases(bench) == [0]


def test_exceeding_segment_bytes_rolls_first(bench: Bench) -> None:
    bench.set(segment_bytes=3 * SIZE).open()
    bench.fill(7)
    assert bases(bench) == [0, 3, 6]
    assert max(segment.size for segment in bench.log.view) == 3 * SIZE


# Time


def test_a_segment_rolls_when_record_time_passes_segment_ms(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    for time in (0, 1000, 1001):
        bench.log.append(make_batch(time=time))
    assert bases(bench) == [0, 2]


def test_record_time_is_counted_from_the_first_append(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    for time in (500, 0, 1400):
        bench.log.append(make_batch(time=time))
    assert bases(bench) == [0]


def test_older_records_never_roll_by_time(bench: Bench) -> None:
    bench.set(segment_ms=1).open()
    for time in (0, -100_000):
        bench.log.append(make_batch(time=time))
    assert bases(bench) == [0]


def test_an_append_rolls_by_record_time_whatever_the_clock_says(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    bench.log.append(make_batch())
    bench.clock.advance(1_000_000)
    bench.log.append(make_batch())
    assert bases(bench) == [0]


def test_an_idle_segment_is_rolled_by_the_clock_when_its_first_append_is_old(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    for time in (0, 600):
        bench.clock.advance(time)
        bench.log.append(make_batch(time=-5_000_000))
    bench.clock.advance(400)
    bench.log.maintain(bench.clock.now_ms())
    assert bases(bench) == [0]
    bench.clock.advance(1)
    bench.log.maintain(bench.clock.now_ms())
    assert bases(bench) == [0, 2]
    bench.clock.advance(1_000_000)
    bench.log.maintain(bench.clock.now_ms())
    assert bases(bench) == [0, 2]


def test_the_idle_time_is_counted_across_a_restart(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    bench.fill(1)
    for open_again in (bench.reopen, bench.crash):
        bench.clock.advance(400)
        open_again()
        bench.log.maintain(bench.clock.now_ms())
        assert bases(bench) == [0]
    bench.clock.advance(201)
    bench.log.maintain(bench.clock.now_ms())
    assert bases(bench) == [0, 1]


def test_an_idle_segment_rolls_early_by_its_jitter(bench: Bench) -> None:
    bench.set(segment_ms=1000, segment_jitter_ms=900).open()
    bench.fill(1)
    bench.clock.advance(1001 - bench.log.view.active.jitter_ms)
    bench.log.maintain(bench.clock.now_ms())
    assert bases(bench) == [0, 1]


def test_an_idle_segment_of_a_compacted_topic_rolls_by_max_compaction_lag(bench: Bench) -> None:
    bench.set(cleanup_policy=("compact",), max_compaction_lag_ms=50).open()
    bench.fill(1)
    bench.clock.advance(51)
    bench.log.maintain(bench.clock.now_ms())
    assert bases(bench) == [0, 1]


def test_an_empty_segment_is_never_rolled_by_time(bench: Bench) -> None:
    bench.set(segment_ms=1).open()
    bench.clock.advance(1_000_000)
    bench.log.append(make_batch(time=-1))
    assert bases(bench) == [0]


def test_without_a_first_timestamp_the_clock_counts(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    bench.log.append(make_batch(time=-1))
    bench.clock.advance(1000)
    bench.log.append(make_batch(time=-1))
    assert bases(bench) == [0]
    bench.clock.advance(1)
    bench.log.append(make_batch(time=-1))
    assert bases(bench) == [0, 2]


def test_after_a_reload_the_first_batchs_timestamp_counts(bench: Bench) -> None:
    bench.set(segment_ms=1000).open()
    bench.fill(1, time=0)
    for open_again in (bench.reopen, bench.crash):
        open_again()
        bench.log.append(make_batch(time=900))
        assert bases(bench) == [0]
    bench.log.append(make_batch(time=1001))
    assert bases(bench) == [0, 3]


def test_compacted_topics_roll_by_max_compaction_lag() -> None:
    lag: dict[str, Any] = {"max_compaction_lag_ms": 50, "segment_ms": 1000}
    assert LogSettings(cleanup_policy=("compact",), **lag).max_segment_ms == 50
    assert LogSettings(cleanup_policy=("compact", "delete"), **lag).max_segment_ms == 50
    assert LogSettings(cleanup_policy=("delete",), **lag).max_segment_ms == 1000


def test_jitter_is_below_the_smaller_of_its_limit_and_segment_ms() -> None:
    source = random.Random(1)
    drawn = [
        draw_jitter(LogSettings(segment_jitter_ms=50, segment_ms=10), source) for _ in range(200)
    ]
    assert (min(drawn), max(drawn)) == (0, 9)
    assert draw_jitter(LogSettings(segment_jitter_ms=0), source) == 0


def test_jitter_makes_a_segment_roll_early(bench: Bench) -> None:
    bench.set(segment_ms=1000, segment_jitter_ms=900).open()
    jitter_ms = bench.log.view.active.jitter_ms
    assert jitter_ms > 0
    for time in (0, 1000 - jitter_ms):
        bench.log.append(make_batch(time=time))
    assert bases(bench) == [0]
    bench.log.append(make_batch(time=1000 - jitter_ms + 1))
    assert bases(bench) == [0, 2]


# Indexes and offsets


def test_a_full_offset_index_rolls(bench: Bench) -> None:
    bench.set(index_interval_bytes=0, segment_index_bytes=3 * 8).open()
    bench.fill(5, time=-1)
    assert bases(bench) == [0, 4]


def test_a_time_index_with_only_its_reserved_slot_left_rolls(bench: Bench) -> None:
    bench.set(index_interval_bytes=0, segment_index_bytes=3 * 12).open()
    for time in range(5):
        bench.log.append(make_batch(time=time))
    assert bases(bench) == [0, 3]


def test_the_largest_relative_offset_fits(bench: Bench) -> None:
    bench.open()
    bench.fill(1)
    bench.log.append_replicated(make_batch(base_offset=2**31 - 1))
    assert bases(bench) == [0]


def test_an_offset_beyond_the_relative_range_rolls(bench: Bench) -> None:
    bench.open()
    bench.fill(1)
    bench.log.append_replicated(make_batch(base_offset=2**31))
    assert bases(bench) == [0, 2**31]


def test_an_empty_segment_gives_way_to_a_far_offset(bench: Bench) -> None:
    bench.open()
    bench.log.append_replicated(make_batch(base_offset=2**40))
    assert bases(bench)[-1] == 2**40
    assert offsets_in(bench.log.read(start_offset=2**40)) == [2**40]


# The roll itself


def test_a_new_segment_is_named_by_the_appends_first_offset(bench: Bench) -> None:
    bench.set(segment_bytes=SIZE).open()
    bench.fill(1)
    bench.log.append_replicated(make_batch(base_offset=7))
    assert bases(bench) == [0, 7]
    assert bench.names(".log") == [log_name(0), log_name(7)]


def test_rolling_an_empty_segment_does_nothing(bench: Bench) -> None:
    bench.open()
    bench.log.roll()
    bench.fill(1)
    bench.log.roll()
    bench.log.roll()
    assert bases(bench) == [0, 1]


def test_stray_files_of_the_new_name_are_removed_first(bench: Bench) -> None:
    bench.open()
    bench.fill(1)
    for kind in (".log", ".index", ".timeindex", ".txnindex"):
        bench.write(1, kind, b"x" * 34)
    bench.log.roll()
    assert bench.names() == [
        log_name(0, ".index"),
        log_name(0, ".log"),
        log_name(0, ".timeindex"),
        log_name(1, ".log"),
        log_name(1, ".snapshot"),
    ]
    assert bench.read_file(1) == b""


def test_a_roll_writes_the_producers_up_to_the_new_base(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(2, producer_id=9, producer_epoch=1, base_sequence=0))
    bench.log.roll()
    (entry,) = decode_producer_snapshot(bench.read_file(2, ".snapshot"), "snapshot")
    assert (entry.producer_id, entry.epoch, entry.last_sequence, entry.last_offset) == (9, 1, 1, 1)
    assert entry.timestamp == NOW_MS


def test_a_roll_cuts_the_data_file_to_its_size(bench: Bench) -> None:
    bench.set(preallocate=True, segment_bytes=2 * SIZE + 10).open()
    bench.fill(3)
    assert len(bench.read_file(0)) == 2 * SIZE


def test_a_marker_may_roll_too(bench: Bench) -> None:
    bench.set(segment_bytes=SIZE + 1).open()
    bench.fill(1)
    bench.set(segment_bytes=200)
    bench.reopen()
    bench.fill(1)
    bench.log.append(make_marker(committed=True), origin=AppendOrigin.COORDINATOR)
    assert bases(bench) == [0, 2]
