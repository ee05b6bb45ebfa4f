"""Reads from the cold tier against a list of records, whatever the caches hold and the store does.

Model      the batches of all readable segments in order; a read is a walk over that list.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.log_bench import NOW_MS, split_batches
from tests.support.remote_bench import RemoteBatch, RemoteBench
from varve.commit_log.log_reader import RemoteRead
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import StoreUnavailable, Unavailable
from varve.testing import FaultKind, ObjectFaultPlan
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.read.read_ahead import ExtentSizes

SIZES = st.builds(
    ExtentSizes,
    first_min=st.integers(1, 300),
    first_max=st.just(700),
    index_slack=st.integers(0, 200),
    near_max=st.integers(1, 500),
    ahead_min=st.integers(1, 200),
    ahead_max=st.just(400),
)


@st.composite
def remote_batches(draw: st.DrawFn, base_offset: int) -> list[RemoteBatch]:
    """A segment with holes within and between its batches, perhaps behind its base too."""
    offset, batches = base_offset, []
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        span = draw(st.integers(1, 5))
        deltas = tuple(sorted(draw(st.sets(st.integers(0, span - 1), min_size=1))))
        time = draw(st.integers(0, 30))
        size = draw(st.sampled_from([0, 5, 60, 400]))
        batches.append(RemoteBatch(offset, offset + span - 1, time, size, deltas))
        offset += span
    return batches


class Tier:
    """A bench and its model."""

    def __init__(self, data: st.DataObject, **bench: Any) -> None:
        self.bench = RemoteBench(**bench)
        self.batches: list[RemoteBatch] = []
        self.aborted: list[AbortedTransaction] = []
        base = 0
        segments: list[RemoteSegment] = []
        for number in range(data.draw(st.integers(1, 7))):
            segments.append(self._write(data, base, number))
            base = segments[-1].end_offset + 1
        self.bench.finish(segments)
        self.end_offset = base

    def _write(self, data: st.DataObject, base: int, number: int) -> RemoteSegment:
        batches = data.draw(remote_batches(base))
        last = batches[-1].last_offset
        end = last + data.draw(st.sampled_from([0, 0, 4]))
        aborted = []
        if data.draw(st.booleans()):
            first = data.draw(st.integers(0, last))
            aborted.append(AbortedTransaction(number, first, last, first))
        self.batches += batches
        self.aborted += aborted
        return self.bench.write(
            batches,
            base_offset=base,
            end_offset=end,
            aborted=aborted,
            # What is open may lie anywhere in front: segments behind are then asked too.
            undecided_from=data.draw(st.sampled_from([None, 0])),
            index_interval=data.draw(st.sampled_from([1, 150, 1_000])),
        )

    def check_read(
        self, run: RemoteRead | None, start: int, limit: int, max_bytes: int
    ) -> int | None:
        """Compares one read with the list; where the reader goes on, None at the end."""
        left = [batch for batch in self.batches if batch.last_offset >= start]
        if run is None:
            assert not left or left[0].last_offset >= limit
            return None
        got = split_batches(run.data)
        assert got
        assert run.data == b"".join(batch.encode() for batch in left[: len(got)])
        assert run.next_offset == left[len(got) - 1].last_offset + 1 <= limit
        assert len(run.data) <= max(max_bytes, len(left[0].encode()))
        return run.next_offset

    def find_by_time(self, timestamp: int, start: int, end: int) -> int | None:
        for batch in self.batches:
            for offset in batch.offsets:
                if offset >= start and NOW_MS + batch.time >= timestamp:
                    return offset if offset < end else None
        return None


def draw_tier(data: st.DataObject) -> Tier:
    return Tier(
        data,
        cache_bytes=data.draw(st.sampled_from([50, 700, 1 << 20])),
        read_ahead_max_bytes=data.draw(st.sampled_from([0, 500, 5_000])),
        sizes=data.draw(SIZES),
        far_ms=data.draw(st.sampled_from([0, 5])),
        max_pending=data.draw(st.sampled_from([1, 100])),
    )


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_row_of_reads_gives_the_batches_of_the_list(data: st.DataObject) -> None:
    tier = draw_tier(data)
    for _ in range(3):
        start = data.draw(st.integers(0, tier.end_offset - 1))
        limit = min(tier.end_offset, start + data.draw(st.sampled_from([6, 1 << 20])))
        offset: int | None = start
        max_bytes = data.draw(st.sampled_from([0, 90, 400, 5_000]))
        while offset is not None and offset < limit:
            run = tier.bench.read(offset, limit_offset=limit, max_bytes=max_bytes)
            offset = tier.check_read(run, offset, limit, max_bytes)
    tier.bench.close()


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_aborted_transactions_are_those_that_touch_what_was_read(data: st.DataObject) -> None:
    tier = draw_tier(data)
    offset = data.draw(st.integers(0, tier.end_offset - 1))
    run = tier.bench.read(offset, limit_offset=tier.end_offset, with_aborted=True)
    if run is not None:
        touching = {
            one
            for one in tier.aborted
            if one.last_offset >= offset and one.first_offset < run.next_offset
        }
        assert set(run.aborted) <= touching
        segment = next(s for s in tier.bench.segments if s.end_offset + 1 >= run.next_offset)
        own = {one for one in touching if one.last_offset <= segment.end_offset}
        assert own <= set(run.aborted)
    tier.bench.close()


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_time_finds_the_first_record_that_is_not_older(data: st.DataObject) -> None:
    tier = draw_tier(data)
    timestamp = NOW_MS + data.draw(st.integers(-1, 31))
    start = data.draw(st.integers(0, tier.end_offset))
    end = data.draw(st.integers(start, tier.end_offset))
    found = tier.bench.reader.find_offset_by_time(timestamp, start_offset=start, end_offset=end)
    assert (None if found is None else found.offset) == tier.find_by_time(timestamp, start, end)
    tier.bench.close()


@settings(deadline=None, max_examples=20)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_a_store_that_fails_now_and_then_never_gives_wrong_bytes(
    data: st.DataObject, seed: int
) -> None:
    tier = draw_tier(data)
    rates = {FaultKind.ERROR_BEFORE: 0.2, FaultKind.THROTTLED: 0.1, FaultKind.ERROR_AFTER: 0.1}
    tier.bench.objects._plan = ObjectFaultPlan(seed=seed, rates=rates)
    offset: int | None = 0
    attempts = 0
    while offset is not None and offset < tier.end_offset:
        try:
            run = tier.bench.read(offset, limit_offset=tier.end_offset, max_bytes=300)
        except StoreUnavailable:
            attempts += 1
            assert attempts < 500
        else:
            offset = tier.check_read(run, offset, tier.end_offset, 300)
    tier.bench.close()


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_readers_at_the_same_time_all_see_the_list(data: st.DataObject) -> None:
    tier = draw_tier(data)
    starts = data.draw(st.lists(st.integers(0, tier.end_offset - 1), min_size=4, max_size=4))

    def read_on(start: int) -> None:
        offset: int | None = start
        while offset is not None and offset < tier.end_offset:
            try:
                run = tier.bench.read(offset, limit_offset=tier.end_offset, max_bytes=300)
            except Unavailable:
                # More reads than the pool lets wait: readers are to try again.
                continue
            offset = tier.check_read(run, offset, tier.end_offset, 300)

    with ThreadPoolExecutor(len(starts)) as pool:
        list(pool.map(read_on, starts, timeout=30))
    usage = tier.bench.extents.usage()
    tier.bench.pool.close()
    assert usage.held_bytes <= usage.limit_bytes + 4 * 700
    tier.bench.close()
