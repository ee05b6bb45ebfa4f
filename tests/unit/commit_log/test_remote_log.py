"""A log whose beginning is kept elsewhere: what it asks there, and what it makes of the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.check_open_log import check_log
from tests.support.log_bench import (
    BROKEN,
    NO_ROOM,
    NOW_MS,
    Bench,
    FaultyBench,
    before_write,
    make_batch,
    offsets_in,
    read_all,
)
from tests.support.log_model import split_batches
from varve.commit_log import (
    AbortedRange,
    Isolation,
    Log,
    LogSettings,
    RemoteRead,
    RemoteReadRequest,
    TimestampOffset,
)
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    OffsetOutOfRange,
    StoreError,
    StoreUnavailable,
    Unavailable,
)
from varve.records import Batch


@dataclass
class FakeRemoteLog:
    """Serves what `take` took of a log before it left the local disk.

    `meanwhile` are called one per request, before it is answered; `failure` is raised by each.
    `is_complete` is what a read says of the aborted transactions it knows.
    """

    batches: list[bytes] = field(default_factory=list)
    aborted: Sequence[AbortedTransaction] = ()
    is_complete: bool = True
    failure: StoreError | None = None
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def take(self, log: Log, before_offset: int) -> None:
        """Copies what lies before an offset, and the aborted transactions of all of it."""
        offset = log.log_start_offset
        while offset < before_offset:
            fetched = log.read(start_offset=offset, isolation=Isolation.LOG_END)
            self.batches += [
                data
                for data in split_batches(fetched.data)
                if Batch(data).header.base_offset < before_offset
            ]
            offset = fetched.next_offset
        self.aborted = [
            one for one in log.aborted_transactions() if one.last_offset < before_offset
        ]

    def _begin(self, start_offset: int, end_offset: int) -> None:
        self.asked.append((start_offset, end_offset))
        if self.meanwhile:
            self.meanwhile.pop(0)()
        if self.failure is not None:
            raise self.failure

    def read(self, request: RemoteReadRequest) -> RemoteRead | None:
        start_offset, limit_offset, max_bytes, min_one, with_aborted = request
        self._begin(start_offset, limit_offset)
        data, next_offset = b"", start_offset
        for batch in self.batches:
            header = Batch(batch).header
            if header.last_offset < start_offset or header.last_offset >= limit_offset:
                continue
            if len(data) + header.size > max_bytes and not (min_one and not data):
                break
            data += batch
            next_offset = header.last_offset + 1
        if next_offset == start_offset and not self._is_behind(start_offset, limit_offset):
            return None
        aborted = [
            one
            for one in self.aborted
            if one.first_offset < next_offset and one.last_offset >= start_offset
        ]
        if not with_aborted:
            return RemoteRead(memoryview(data), next_offset)
        return RemoteRead(memoryview(data), next_offset, tuple(aborted), self.is_complete)

    def _is_behind(self, start_offset: int, limit_offset: int) -> bool:
        lasts = [Batch(one).header.last_offset for one in self.batches]
        return any(start_offset <= last < limit_offset for last in lasts)

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        self._begin(start_offset, end_offset)
        for batch in self.batches:
            for record in Batch(batch).records():
                if start_offset <= record.offset < end_offset and record.timestamp >= timestamp:
                    return TimestampOffset(record.timestamp, record.offset)
        return None


COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture
def remote() -> FakeRemoteLog:
    return FakeRemoteLog()


@pytest.fixture
def tiered(bench: Bench, remote: FakeRemoteLog) -> Bench:
    """Segments at 0, 2, 4 and the active one at 6; those below 4 are in the remote part alone."""
    return _fill(bench, remote)


def _fill(bench: Bench, remote: FakeRemoteLog) -> Bench:
    bench.set(remote_storage_enable=True)
    bench.remote = remote
    bench.open()
    for offset in range(7):
        if offset in (2, 4, 6):
            bench.log.roll()
        bench.log.append(make_batch(time=offset))
    remote.take(bench.log, 6)
    bench.log.drop_local_segments_before(4, now_ms=NOW_MS)
    return bench


def drop_local(bench: Bench, offset: int) -> Callable[[], object]:
    return lambda: bench.log.drop_local_segments_before(offset, now_ms=NOW_MS)


# What left the local disk is read from the remote part


def test_the_log_start_stays_when_local_segments_leave(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    log = tiered.log
    assert (log.log_start_offset, log.local_start_offset, log.end_offset) == (0, 4, 7)
    assert read_all(log) == list(range(7))
    assert remote.asked[0] == (0, 4)
    assert check_log(log) == []


def test_what_is_local_is_not_asked_of_the_remote_part(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.failure = StoreUnavailable("the bucket is down")
    assert offsets_in(tiered.log.read(start_offset=4)) == [4, 5]
    assert tiered.log.append(make_batch()).base_offset == 7
    with pytest.raises(StoreUnavailable, match="bucket is down"):
        tiered.log.read(start_offset=3)


def test_a_remote_read_ends_where_the_local_segments_begin(tiered: Bench) -> None:
    fetched = tiered.log.read(start_offset=1)
    assert (offsets_in(fetched), fetched.next_offset) == ([1, 2, 3], 4)
    assert (fetched.high_watermark, fetched.log_start_offset) == (7, 0)


def test_a_remote_part_that_has_nothing_more_leads_on_to_the_first_local_segment(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.batches = remote.batches[:3]
    assert offsets_in(tiered.log.read(start_offset=3)) == [4, 5]


def test_a_remote_part_that_has_nothing_more_leads_on_to_no_more_than_the_limit(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    """What was below the limit when the read began, though more has left the local disk since."""
    remote.batches = remote.batches[:1]
    tiered.log.high_watermark = 2
    fetched = tiered.log.read(start_offset=1)
    assert (offsets_in(fetched), fetched.next_offset) == ([], 2)


def test_without_a_remote_part_the_error_names_what_is_local_and_the_setting(bench: Bench) -> None:
    _fill(bench, FakeRemoteLog())
    bench.remote = None
    bench.reopen()
    with pytest.raises(Unavailable, match=r"offset 0 .* 4 to 7.*varve\.tier\.url"):
        bench.log.read(start_offset=0)


def test_deleted_records_are_not_served_though_the_remote_part_still_has_them(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.meanwhile = [lambda: tiered.log.delete_records(3)]
    with pytest.raises(OffsetOutOfRange, match="begins at 3 and whose records end before 7"):
        tiered.log.read(start_offset=1)
    assert offsets_in(tiered.log.read(start_offset=3)) == [3]


def test_that_objects_are_gone_of_what_was_deleted_meanwhile_is_no_damage(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.failure = Corrupt("an object is not there")
    with pytest.raises(Corrupt):
        tiered.log.read(start_offset=1)
    remote.meanwhile = [lambda: tiered.log.delete_records(4)]
    with pytest.raises(OffsetOutOfRange, match="begins at 4 and whose records end before 7"):
        tiered.log.read(start_offset=1)


def test_a_segment_that_leaves_the_local_disk_during_a_read_is_read_from_the_remote_part(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.batches, later = remote.batches[:3], remote.batches[3:]

    def copy_and_drop() -> None:
        remote.batches += later
        tiered.log.drop_local_segments_before(6, now_ms=NOW_MS)

    remote.meanwhile = [copy_and_drop]
    assert offsets_in(tiered.log.read(start_offset=3)) == [3]
    assert read_all(tiered.log) == list(range(7))


# By time


def test_a_time_is_found_in_either_part(tiered: Bench) -> None:
    for offset in range(7):
        found = tiered.log.find_offset_by_time(NOW_MS + offset)
        assert found is not None
        assert found.offset == offset
    assert tiered.log.find_offset_by_time(NOW_MS + 7) is None


def test_what_leaves_the_local_disk_during_a_search_by_time_is_not_missed(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.meanwhile = [drop_local(tiered, 6)]
    found = tiered.log.find_offset_by_time(NOW_MS + 4)
    assert found is not None
    assert found.offset == 4


def test_a_search_by_time_begins_at_the_log_start_as_it_is_in_the_end(
    tiered: Bench, remote: FakeRemoteLog
) -> None:
    remote.meanwhile = [lambda: tiered.log.delete_records(5)]
    found = tiered.log.find_offset_by_time(NOW_MS)
    assert found is not None
    assert found.offset == 5
    tiered.log.drop_local_segments_before(6, now_ms=NOW_MS)
    remote.failure = Corrupt("an object is not there")
    remote.meanwhile = [lambda: tiered.log.delete_records(6)]
    found = tiered.log.find_offset_by_time(NOW_MS)
    assert found is not None
    assert found.offset == 6


# Transactions


@pytest.fixture
def aborting(bench: Bench, remote: FakeRemoteLog) -> Bench:
    """A transaction at 0 whose abort marker is at 3; every record has a segment of its own."""
    bench.set(remote_storage_enable=True)
    bench.remote = remote
    bench.open()
    fields: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    bench.log.append(make_batch(base_sequence=0, **fields))
    for _ in range(2):
        bench.log.roll()
        bench.log.append(make_batch())
    bench.log.roll()
    bench.log.end_transaction(producer_id=5, producer_epoch=0, committed=False)
    bench.log.roll()
    bench.log.append(make_batch())
    return bench


def test_an_abort_whose_marker_is_still_local_is_told_with_a_remote_read(
    aborting: Bench, remote: FakeRemoteLog
) -> None:
    remote.take(aborting.log, 2)
    remote.is_complete = False
    aborting.log.drop_local_segments_before(2, now_ms=NOW_MS)
    fetched = aborting.log.read(start_offset=0, isolation=COMMITTED)
    assert fetched.aborted == (AbortedRange(5, 0),)
    assert aborting.log.read(start_offset=0).aborted == ()


def test_an_abort_that_both_sides_know_is_told_once(aborting: Bench, remote: FakeRemoteLog) -> None:
    remote.take(aborting.log, 4)
    remote.is_complete = False
    aborting.log.drop_local_segments_before(2, now_ms=NOW_MS)
    fetched = aborting.log.read(start_offset=0, isolation=COMMITTED)
    assert fetched.aborted == (AbortedRange(5, 0),)


def test_a_marker_that_leaves_the_local_disk_during_the_read_is_not_missed(
    aborting: Bench, remote: FakeRemoteLog
) -> None:
    """The remote part is asked before the marker is copied, the local one after it went."""
    remote.take(aborting.log, 2)
    remote.is_complete = False
    aborting.log.drop_local_segments_before(2, now_ms=NOW_MS)
    answer = remote.read

    def copy_and_drop_behind(request: RemoteReadRequest) -> RemoteRead | None:
        run = answer(request)
        if aborting.log.local_start_offset == 2:
            aborted = aborting.log.aborted_transactions()
            aborting.log.drop_local_segments_before(4, now_ms=NOW_MS)
            remote.aborted = aborted
        return run

    remote.read = copy_and_drop_behind  # type: ignore[method-assign]  # a request takes its time
    fetched = aborting.log.read(start_offset=0, isolation=COMMITTED)
    assert fetched.aborted == (AbortedRange(5, 0),)


# The log start across restarts


def test_the_log_start_is_on_disk_before_a_local_segment_goes(bench: Bench) -> None:
    written: list[int] = []
    bench.set(remote_storage_enable=True)
    bench.open()
    before_write(bench.log.checkpoints.log_starts, lambda: written.append(len(bench.log.view)))
    bench.fill(1, 1, 1)
    bench.log.drop_local_segments_before(2, now_ms=NOW_MS)
    assert written == [3]


def test_a_full_disk_does_not_keep_local_segments_on_it(faulty: FaultyBench) -> None:
    def fail() -> None:
        raise NO_ROOM

    faulty.set(remote_storage_enable=True)
    faulty.open()
    before_write(faulty.log.checkpoints.log_starts, fail)
    faulty.fill(1, 1, 1)
    faulty.log.drop_local_segments_before(2, now_ms=NOW_MS)
    assert faulty.log.local_start_offset == 2


def test_no_local_segment_goes_when_the_log_start_cannot_be_written(faulty: FaultyBench) -> None:
    def fail() -> None:
        raise BROKEN

    faulty.set(remote_storage_enable=True)
    faulty.open()
    before_write(faulty.log.checkpoints.log_starts, fail)
    faulty.fill(1, 1, 1)
    with pytest.raises(DirectoryOffline):
        faulty.log.drop_local_segments_before(2, now_ms=NOW_MS)
    assert faulty.log.local_start_offset == 0


def test_a_reopened_log_keeps_its_start_and_takes_appends_behind_its_end(
    tiered: Bench,
) -> None:
    tiered.reopen(log_start_offset=0)
    assert (tiered.log.log_start_offset, tiered.log.local_start_offset) == (0, 4)
    assert tiered.log.is_start_known
    assert tiered.log.append(make_batch()).base_offset == 7
    assert read_all(tiered.log) == list(range(8))
    assert check_log(tiered.log) == []


def test_without_its_checkpoint_the_log_start_is_not_known(tiered: Bench) -> None:
    tiered.reopen(log_start_offset=0, is_start_known=False)
    log = tiered.log
    assert not log.is_start_known
    assert log.raise_log_start(2) == 2
    assert log.is_start_known
    with pytest.raises(OffsetOutOfRange):
        log.read(start_offset=1)


def test_records_are_not_deleted_up_to_an_offset_that_may_be_gone_already(tiered: Bench) -> None:
    tiered.reopen(log_start_offset=0, is_start_known=False)
    log = tiered.log
    with pytest.raises(Unavailable, match="before 1 yet: only the remote tier has the log start"):
        log.delete_records(1)
    assert not log.is_start_known
    assert log.delete_records(5) == 5
    assert log.is_start_known


def test_a_log_that_is_not_tiered_starts_with_its_first_segment(tiered: Bench) -> None:
    tiered.settings = LogSettings()
    tiered.reopen(log_start_offset=0)
    assert tiered.log.log_start_offset == 4
    assert tiered.log.is_start_known


def test_local_segments_above_the_high_watermark_stay(tiered: Bench) -> None:
    def bases(log: Log) -> list[int]:
        return [segment.base_offset for segment in log.view]

    tiered.log.high_watermark = 5
    with pytest.raises(OffsetOutOfRange, match="high watermark is 5"):
        tiered.log.drop_local_segments_before(6, now_ms=NOW_MS)
    assert bases(tiered.log) == [4, 6]
    tiered.log.high_watermark = 7
    tiered.log.drop_local_segments_before(7, now_ms=NOW_MS)
    assert bases(tiered.log) == [6]
