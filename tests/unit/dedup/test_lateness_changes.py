"""A lateness that changes between runs: what is compared is compared with its whole window."""

from tests.support.dedup_cases import NOW_MS
from tests.support.dedup_contract import ContractBench, make_rules
from varve.dedup.rules import Counts

HOUR = 3_600_000
T = NOW_MS - 10 * HOUR
LITTLE = make_rules(before_ms=HOUR, after_ms=HOUR, lateness_ms=HOUR)
MUCH = make_rules(before_ms=HOUR, after_ms=HOUR, lateness_ms=6 * HOUR)
NONE = make_rules(before_ms=HOUR, after_ms=HOUR, lateness_ms=0)
CHANGELOG = "out-dedup-changelog"


def test_records_are_on_time_after_more_lateness_and_less() -> None:
    bench = ContractBench()
    for rules, row in ((LITTLE, (b"a", T)), (MUCH, (b"b", T)), (LITTLE, (b"c", T + HOUR))):
        bench.put(row)
        bench.run(rules)
    bench.put((b"c", T + HOUR), (b"d", T + 2 * HOUR))
    assert bench.run(LITTLE) == Counts(kept=4, duplicates=1)
    assert bench.progress().stream_time_ms == T + 2 * HOUR


def test_what_a_run_without_input_purged_is_late() -> None:
    bench = ContractBench()
    bench.put((b"a", T), (b"z", T + 5 * HOUR))
    bench.run(MUCH)
    bench.run(NONE)
    bench.put((b"a", T), (b"z", T + 5 * HOUR))
    assert bench.run(MUCH) == Counts(kept=2, duplicates=1, late=1)


def test_more_lateness_without_input_purges_nothing() -> None:
    bench = ContractBench()
    bench.put((b"a", T))
    for rules in (LITTLE, MUCH, LITTLE):
        bench.run(rules)
    bench.put((b"a", T))
    assert bench.run(LITTLE) == Counts(kept=1, duplicates=1)


def test_the_changelog_keeps_as_long_as_the_longest_lateness_asks() -> None:
    bench = ContractBench()
    bench.put((b"a", T))
    bench.run(LITTLE)
    before_ms = bench.store.topic(CHANGELOG).settings.retention_ms
    bench.run(MUCH)
    bench.run(NONE)
    assert bench.store.topic(CHANGELOG).settings.retention_ms == before_ms + 5 * HOUR


def test_segments_keep_their_width_so_that_nothing_need_be_restored() -> None:
    bench = ContractBench()
    bench.put((b"a", T))
    bench.run(make_rules(window=1_000, lateness_ms=HOUR))
    bench.clock.advance(6 * 24 * HOUR)
    bench.store.clean(CHANGELOG, roll=True)
    assert bench.records(CHANGELOG) == []
    bench.put((b"a", T))
    assert bench.run(make_rules(window=1_000, lateness_ms=2 * HOUR)) == Counts(kept=1, duplicates=1)
