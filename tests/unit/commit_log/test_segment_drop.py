"""Each sentence of what dropping segments at the log's beginning does."""

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
    read_all,
)
from varve.commit_log import Log
from varve.commit_log.names import log_name
from varve.foundation.errors import DirectoryOffline, InvalidRequest, OffsetOutOfRange

MINUTE = 60_000


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.view]


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Segments at 0, 2, 4 and the active one at 6."""
    bench.open()
    bench.fill(2, 2, 2, 1)
    return bench


def test_whole_segments_below_the_offset_go_and_the_log_starts_there(filled: Bench) -> None:
    old = filled.log.view.closed[:2]
    assert filled.log.drop_segments_before(4, now_ms=NOW_MS) == old
    assert bases(filled.log) == [4, 6]
    assert filled.log.log_start_offset == 4
    assert read_all(filled.log) == [4, 5, 6]
    assert check_log(filled.log) == []
    with pytest.raises(OffsetOutOfRange):
        filled.log.read(start_offset=3)


def test_files_go_after_their_delay_counted_from_the_given_time(filled: Bench) -> None:
    filled.write(0, ".keys", b"")
    filled.log.drop_segments_before(4, now_ms=NOW_MS + 5)
    names = [log_name(0, f"{kind}.deleted") for kind in (".index", ".keys", ".log", ".timeindex")]
    assert filled.names(".deleted")[: len(names)] == names
    filled.log.maintain(NOW_MS + 4 + MINUTE)
    assert filled.names(".deleted")
    filled.log.maintain(NOW_MS + 5 + MINUTE)
    assert filled.names(".deleted") == []
    assert filled.names(".snapshot") == [log_name(4, ".snapshot"), log_name(6, ".snapshot")]


def test_at_the_log_end_a_new_segment_is_begun_and_all_old_ones_go(filled: Bench) -> None:
    dropped = filled.log.drop_segments_before(7, now_ms=NOW_MS)
    assert [segment.base_offset for segment in dropped] == [0, 2, 4, 6]
    assert bases(filled.log) == [7]
    assert filled.log.log_start_offset == 7
    assert filled.log.append(make_batch()).base_offset == 7
    filled.reopen()
    assert read_all(filled.log) == [7]


def test_an_offset_at_which_no_segment_begins_is_refused(filled: Bench) -> None:
    for offset in (1, 5, 8, -1):
        with pytest.raises(InvalidRequest, match="no segment begins there"):
            filled.log.drop_segments_before(offset, now_ms=NOW_MS)


def test_what_lies_above_the_high_watermark_stays(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(2, 2, 1)
    bench.log.advance_high_watermark(3)
    with pytest.raises(OffsetOutOfRange, match="high watermark is 3"):
        bench.log.drop_segments_before(4, now_ms=NOW_MS)
    bench.log.drop_segments_before(2, now_ms=NOW_MS)
    assert bases(bench.log) == [2, 4]


def test_the_log_start_is_written_before_any_file_goes(bench: Bench) -> None:
    seen: list[tuple[int, list[str]]] = []
    bench.open()
    before_write(
        bench.log.checkpoints.log_starts,
        lambda: seen.append((bench.log.log_start_offset, bench.names(".deleted"))),
    )
    bench.fill(2, 2, 1)
    bench.log.drop_segments_before(2, now_ms=NOW_MS)
    assert seen == [(2, [])]


def test_the_epochs_begin_at_the_log_start(bench: Bench) -> None:
    bench.open()
    for epoch in (1, 2, 3):
        bench.log.append(make_batch(), leader_epoch=epoch)
        bench.log.roll()
    bench.log.drop_segments_before(1, now_ms=NOW_MS)
    assert bench.fs.read("data/topic-0/leader-epoch-checkpoint") == b"0\n2\n2 1\n3 2\n"


def test_producers_are_remembered(bench: Bench) -> None:
    bench.open()
    sent = make_batch(producer_id=7, producer_epoch=0, base_sequence=0)
    bench.log.append(sent)
    bench.log.roll()
    bench.log.append(make_batch())
    bench.log.drop_segments_before(1, now_ms=NOW_MS)
    assert bench.log.append(sent).is_duplicate


def test_a_disk_too_full_for_the_checkpoint_is_freed_all_the_same(faulty: FaultyBench) -> None:
    def refuse() -> None:
        raise NO_ROOM

    faulty.open()
    before_write(faulty.log.checkpoints.log_starts, refuse)
    faulty.fill(2, 2, 1)
    faulty.log.drop_segments_before(2, now_ms=NOW_MS)
    assert bases(faulty.log) == [2, 4]


def test_a_broken_disk_takes_the_log_down(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(2, 2, 1)
    faulty.fail_next(BROKEN)
    with pytest.raises(DirectoryOffline):
        faulty.log.drop_segments_before(2, now_ms=NOW_MS)
    faulty.crash(log_start_offset=2)
    assert read_all(faulty.log) == [2, 3, 4]
