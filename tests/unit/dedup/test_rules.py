"""What the rules of a processor say of sizes, of what may change, and of where records go."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.window_dedup import make_rules
from varve.dedup.rules import (
    SPAN_MS_MAX,
    Counts,
    LatePolicy,
    NullPolicy,
    Route,
    Verdict,
    parse_id_source,
    route,
)
from varve.dedup.topics import DedupTopics
from varve.foundation.errors import InvalidRequest

MINUTE = 60_000


def test_what_is_not_late_is_remembered_with_its_whole_window() -> None:
    rules = make_rules(before=10 * MINUTE, after=5 * MINUTE, lateness=7 * MINUTE)
    assert rules.retention_ms == 17 * MINUTE + 1


def test_a_segment_of_a_long_window_is_one_cell() -> None:
    rules = make_rules(before=10 * MINUTE, after=5 * MINUTE, lateness=10 * MINUTE)
    assert (rules.cell_ms, rules.cells_per_segment) == (15 * MINUTE + 1, 1)
    assert rules.segment_ms == rules.cell_ms


@pytest.mark.parametrize(
    ("before", "after", "lateness"),
    [(0, 0, 0), (0, 0, 24 * 60 * MINUTE), (1_000, 1_000, 60 * MINUTE), (0, 5, SPAN_MS_MAX)],
)
def test_short_windows_share_segments_so_that_these_stay_few(
    before: int, after: int, lateness: int
) -> None:
    rules = make_rules(before=before, after=after, lateness=lateness)
    assert rules.segment_ms >= MINUTE
    assert rules.segment_ms % rules.cell_ms == 0
    assert rules.retention_ms // rules.segment_ms + 2 <= 6


def test_policies_and_lateness_may_change_and_the_meaning_may_not() -> None:
    rules = make_rules()
    same = replace(
        rules, lateness_ms=5, late=LatePolicy.DROP, null=NullPolicy.DROP, max_future_ms=0
    )
    assert same.fingerprint() == rules.fingerprint()
    others = [
        replace(rules, by=parse_id_source("header:id")),
        replace(rules, before_ms=11),
        replace(rules, after_ms=11),
        replace(rules, is_refreshing=True),
    ]
    assert len({item.fingerprint() for item in (rules, *others)}) == 5


@pytest.mark.parametrize("name", ["before_ms", "after_ms", "lateness_ms", "max_future_ms"])
@pytest.mark.parametrize("value", [-1, SPAN_MS_MAX + 1])
def test_spans_out_of_bounds_are_refused(name: str, value: int) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(InvalidRequest, match=f"{name} is {value}"):
        replace(make_rules(), **changed)


def test_counts_tell_each_verdict_and_add_up() -> None:
    verdicts = np.array([*Verdict, Verdict.LATE], np.uint8)
    counts = Counts.of(verdicts)
    assert counts == Counts(kept=1, duplicates=1, late=2, future=1, missing=1, no_id=1)
    assert counts.total == 7
    assert counts + Counts(late=3) == replace(counts, late=5)


def test_policies_tell_where_records_go() -> None:
    verdicts = np.array(list(Verdict), np.uint8)
    output, side, drop = Route.OUTPUT, Route.SIDE, Route.DROP
    assert route(verdicts, make_rules()).tolist() == [output, drop, output, output, output, output]
    rules = replace(
        make_rules(),
        late=LatePolicy.SIDE,
        future=LatePolicy.DROP,
        missing=LatePolicy.FORWARD,
        null=NullPolicy.DROP,
    )
    assert route(verdicts, rules).tolist() == [output, drop, side, drop, output, drop]


def test_topics_of_one_deduplication_differ() -> None:
    for options in (
        {"output": "q-dedup-progress"},
        {"side": "q-dedup-changelog"},
        {"input": "q-dedup-changelog"},
        {"side": "in"},
        {"side": "out"},
    ):
        with pytest.raises(InvalidRequest, match="name another"):
            DedupTopics(**{"input": "in", "output": "out", "name": "q", **options})


def test_a_name_that_is_no_text_names_no_id() -> None:
    with pytest.raises(InvalidRequest, match="is not an id source"):
        parse_id_source("header:\udcff")
