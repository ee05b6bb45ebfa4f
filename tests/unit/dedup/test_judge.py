"""What becomes of records, rule by rule and edge by edge."""

import pytest

from tests.support.window_dedup import NOW_MS, Arrival, DedupBench, Judged, make_rules, to_arrivals
from varve.dedup.judge import Judge
from varve.dedup.rules import FUTURE_MS_MAX, DedupRules, Verdict

KEPT, DUPLICATE, LATE = Verdict.KEPT, Verdict.DUPLICATE, Verdict.LATE
FUTURE, MISSING, NO_ID = Verdict.FUTURE, Verdict.MISSING, Verdict.NO_ID
MINUTE = 60_000


def judge(
    *times: int,
    before: int = 10,
    after: int = 10,
    lateness: int = 1_000,
    refresh: bool = False,
    ids: tuple[bytes | None, ...] = (),
) -> list[Verdict]:
    """Records in one chunk, of one id unless told."""
    rules = make_rules(before=before, after=after, lateness=lateness, refresh=refresh)
    return [item.verdict for item in tell(rules, *times, ids=ids)]


def tell(rules: DedupRules, *times: int, ids: tuple[bytes | None, ...] = ()) -> list[Judged]:
    rows = [
        Arrival(offset, ids[offset] if ids else b"x", time) for offset, time in enumerate(times)
    ]
    return DedupBench(rules).chunk(rows)


@pytest.mark.parametrize("scale", [1, 1_000, MINUTE])
def test_both_edges_of_the_window_belong_to_it(scale: int) -> None:
    start, window = 100 * scale, 10 * scale
    rules = make_rules(before=window, after=window, lateness=1_000 * scale)
    for time, verdict in (
        (start + window, DUPLICATE),
        (start + window + 1, KEPT),
        (start - window, DUPLICATE),
        (start - window - 1, KEPT),
    ):
        assert [item.verdict for item in tell(rules, start, time)] == [KEPT, verdict]


def test_before_looks_back_and_after_looks_ahead() -> None:
    assert judge(100, 105, before=5, after=0) == [KEPT, DUPLICATE]
    assert judge(100, 106, before=5, after=0) == [KEPT, KEPT]
    assert judge(100, 99, before=5, after=1) == [KEPT, DUPLICATE]
    assert judge(100, 98, before=5, after=1) == [KEPT, KEPT]


def test_without_after_copies_out_of_order_pass() -> None:
    assert judge(100, 99, before=5, after=0) == [KEPT, KEPT]
    assert judge(100, 100, before=5, after=0) == [KEPT, DUPLICATE]


def test_a_window_of_nothing_is_one_millisecond() -> None:
    assert judge(100, 100, 101, 99, before=0, after=0) == [KEPT, DUPLICATE, KEPT, KEPT]


def test_the_window_is_measured_from_the_copy_that_was_kept() -> None:
    assert judge(100, 110, 120) == [KEPT, DUPLICATE, KEPT]


def test_with_refresh_every_copy_begins_it_anew() -> None:
    assert judge(100, 110, 120, 131, refresh=True) == [KEPT, DUPLICATE, DUPLICATE, KEPT]


def test_a_refreshed_id_is_told_by_the_record_that_was_kept() -> None:
    result = tell(make_rules(refresh=True), 100, 110, 120)
    assert [item.witness for item in result] == [-1, 0, 0]


def test_the_first_that_is_read_wins_not_the_earliest() -> None:
    assert judge(105, 100) == [KEPT, DUPLICATE]


def test_all_kept_copies_count_not_only_the_latest() -> None:
    result = tell(make_rules(), 100, 111, 105)
    assert [item.verdict for item in result] == [KEPT, KEPT, DUPLICATE]
    assert result[2].witness in (0, 1)


def test_three_kept_times_in_one_cell_are_exact() -> None:
    assert judge(105, 103, 101, 104, 116, 115, 113, before=10, after=0) == [
        KEPT,
        KEPT,
        KEPT,
        DUPLICATE,
        KEPT,
        DUPLICATE,
        DUPLICATE,
    ]


def test_records_without_id_are_never_merged_whatever_their_time() -> None:
    later = NOW_MS + FUTURE_MS_MAX + 1
    assert judge(1, 1, -1, later, ids=(None,) * 4) == [NO_ID] * 4


def test_a_record_without_a_time_is_missing_and_moves_nothing() -> None:
    assert judge(5_000, -1, 4_000, 3_999) == [KEPT, MISSING, KEPT, LATE]


def test_the_future_begins_behind_now_and_max_future_and_moves_nothing() -> None:
    edge = NOW_MS + FUTURE_MS_MAX
    assert judge(5_000, edge + 1, 4_000, 3_999) == [KEPT, FUTURE, KEPT, LATE]
    assert judge(5_000, edge, edge - 1_000) == [KEPT, KEPT, KEPT]
    assert judge(edge, edge - 1_001) == [KEPT, LATE]


def test_late_is_more_than_the_lateness_behind_the_stream_time() -> None:
    assert judge(1_000, 950, 949, lateness=50, ids=(b"x", b"y", b"z")) == [KEPT, KEPT, LATE]
    assert judge(1_000, 999, lateness=0) == [KEPT, LATE]


def test_the_record_itself_does_not_make_itself_late() -> None:
    assert judge(0, 1_000_000, lateness=0) == [KEPT, KEPT]


def test_duplicates_and_records_without_id_move_the_stream_time() -> None:
    assert judge(1_000, 1_010, 959, lateness=50) == [KEPT, DUPLICATE, LATE]
    ids = (b"x", None, b"y", b"y")
    assert judge(1_000, 2_000, 1_950, 1_949, lateness=50, ids=ids) == [KEPT, NO_ID, KEPT, LATE]


def test_late_records_are_not_remembered() -> None:
    ids = (b"x", b"y", b"y")
    assert judge(1_000, 900, 900, lateness=50, ids=ids) == [KEPT, LATE, LATE]


def test_at_the_edge_of_lateness_the_whole_window_is_known() -> None:
    rules = make_rules(before=10 * MINUTE, after=10 * MINUTE, lateness=50 * MINUTE)
    bench = DedupBench(rules)
    first = 1_000 * MINUTE
    bench.chunk([Arrival(0, b"x", first)])
    for offset in range(1, 61):
        bench.chunk([Arrival(offset, b"other", first + offset * MINUTE)])
    assert bench.chunk([Arrival(61, b"x", first + 10 * MINUTE)]) == [Judged(DUPLICATE, 0)]
    assert bench.chunk([Arrival(62, b"x", first + 10 * MINUTE - 1)]) == [Judged(LATE, -1)]


def test_ids_are_told_apart_by_every_byte() -> None:
    ids = (b"", b"\0", b"\0\0", b"sixteen bytes!!!", b"sixteen bytes!!!\0", b"sixteen bytes!!")
    assert judge(*[5] * 6, ids=ids) == [KEPT] * 6
    assert judge(*[5] * 12, ids=ids * 2) == [KEPT] * 6 + [DUPLICATE] * 6


def test_a_record_that_comes_again_is_no_duplicate_of_itself() -> None:
    bench = DedupBench(make_rules())
    bench.chunk([Arrival(7, b"x", 100), Arrival(8, b"x", 105)])
    assert bench.chunk([Arrival(7, b"x", 100), Arrival(8, b"x", 105)]) == [
        Judged(KEPT, -1),
        Judged(DUPLICATE, 7),
    ]


def test_judging_alone_changes_nothing() -> None:
    bench = DedupBench(make_rules())
    judge_of = Judge(bench.rules, bench.store)
    chunk = to_arrivals([Arrival(0, b"x", 100)])
    for _ in range(2):
        assert judge_of.judge(chunk, NOW_MS, -1).verdicts.tolist() == [KEPT]


def test_a_chunk_without_records_is_judged() -> None:
    assert DedupBench(make_rules()).chunk([]) == []
