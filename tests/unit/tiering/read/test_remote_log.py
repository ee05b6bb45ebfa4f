"""What a reader gets out of the cold tier, and how little it asks of the store for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.log_bench import NOW_MS, offsets_in
from tests.support.remote_bench import (
    HeldPool,
    RemoteBatch,
    RemoteBench,
    drop_extents,
    make_batches,
)
from varve.commit_log.log_reader import RemoteRead
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, InvalidRequest, StoreUnavailable, UnsupportedFormat
from varve.tiering.read.read_ahead import ExtentSizes


@pytest.fixture
def bench() -> Iterator[RemoteBench]:
    bench = RemoteBench()
    yield bench
    bench.close()


def read(bench: RemoteBench, offset: int, **limits: Any) -> RemoteRead:
    """A read that finds something."""
    run = bench.read(offset, **limits)
    assert run is not None
    return run


def test_a_batch_larger_than_asked_for_comes_alone_or_not_at_all(bench: RemoteBench) -> None:
    bench.add(make_batches(0, 4, records=1, value_bytes=3_000))
    run = read(bench, 1, max_bytes=100, min_one=True)
    assert offsets_in(run.data) == [1]
    run = read(bench, 1, max_bytes=100, min_one=False)
    assert (len(run.data), run.next_offset) == (0, 1)


@pytest.mark.parametrize("max_bytes", [10, 1 << 20])
def test_a_segment_whose_batches_all_lie_at_the_limit_or_behind_it_has_none(
    bench: RemoteBench, max_bytes: int
) -> None:
    """A compaction of the bucket may leave only what the local log has too."""
    batches = make_batches(0, 10)
    bench.add(batches[6:], base_offset=0)
    limit = batches[6].base_offset
    assert bench.read(0, limit_offset=limit, max_bytes=max_bytes) is None
    assert bench.read(0, limit_offset=limit + 100, max_bytes=1 << 20) is not None


def test_negative_max_bytes_is_refused(bench: RemoteBench) -> None:
    with pytest.raises(InvalidRequest, match="max_bytes is -1"):
        bench.read(0, limit_offset=1, max_bytes=-1)


def test_offsets_in_no_segment_are_lost_and_never_passed_over(bench: RemoteBench) -> None:
    """A segment covers all its offsets, also those that compaction emptied."""
    bench.add(make_batches(0, 5))
    bench.add(make_batches(20, 5))
    assert bench.read(8) is not None
    with pytest.raises(Corrupt, match=r"offsets 10 to 19 are in no segment .*--before 20"):
        bench.read(10)
    with pytest.raises(Corrupt, match="offsets 15 to 17 are in no segment"):
        bench.read(15, limit_offset=18)
    with pytest.raises(Corrupt, match="offsets 30 to 34 are in no segment"):
        bench.read(30, limit_offset=35)
    assert bench.read(10, limit_offset=10) is None
    bench.add(make_batches(10, 5), base_offset=10)
    run = read(bench, 15, limit_offset=30)
    assert offsets_in(run.data)[0] == 14


def test_nothing_was_ever_copied(bench: RemoteBench) -> None:
    with pytest.raises(Corrupt, match="offsets 0 to 9 are in no segment"):
        bench.read(0, limit_offset=10)
    found = bench.reader.find_offset_by_time(NOW_MS, start_offset=0, end_offset=10)
    assert found is None


# How much is asked of the store


def test_a_read_at_a_base_offset_costs_one_request_and_no_index() -> None:
    bench = RemoteBench(sizes=ExtentSizes())
    bench.add(make_batches(0, 10))
    bench.add(make_batches(20, 10))
    bench.reader.refresh()
    before = bench.objects.steps
    assert bench.read(20) is not None
    assert bench.objects.steps == before + 1
    assert bench.gets("index") == 0
    bench.close()


def test_a_reader_that_goes_on_needs_no_index_and_no_manifest() -> None:
    bench = RemoteBench(sizes=ExtentSizes())
    bench.add(make_batches(0, 50))
    run = bench.read(0)
    before = bench.objects.steps
    while run is not None and run.next_offset < 100:
        run = bench.read(run.next_offset)
    assert bench.objects.steps == before
    bench.close()


def test_nothing_is_read_ahead_for_a_random_access(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 500))
    bench.read(600, max_bytes=300)
    assert sum(bench.observed) < segment.size / 10


def test_a_first_read_fetches_a_guess_beside_the_index_and_is_done_if_it_is_right() -> None:
    bench = RemoteBench(sizes=ExtentSizes(index_slack=400), cache_bytes=1 << 24)
    bench.add(make_batches(0, 2_000, value_bytes=100))
    run = read(bench, 2_001, max_bytes=500)
    assert offsets_in(run.data)[0] == 2_000
    assert bench.gets("log") == 1
    assert bench.extents.usage().misses == 0
    bench.close()


@pytest.mark.parametrize("value_bytes", [100, 4_000, 30_000])
def test_the_guess_holds_the_indexed_batch_too_however_large_batches_are(value_bytes: int) -> None:
    bench = RemoteBench(far_ms=30, sizes=ExtentSizes(index_slack=0), cache_bytes=1 << 24)
    for base_offset in range(0, 2_000, 200):
        bench.add(make_batches(base_offset, 100, value_bytes=value_bytes))
    for number, segment in enumerate(bench.segments):
        offset = segment.base_offset + 61 + 13 * number
        run = read(bench, offset, max_bytes=500)
        assert offsets_in(run.data)[0] == offset - offset % 2
        assert bench.gets("log") == bench.gets("index") == number + 1
    bench.close()


def test_a_wrong_guess_costs_one_request_and_no_more_of_that_segment() -> None:
    bench = RemoteBench(far_ms=30, threads=1)
    uneven = make_batches(0, 50, value_bytes=2_000) + make_batches(100, 500)
    bench.add(uneven)
    for offset, requests in ((1_000, 2), (800, 3), (600, 4)):
        run = read(bench, offset, max_bytes=300)
        assert offsets_in(run.data)[0] == offset
        bench.wait_idle()
        assert bench.gets("log") == requests
    bench.close()


def test_a_store_that_answers_at_once_is_not_read_ahead(bench: RemoteBench) -> None:
    bench.add(make_batches(0, 200))
    run = read(bench, 0, max_bytes=100)
    for _ in range(20):
        run = read(bench, run.next_offset, max_bytes=100)
    bench.pool.close()
    assert sum(bench.observed) <= 50.5 * run.next_offset + 2 * bench.sizes.near_max


def test_read_ahead_of_a_far_store_begins_with_the_second_read_and_has_a_limit() -> None:
    bench = RemoteBench(far_ms=30, read_ahead_max_bytes=1_600)
    bench.add(make_batches(0, 200))
    run = bench.read(0, max_bytes=150)
    assert sum(bench.observed) == 150
    held = []
    while run is not None and run.next_offset < 300:
        run = bench.read(run.next_offset, max_bytes=150)
        held.append(bench.extents.usage().held_bytes)
    assert max(held) <= 1_600 + 2 * bench.sizes.ahead_max
    bench.close()


def test_read_ahead_goes_on_into_the_next_segment() -> None:
    pool = HeldPool()
    bench = RemoteBench(far_ms=30, read_ahead_max_bytes=4_000, given_pool=pool)
    bench.add(make_batches(0, 20))
    second = bench.add(make_batches(40, 20))
    run = bench.read(0, max_bytes=100)
    while run is not None and run.next_offset < 36:
        run = bench.read(run.next_offset, max_bytes=100)
    pool.let_go()
    reserved = bench.extents.reserve_ahead(bench.key(second), 0, 1)
    assert reserved is not None
    extent, is_new = reserved
    assert not is_new
    assert extent.data == bench.bucket.get_range(bench.key(second), 0, extent.end)
    bench.close()


def test_no_read_ahead_where_it_is_switched_off() -> None:
    bench = RemoteBench(far_ms=30, read_ahead_max_bytes=0)
    bench.add(make_batches(0, 20))
    assert bench.read_on(0, max_bytes=100) == list(range(40))
    assert bench.objects.under_way_max == 1
    bench.close()


def test_what_a_lone_reader_leaves_behind_is_let_go_of(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 200))
    assert bench.read_on(0, max_bytes=300) == list(range(400))
    assert sum(bench.observed) == segment.size
    assert bench.extents.usage().held_bytes < 1_000


def test_what_another_reader_will_come_to_is_kept(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 200))
    behind = read(bench, 0, max_bytes=300)
    behind = read(bench, behind.next_offset, max_bytes=300)
    assert bench.read_on(behind.next_offset + 20, max_bytes=300)
    assert bench.read_on(behind.next_offset, max_bytes=300)
    assert sum(bench.observed) <= segment.size + bench.sizes.first_max


def test_readers_side_by_side_share_what_is_fetched(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 200))
    offset = 0
    while (run := bench.read(offset, max_bytes=300)) is not None:
        again = bench.read(offset, max_bytes=300)
        assert again is not None
        assert again.data == run.data
        offset = run.next_offset
    assert sum(bench.observed) <= segment.size + 2 * bench.sizes.near_max


# Manifest


def test_a_segment_copied_later_is_found(bench: RemoteBench) -> None:
    bench.add(make_batches(0, 5))
    assert bench.read_on(0) == list(range(10))
    bench.add(make_batches(10, 5))
    assert bench.read_on(0) == list(range(20))


def test_a_replaced_segment_is_read_until_its_objects_are_gone(bench: RemoteBench) -> None:
    old = [bench.add(make_batches(0, 5)), bench.add(make_batches(10, 5))]
    assert bench.read_on(0) == list(range(20))
    drop_extents(bench.extents)
    bench.add([RemoteBatch(4, 5), RemoteBatch(16, 19)], base_offset=0, id="merged", replaces=old)
    assert bench.read_on(0) == list(range(20))
    drop_extents(bench.extents)
    for segment in old:
        bench.remove_objects(segment)
    assert bench.read_on(0) == [4, 5, 16, 17, 18, 19]


def test_an_object_that_the_newest_manifest_names_and_is_gone_is_corrupt(
    bench: RemoteBench,
) -> None:
    segment = bench.add(make_batches(0, 5))
    bench.remove_objects(segment)
    with pytest.raises(Corrupt, match="tier fsck"):
        bench.read(0)


def test_the_manifest_is_loaded_again_when_it_is_old(bench: RemoteBench) -> None:
    bench.add(make_batches(0, 5))
    assert bench.read(0) is not None
    bench.objects.go_down()
    bench.clock.advance(60_000)
    assert bench.read(0) is not None
    bench.objects.come_up()
    assert bench.reader.refresh().highest_offset == 9


# Aborted transactions


def test_aborted_transactions_are_collected_as_far_as_they_may_matter(bench: RemoteBench) -> None:
    first = AbortedTransaction(1, 2, 7, 7)
    late = AbortedTransaction(2, 8, 25, 25)
    bench.add(make_batches(0, 5), aborted=[first], undecided_from=8)
    bench.add(make_batches(10, 5), undecided_from=8)
    bench.add(make_batches(20, 5), aborted=[late])
    bench.add(make_batches(30, 5), aborted=[AbortedTransaction(3, 30, 35, 35)])
    run = read(bench, 0, with_aborted=True)
    assert (run.next_offset, run.aborted, run.is_complete) == (10, (first, late), True)
    assert bench.gets("txnindex") == 2
    run = read(bench, 0, limit_offset=6, with_aborted=True)
    assert (run.aborted, run.is_complete) == ((first,), True)


def test_a_transaction_open_at_the_end_of_the_tier_leaves_the_rest_to_the_local_log(
    bench: RemoteBench,
) -> None:
    bench.add(make_batches(0, 5), undecided_from=4)
    run = read(bench, 0, with_aborted=True)
    assert (run.aborted, run.is_complete) == ((), False)
    run = read(bench, 0, limit_offset=4, with_aborted=True)
    assert run.is_complete


def test_a_marker_in_a_segment_copied_later_is_found(bench: RemoteBench) -> None:
    bench.add(make_batches(0, 5), undecided_from=4)
    assert bench.read(0) is not None
    late = AbortedTransaction(2, 4, 15, 15)
    bench.add(make_batches(10, 5), aborted=[late])
    run = read(bench, 0, limit_offset=10, with_aborted=True)
    assert (run.aborted, run.is_complete) == ((late,), True)


def test_a_segment_in_the_place_of_the_one_being_read_tells_no_transaction_twice(
    bench: RemoteBench,
) -> None:
    aborted = AbortedTransaction(1, 2, 7, 2)
    old = [bench.add(make_batches(0, 5), aborted=[aborted], undecided_from=4)]
    old += [bench.add(make_batches(10, 5))]
    first = read(bench, 0, max_bytes=200)
    bench.add(make_batches(0, 10), aborted=[aborted], id="merged", replaces=old)
    bench.reader.refresh()
    run = read(bench, first.next_offset, with_aborted=True)
    assert run.aborted == (aborted,)


# What goes wrong


def test_a_store_that_is_down_is_named_with_the_offset(bench: RemoteBench) -> None:
    bench.add(make_batches(0, 5))
    bench.reader.refresh()
    bench.objects.go_down()
    with pytest.raises(StoreUnavailable, match=r"offset 4 .*memory:.*local disk is still served"):
        bench.read(4)
    bench.objects.come_up()
    assert bench.read_on(4) == list(range(4, 10))


@pytest.mark.parametrize("position", [8, 16])
def test_bytes_that_are_no_batch_are_corrupt(bench: RemoteBench, position: int) -> None:
    segment = bench.add(make_batches(0, 5))
    data = bytearray(bench.bucket.get(bench.key(segment)))
    data[position] = 0x55
    bench.bucket.put(bench.key(segment), bytes(data))
    with pytest.raises(Corrupt, match=r"/log': position 0: "):
        bench.read(0)


def test_a_changed_byte_of_a_record_is_corrupt(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 5))
    data = bytearray(bench.bucket.get(bench.key(segment)))
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 70] ^= 4
    bench.bucket.put(bench.key(segment), bytes(data))
    for _ in range(2):
        with pytest.raises(Corrupt, match=f"position {second}: .* does not match its CRC"):
            bench.read_on(0)


def test_old_message_formats_are_named(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 5))
    data = bytearray(bench.bucket.get(bench.key(segment)))
    data[16] = 1
    bench.bucket.put(bench.key(segment), bytes(data))
    with pytest.raises(UnsupportedFormat, match="message format 1"):
        bench.read(0)


def test_offsets_of_another_segment_are_corrupt(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 5))
    other = b"".join(batch.encode() for batch in make_batches(100, 5))
    assert len(other) == segment.size
    bench.bucket.put(bench.key(segment), other)
    with pytest.raises(Corrupt, match=r"offsets 100 to .* not in order.* holds 0 to 9"):
        bench.read(0)


def test_an_object_that_ends_too_early_is_corrupt(bench: RemoteBench) -> None:
    segment = bench.add(make_batches(0, 5))
    data = bench.bucket.get(bench.key(segment))
    bench.bucket.put(bench.key(segment), data[:-10])
    with pytest.raises(Corrupt, match="by the manifest at 505 or later"):
        bench.read_on(0)
