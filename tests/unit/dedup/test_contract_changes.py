"""docs/how-to/deduplicate.md, after expiry and retention, and changes: a test for each sentence."""

import random
from dataclasses import replace

import pytest

from tests.support.dedup_cases import NOW_MS, OUTPUT, SOURCE, append, draw_records, model_of
from tests.support.dedup_contract import LATENESS, WINDOW, ContractBench, T, make_rules
from varve.dedup.rules import Counts, LatePolicy, NullPolicy
from varve.foundation.errors import InvalidRequest, OffsetOutOfRange

CHANGELOG = f"{OUTPUT}-dedup-changelog"
PROGRESS = f"{OUTPUT}-dedup-progress"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MEMORY = WINDOW + LATENESS


def test_d45_segments_go_as_a_whole() -> None:
    """D45 Ids are deleted from disk in whole time segments, and not before stream time is more than
    `before` plus the lateness past the end of the segment.
    """
    rules = make_rules()
    end = (T // rules.segment_ms + 1) * rules.segment_ms
    bench = ContractBench.of([(b"x", end - 1), (b"y", end)])
    first, _ = bench.segments()
    bench.put((b"z", end - 1 + MEMORY + 1))
    bench.run()
    assert first in bench.segments()
    bench.put((b"z", end - 1 + MEMORY + 2))
    bench.run()
    assert first not in bench.segments()
    assert len(bench.segments()) == 2


def test_d46_a_purge_changes_no_result() -> None:
    """D46 Deleting ids changes no result: a copy within the window of a deleted id is late."""
    bench = ContractBench.of([(b"x", T), (b"other", T + 10 * MEMORY)])
    assert len(bench.segments()) == 1
    bench.put((b"x", T + WINDOW), (b"x", T - WINDOW), (b"x", T + 10 * MEMORY))
    assert bench.run() == Counts(kept=3, late=2)
    rules = make_rules(window=50, lateness_ms=1_200)
    long, records = ContractBench(rules), draw_records(random.Random(46), 900)
    spread = [
        item
        if not 0 <= item.timestamp < NOW_MS
        else replace(item, timestamp=item.timestamp + 300 * n)
        for n, item in enumerate(records)
    ]
    append(long.input, 0, spread)
    long.run(chunk_bytes=2_000)
    assert [item.value for item in long.records()] == model_of(rules, spread).output
    assert len(long.segments()) < 4


def test_d47_deleted_input() -> None:
    """D47 Input that was read may be deleted; if input is deleted before it was read the run ends
    with an error, unless `--skip-lost` continues after it.
    """
    bench = ContractBench.of([(b"x", T), (b"y", T)])
    bench.input.delete_records(before=2)
    bench.put((b"x", T))
    assert bench.run() == Counts(kept=2, duplicates=1)
    bench.put((b"a", T), (b"b", T), (b"x", T))
    bench.input.delete_records(before=5)
    with pytest.raises(OffsetOutOfRange, match=r"begins at offset 5, and was read up to 3.*unread"):
        bench.run()
    assert bench.run(skips_lost=True) == Counts(kept=2, duplicates=2)
    with bench.open(skips_lost=True) as following:
        bench.put((b"gone", T), (b"x", T), (b"c", T))
        bench.input.delete_records(before=7)
        following.run_once()
        assert following.states()[0].counts == Counts(kept=3, duplicates=3)


def test_d48_how_long_the_changelog_keeps() -> None:
    """D48 The changelog retains an entry for `before` plus the lateness plus a day: from its time
    on, or in varve from its append on if it was older than that when it was appended.
    """
    bench = ContractBench()
    bench.put((b"old", NOW_MS - 30 * DAY_MS))
    bench.run()
    clean(bench)
    assert len(bench.records(CHANGELOG)) == 1, "it was too old already when it was written"
    bench.put((b"new", NOW_MS))
    bench.run()
    bench.clock.advance(DAY_MS + MEMORY)
    clean(bench)
    assert b"new" in b"".join(item.key or b"" for item in bench.records(CHANGELOG))
    bench.clock.advance(2)
    clean(bench)
    assert bench.records(CHANGELOG) == []


def test_d49_what_the_changelog_took() -> None:
    """D49 Ids whose changelog entries have expired are forgotten when the state directory is lost
    as well, and not before.
    """
    bench = ContractBench.of([(b"x", T)])
    bench.clock.advance(2 * DAY_MS)
    clean(bench)
    assert bench.records(CHANGELOG) == []
    bench.put((b"x", T))
    assert bench.run() == Counts(kept=1, duplicates=1)
    bench.lose_state()
    bench.put((b"x", T))
    assert bench.run() == Counts(kept=2, duplicates=1)


def clean(bench: ContractBench) -> None:
    """What the broker's upkeep does to the changelog, now."""
    bench.store.clean(CHANGELOG, roll=True)


def test_d50_other_rules() -> None:
    """D50 Another id source, window or refresh setting under the same name is rejected before
    anything changes; under another name the deduplication starts from the beginning.
    """
    bench = ContractBench.of([(b"x", T)])
    with bench.open() as running:
        ends = {item.name: item.offsets(0).end for item in bench.store.topics()}
        for other in (
            make_rules("header:id"),
            make_rules(before_ms=WINDOW + 1),
            make_rules(after_ms=WINDOW - 1),
            make_rules(is_refreshing=True),
        ):
            with pytest.raises(
                InvalidRequest, match=r"cannot continue .* start again with another --name"
            ):
                bench.run(other, state="/other")
        assert {item.name: item.offsets(0).end for item in bench.store.topics()} == ends
        bench.put((b"x", T))
        running.run_once()
    assert bench.run() == Counts(kept=1, duplicates=1)
    assert bench.run(make_rules(is_refreshing=True), name="anew") == Counts(kept=1, duplicates=1)


def test_d51_what_may_change() -> None:
    """D51 Policies, `--lateness` and `--max-future` may change with every run, and apply to the
    records that are read from then on.
    """
    drop = LatePolicy.DROP
    for row, change, expected in (
        ((b"y", T - 1), {"lateness_ms": 0}, Counts(kept=1, late=1)),
        ((b"y", NOW_MS + 501), {"max_future_ms": 500}, Counts(kept=1, future=1)),
        ((b"y", 0), {"late": drop}, Counts(kept=1, late=1)),
        ((b"y", NOW_MS + DAY_MS), {"future": drop}, Counts(kept=1, future=1)),
        ((b"y", -1), {"missing": drop}, Counts(kept=1, missing=1)),
        ((None, T), {"null": NullPolicy.DROP}, Counts(kept=1, no_id=1)),
    ):
        bench = ContractBench.of([(b"x", T)])
        bench.put(row)
        changed = make_rules(**change)
        assert bench.run(changed) == expected
        assert bench.passed() == ([0, 1] if "_ms" in str(change) else [0])


def test_d52_more_lateness() -> None:
    """D52 If the lateness is raised, records that were late before stay late: ids of their windows
    may be missing.
    """
    bench = ContractBench.of([(b"x", T), (b"other", T + 10 * MEMORY)])
    bench.put((b"x", T), (b"x", T + 9 * MEMORY + WINDOW - 1))
    assert bench.run(make_rules(lateness_ms=100 * MEMORY)).late == 2
    bench.put((b"x", T + 10 * MEMORY - LATENESS))
    assert bench.run(make_rules(lateness_ms=100 * MEMORY)) == Counts(kept=3, late=2)


def test_d53_other_topics() -> None:
    """D53 A name belongs to one input topic and one output topic: other topics, and topics that
    were deleted and created again, are rejected.
    """
    bench = ContractBench.of([(b"x", T)])
    bench.store.create_topic("elsewhere")
    with pytest.raises(InvalidRequest, match=r"is from in to out, not from in to elsewhere"):
        bench.run(name=OUTPUT, output="elsewhere")
    with pytest.raises(InvalidRequest, match=r"is from in to out, not from elsewhere to out"):
        bench.run(name=OUTPUT, source="elsewhere")
    bench.store.delete_topic(SOURCE, at_once=True)
    bench.store.create_topic(SOURCE)
    with pytest.raises(InvalidRequest, match=r"topic in was deleted and created again"):
        bench.run()


def test_d54_numbers_of_partitions() -> None:
    """D54 The output is created with the partition count of the input; if the counts differ, also
    because partitions were added to the input, the run is rejected.
    """
    bench = ContractBench(partitions=3)
    bench.run()
    assert {item.partition_count for item in bench.store.topics()} == {3}
    bench.store.create_topic("narrow", partitions=2)
    with pytest.raises(InvalidRequest, match=r"narrow has 2 partitions and the input in has 3"):
        bench.run(output="narrow")
    bench.store.add_partitions(SOURCE, 4)
    with pytest.raises(InvalidRequest, match=r"has 3 partitions and the input in has 4"):
        bench.run()


def test_d55_own_topics_that_were_deleted() -> None:
    """D55 The changelog and the progress topic belong together: if one of them was deleted the run
    is rejected; if both were deleted the deduplication starts from the beginning.
    """
    for lost, left in ((CHANGELOG, PROGRESS), (PROGRESS, CHANGELOG)):
        bench = ContractBench.of([(b"x", T), (b"x", T + 1)])
        bench.store.delete_topic(lost, at_once=True)
        refusal = rf"/d: the deduplication out has topic {left}, but topic {lost} was deleted: .*"
        with pytest.raises(InvalidRequest, match=rf"{refusal} another --name, or delete {left}"):
            bench.run()
        assert lost not in {item.name for item in bench.store.topics()}
        assert bench.run(name="anew") == Counts(kept=1, duplicates=1)
        bench.store.delete_topic(left, at_once=True)
        bench.lose_state()
        assert bench.run() == Counts(kept=1, duplicates=1)
        assert bench.passed() == [0, 0, 0]
