"""Which part of a compacted log may be cleaned, and which log is due first."""

import pytest

from tests.support.log_facts import Piece, make_facts
from varve.cleaning.compaction.cleanable_log import (
    CleanableLog,
    CleaningBound,
    judge_cleanable,
)

DAY = 86_400_000
NOW = 100 * DAY
OLD = Piece(newest=NOW - 50 * DAY)
COMPACT = ("compact",)


def test_without_a_checkpoint_the_log_is_dirty_from_its_start() -> None:
    facts = make_facts(OLD, OLD, OLD, cleanup_policy=COMPACT, log_start=3)
    found = judge_cleanable(facts, None, NOW)
    assert (found.first_dirty_offset, found.is_corrected) == (3, False)
    assert (found.first_uncleanable_offset, found.cleanable_bytes) == (20, 200)
    # The first dirty offset splits the first segment, which counts on both sides.
    assert found.clean_bytes == 100


@pytest.mark.parametrize("checkpoint", [2, 31])
def test_a_checkpoint_outside_the_log_is_corrected_to_its_start(checkpoint: int) -> None:
    facts = make_facts(OLD, OLD, OLD, cleanup_policy=COMPACT, log_start=3)
    found = judge_cleanable(facts, checkpoint, NOW)
    assert (found.first_dirty_offset, found.is_corrected) == (3, True)


@pytest.mark.parametrize("checkpoint", [3, 30])
def test_a_checkpoint_at_either_end_of_the_log_stands(checkpoint: int) -> None:
    facts = make_facts(OLD, OLD, OLD, cleanup_policy=COMPACT, log_start=3)
    found = judge_cleanable(facts, checkpoint, NOW)
    assert (found.first_dirty_offset, found.is_corrected) == (checkpoint, False)


def test_clean_and_cleanable_bytes_make_the_ratio() -> None:
    facts = make_facts(
        Piece(size=300, newest=1), Piece(size=50, newest=1), Piece(size=50), OLD,
        cleanup_policy=COMPACT,
    )  # fmt: skip
    found = judge_cleanable(facts, 10, NOW)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (300, 100, 0.25)
    assert not found.is_due


def test_the_ratio_must_be_exceeded_not_met() -> None:
    facts = make_facts(OLD, OLD, OLD, cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.5)
    assert judge_cleanable(facts, 10, NOW).ratio == 0.5
    assert not judge_cleanable(facts, 10, NOW).is_due
    facts = make_facts(OLD, OLD, OLD, cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.49)
    assert judge_cleanable(facts, 10, NOW).is_due


def test_an_undecided_transaction_protects_the_whole_segment_it_began_in() -> None:
    facts = make_facts(OLD, OLD, OLD, OLD, cleanup_policy=COMPACT, stable=15)
    found = judge_cleanable(facts, 0, NOW)
    assert (found.first_uncleanable_offset, found.cleanable_bytes) == (10, 100)
    assert found.blocker is CleaningBound.LAST_STABLE_OFFSET
    assert "offset 15" in found.blocked_by


def test_what_is_not_replicated_is_told_apart_from_an_undecided_transaction() -> None:
    facts = make_facts(OLD, OLD, OLD, OLD, cleanup_policy=COMPACT, high_watermark=15)
    assert "high watermark 15" in judge_cleanable(facts, 0, NOW).blocked_by


def test_a_young_segment_protects_itself_and_all_behind_it() -> None:
    young = Piece(newest=NOW - 1)
    facts = make_facts(OLD, young, OLD, OLD, cleanup_policy=COMPACT, min_compaction_lag_ms=DAY)
    found = judge_cleanable(facts, None, NOW)
    assert (found.first_uncleanable_offset, found.cleanable_bytes) == (10, 100)
    assert found.blocker is CleaningBound.MIN_COMPACTION_LAG
    assert found.blocked_until_ms == NOW - 1 + DAY
    assert judge_cleanable(facts, None, NOW + DAY - 1).first_uncleanable_offset == 30


def test_a_young_segment_before_the_first_dirty_one_protects_nothing() -> None:
    young = Piece(newest=NOW)
    facts = make_facts(young, OLD, OLD, cleanup_policy=COMPACT, min_compaction_lag_ms=DAY)
    assert judge_cleanable(facts, 10, NOW).first_uncleanable_offset == 20


def test_a_future_date_keeps_compaction_away_only_where_events_rule() -> None:
    absurd = Piece(newest=NOW + 900 * DAY, appended=(NOW - 3 * DAY, NOW - 2 * DAY))

    def bound(policy: str) -> int:
        facts = make_facts(
            absurd, OLD,
            cleanup_policy=COMPACT, min_compaction_lag_ms=DAY, retention_time=policy,
        )  # fmt: skip
        return judge_cleanable(facts, None, NOW).first_uncleanable_offset

    assert [bound(policy) for policy in ("bounded", "append", "event")] == [10, 10, 0]


def test_a_lag_beyond_the_maximum_admits_a_log_whatever_its_ratio() -> None:
    facts = make_facts(
        Piece(size=1000, newest=NOW), Piece(size=1, first=NOW - 2 * DAY, newest=NOW), OLD,
        cleanup_policy=COMPACT, max_compaction_lag_ms=DAY,
    )  # fmt: skip
    found = judge_cleanable(facts, 10, NOW)
    assert (found.delay_ms, found.must_clean_now, found.is_due) == (DAY, True, True)
    assert not judge_cleanable(facts, 10, NOW - DAY).must_clean_now


def test_a_forced_log_without_anything_cleanable_is_not_due() -> None:
    facts = make_facts(OLD, OLD, cleanup_policy=COMPACT, max_compaction_lag_ms=DAY, stable=0)
    found = judge_cleanable(facts, None, NOW)
    assert found.must_clean_now
    assert not found.is_due


def test_a_first_timestamp_in_the_future_does_not_hide_a_broken_promise() -> None:
    hiding = Piece(newest=NOW + DAY, first=NOW + DAY, appended=(NOW - 3 * DAY, NOW - 3 * DAY))

    def delay(policy: str) -> int:
        facts = make_facts(
            hiding, OLD,
            cleanup_policy=COMPACT, max_compaction_lag_ms=DAY, retention_time=policy,
        )  # fmt: skip
        return judge_cleanable(facts, None, NOW).delay_ms

    assert [delay(policy) for policy in ("bounded", "append", "event")] == [2 * DAY, 2 * DAY, 0]


def test_an_empty_log_is_skipped() -> None:
    facts = make_facts(Piece(offsets=0, size=0), cleanup_policy=COMPACT)
    found = judge_cleanable(facts, None, NOW)
    assert (found.ratio, found.is_due) == (0.0, False)


def test_broken_promises_come_first_the_longest_broken_before_all() -> None:
    def find(size: int, waited_days: int) -> CleanableLog:
        begun = NOW - waited_days * DAY
        facts = make_facts(
            Piece(size=100, newest=1), Piece(size=size, newest=begun), OLD,
            cleanup_policy=COMPACT, max_compaction_lag_ms=10 * DAY,
        )  # fmt: skip
        return judge_cleanable(facts, 10, NOW)

    dirtiest, broken, dirty, longest_broken, clean = (
        find(900, 1), find(1, 11), find(300, 1), find(1, 15), find(10, 1)
    )  # fmt: skip
    found = sorted([dirtiest, broken, dirty, longest_broken], key=lambda log: log.priority)
    assert found == [dirty, dirtiest, broken, longest_broken]
    assert [log.is_due for log in (*found, clean)] == [True, True, True, True, False]
