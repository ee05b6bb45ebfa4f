"""Retention, its forecast and selection equal simple models of Kafka's rules (G5)."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.log_facts import Piece, make_facts
from tests.support.retention_model import ModelLog
from varve.cleaning.compaction.cleanable_log import judge_cleanable
from varve.cleaning.retention.forecast import forecast_log
from varve.cleaning.retention.retention import plan_retention
from varve.cleaning.retention.segments import SegmentList

TIMES = st.integers(-1, 60)
LIMITS = st.integers(-1, 40)


@st.composite
def logs(draw: st.DrawFn) -> SegmentList:
    def piece(*, is_last: bool) -> Piece:
        is_empty = is_last and draw(st.booleans())
        offsets = 0 if is_empty else draw(st.integers(1, 4))
        first_append = draw(st.integers(0, 50))
        return Piece(
            offsets=offsets,
            size=0 if is_empty else draw(st.integers(0 if not is_last else 1, 12)),
            newest=-1 if is_empty else draw(TIMES),
            first=draw(TIMES),
            appended=(first_append, first_append + draw(st.integers(0, 9))),
        )

    count = draw(st.integers(1, 6))
    pieces = [piece(is_last=number == count - 1) for number in range(count)]
    first_base = draw(st.integers(0, 5))
    end = first_base + sum(one.offsets for one in pieces)
    high_watermark = draw(st.sampled_from([end, draw(st.integers(first_base, end))]))
    min_lag = draw(st.integers(0, 30))
    return make_facts(
        *pieces,
        first_base=first_base,
        log_start=draw(st.integers(first_base, high_watermark)),
        high_watermark=high_watermark,
        stable=draw(st.integers(first_base, high_watermark)),
        cleanup_policy=draw(st.sampled_from([("delete",), ("compact",), ("compact", "delete")])),
        retention_ms=draw(LIMITS),
        retention_bytes=draw(LIMITS),
        retention_time=draw(st.sampled_from(["bounded", "event", "append"])),
        min_compaction_lag_ms=min_lag,
        max_compaction_lag_ms=draw(st.integers(max(min_lag, 1), 60)),
    )


@given(logs(), st.integers(0, 120))
def test_retention_deletes_what_the_model_deletes(facts: SegmentList, now_ms: int) -> None:
    plan = plan_retention(facts, now_ms)
    found = [one.base_offset for one in plan.segments]
    model = ModelLog(facts)
    assert found == model.run(now_ms)
    assert plan.rolls_active == (len(found) == len(facts.segments))
    if found:
        assert plan.end_offset == model.segments[0].base


@given(logs(), st.integers(0, 80), st.integers(0, 80))
def test_a_forecast_is_what_retention_will_delete(
    facts: SegmentList, now_ms: int, later_ms: int
) -> None:
    rows = forecast_log(facts, now_ms)
    assert [row.segment.base_offset for row in rows] == [one.base_offset for one in facts.segments]
    then_ms = now_ms + later_ms
    due = [
        row.segment.base_offset
        for row in rows
        if row.when_ms is not None and row.when_ms <= then_ms
    ]
    assert due == ModelLog(facts).run(then_ms)


@given(logs(), st.one_of(st.none(), st.integers(0, 30)), st.integers(0, 120))
def test_selection_equals_a_simple_model(
    facts: SegmentList, checkpoint: int | None, now_ms: int
) -> None:
    found = judge_cleanable(facts, checkpoint, now_ms)
    first_dirty_offset = facts.log_start_offset if checkpoint is None else checkpoint
    if first_dirty_offset < facts.log_start_offset or first_dirty_offset > facts.end_offset:
        first_dirty_offset = facts.log_start_offset
    assert found.first_dirty_offset == first_dirty_offset
    spans = [(one.base_offset, one.next_offset, one) for one in facts.segments]
    last = spans[-1][0]

    def home(offset: int) -> int:
        return max((base for base, _, _ in spans if base <= offset), default=spans[0][0])

    protected = [facts.last_stable_offset, last]
    for base, _, one in spans[:-1]:
        lag = facts.settings.min_compaction_lag_ms
        times = one.times()
        newest = times.max_timestamp if times.max_timestamp >= 0 else times.last_append_ms
        if facts.settings.retention_time == "append":
            newest = times.last_append_ms
        elif facts.settings.retention_time == "bounded":
            newest = min(newest, times.last_append_ms)
        if lag > 0 and base >= home(first_dirty_offset) and newest > now_ms - lag:
            protected.append(base)
    first_uncleanable_offset = home(max(first_dirty_offset, min(protected)))
    assert found.first_uncleanable_offset == first_uncleanable_offset
    assert found.clean_bytes == sum(one.size for base, _, one in spans if base < first_dirty_offset)
    assert found.cleanable_bytes == sum(
        one.size
        for base, _, one in spans
        if home(first_dirty_offset) <= base < first_uncleanable_offset
    )
    if found.is_due:
        assert found.cleanable_bytes > 0
