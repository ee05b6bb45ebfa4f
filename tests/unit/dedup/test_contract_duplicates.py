"""docs/how-to/deduplicate.md, duplicates: a test for each sentence."""

import random

from tests.support.dedup_contract import WINDOW, ContractBench, T, make_rules
from varve.dedup.rules import Counts
from varve.records import Record


def passed(*times: int, **rules: int | bool) -> list[int]:
    """The places of the copies that pass, by their times after T."""
    return ContractBench.of([(b"x", T + time) for time in times], **rules).passed()


def test_d7_a_duplicate() -> None:
    """D7 A record is a duplicate if and only if a record with the same id, in the same partition
    and with a lower offset was kept whose time is at most `before` earlier and at most `after`
    later than its own.
    """
    bench = ContractBench(make_rules(before_ms=700, after_ms=300), partitions=2)
    source = random.Random(71)
    kept: list[tuple[int, bytes, int]] = []
    passed_of: dict[int, list[int]] = {0: [], 1: []}
    for number in range(150):
        for partition in range(2):
            identity, time = b"%d" % source.randrange(5), T + source.randrange(20_000)
            bench.put((identity, time), partition=partition)
            before = [item for place, name, item in kept if (place, name) == (partition, identity)]
            if not any(time - 700 <= item <= time + 300 for item in before):
                kept.append((partition, identity, time))
                passed_of[partition].append(number)
    bench.run()
    assert [bench.passed(partition=item) for item in range(2)] == [passed_of[0], passed_of[1]]
    assert 50 < len(kept) < 250


def test_d8_both_edges() -> None:
    """D8 Both bounds are part of the window: copies exactly `before` apart are duplicates, and one
    millisecond further apart the second is kept.
    """
    assert passed(0, WINDOW) == [0]
    assert passed(0, WINDOW + 1) == [0, 1]
    assert passed(0, -WINDOW) == [0]
    assert passed(0, -WINDOW - 1) == [0, 1]


def test_d9_before_and_after() -> None:
    """D9 `before` applies to kept records with an earlier time, `after` to those with a later time:
    with `after` 0 a copy with an earlier time than the kept record is kept too.
    """
    assert passed(0, 500, 501, before_ms=500, after_ms=0) == [0, 2]
    assert passed(0, -1, before_ms=500, after_ms=0) == [0, 1]
    assert passed(0, -300, before_ms=0, after_ms=300) == [0]
    assert passed(0, -301, 1, before_ms=0, after_ms=300) == [0, 1, 2]


def test_d10_a_window_of_nothing() -> None:
    """D10 With a window of 0 only copies of the same millisecond are duplicates."""
    assert passed(0, 0, 1, -1, 0, window=0) == [0, 2, 3]


def test_d11_the_lowest_offset_wins() -> None:
    """D11 The record with the lowest offset is kept, not the one with the earliest time, and
    written records are never withdrawn.
    """
    bench = ContractBench.of([(b"x", T + 500)])
    (written,) = bench.records()
    bench.put((b"x", T))
    assert bench.run() == Counts(kept=1, duplicates=1)
    assert bench.records() == [written]


def test_d12_a_duplicate_prolongs_nothing() -> None:
    """D12 The window is measured from kept records: a duplicate does not extend it."""
    assert passed(0, WINDOW, WINDOW + 1) == [0, 2]


def test_d13_refresh() -> None:
    """D13 With `--refresh` every copy restarts the window: copies are dropped as long as
    consecutive ones are no further apart than the window.
    """
    times = [step * WINDOW for step in range(6)]
    assert passed(*times, times[-1] + WINDOW + 1, is_refreshing=True) == [0, 6]
    assert passed(*times, times[-1] + WINDOW + 1) == [0, 2, 4, 6]


def test_d14_all_kept_records_count() -> None:
    """D14 A record is compared with all kept records of its id, not only with the latest."""
    assert passed(0, 2 * WINDOW, 4 * WINDOW, 1, 2 * WINDOW + 1, 4 * WINDOW + 1) == [0, 1, 2]


def test_d15_values_are_not_compared() -> None:
    """D15 Only the id and the time are compared: a record with the same id and another value is a
    duplicate.
    """
    bench = ContractBench()
    bench.add(Record(b"x", b"3 apples", (("by", b"a"),), T), Record(b"x", b"4 pears", (), T))
    bench.run()
    assert [item.value for item in bench.records()] == [b"3 apples"]


def test_d16_tombstones() -> None:
    """D16 A tombstone is a record like any other: one that follows a record of its key within the
    window is a duplicate.
    """
    bench = ContractBench()
    bench.add(Record(b"x", b"1", (), T), Record(b"x", None, (), T + 1))
    bench.add(Record(b"y", None, (), T), Record(b"y", b"1", (), T + 1))
    bench.run()
    assert [(item.key, item.value) for item in bench.records()] == [(b"x", b"1"), (b"y", None)]
