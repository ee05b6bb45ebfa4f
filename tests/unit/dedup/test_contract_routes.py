"""docs/how-to/deduplicate.md, verdicts and destinations: a test for each sentence."""

import random
from dataclasses import replace

import pytest

from tests.support.dedup_cases import (
    NOW_MS,
    OUTPUT,
    SIDE,
    SOURCE,
    append,
    draw_records,
    model_of,
    rules_of,
)
from tests.support.dedup_contract import LATENESS, ContractBench, T, make_rules
from varve.dedup.rules import Counts, DedupRules, LatePolicy, NullPolicy, build_rules
from varve.foundation.errors import RecordTooLarge
from varve.records import Record, build_batch

FUTURE = NOW_MS + 2 * 3_600_000
LATE = T - LATENESS - 1
FORWARD, DROP, ASIDE = LatePolicy.FORWARD, LatePolicy.DROP, LatePolicy.SIDE
ROWS = [(b"x", T), (b"l", LATE), (b"f", FUTURE), (b"m", -1), (None, T), (b"x", T)]
"""Kept, late, from the future, without a time, without an id, a duplicate."""


def run(rules: DedupRules) -> tuple[list[int], list[int]]:
    """The numbers of the rows in the output, and in the side topic."""
    bench = ContractBench(rules)
    bench.put(*ROWS)
    bench.run()
    has_side = SIDE in {item.name for item in bench.store.topics()}
    return bench.passed(), bench.passed(SIDE) if has_side else []


def test_d26_the_first_that_fits() -> None:
    """D26 The first of these that applies decides how a record is handled: without an id, without a
    time, from the future, late, a duplicate, kept.
    """
    rows = [(b"x", T), (None, -1), (None, FUTURE), (None, LATE), (None, T), (b"x", -1)]
    bench = ContractBench.of([*rows, (b"x", FUTURE), (b"x", LATE), (b"x", T), (b"y", T)])
    expected = Counts(kept=2, duplicates=1, late=1, future=1, missing=1, no_id=4)
    assert bench.progress().counts == expected


def test_d27_no_id() -> None:
    """D27 A record without an id is forwarded and never treated as a duplicate; `--no-id drop`
    drops it.
    """
    rows = [(None, T), (None, T), (b"x", T), (None, FUTURE)]
    bench = ContractBench.of(rows, late=DROP, future=DROP, missing=DROP)
    assert bench.passed() == [0, 1, 2, 3]
    assert ContractBench.of(rows, null=NullPolicy.DROP).passed() == [2]


def test_d28_late() -> None:
    """D28 `--late` forwards late records, those from the future and those without a time, drops
    them, or sends them to a side topic.
    """
    for policy, output, side in (
        ("forward", [0, 1, 2, 3, 4], []),
        ("drop", [0, 4], []),
        (f"side:{SIDE}", [0, 4], [1, 2, 3]),
    ):
        rules, topic = build_rules("key", window=10_000, lateness=60_000, late=policy)
        assert topic == (SIDE if side else None)
        assert run(rules) == (output, side)


def test_d29_three_policies() -> None:
    """D29 In the library `late`, `future` and `missing` are three policies, one for each of these
    kinds of records.
    """
    assert run(make_rules(late=DROP)) == ([0, 2, 3, 4], [])
    assert run(make_rules(future=DROP)) == ([0, 1, 3, 4], [])
    assert run(make_rules(missing=ASIDE)) == ([0, 1, 2, 4], [3])
    assert run(make_rules(late=ASIDE, future=DROP, missing=FORWARD)) == ([0, 3, 4], [1])


def test_d30_counts() -> None:
    """D30 Every record is counted as exactly one of kept, duplicates, late, future, missing and no
    id, and the counts cover all runs of the deduplication.
    """
    bench = ContractBench(make_rules(late=DROP, null=NullPolicy.DROP))
    bench.put(*ROWS)
    first = bench.run()
    assert first == Counts(kept=1, duplicates=1, late=1, future=1, missing=1, no_id=1)
    bench.put((b"x", T), (b"y", T))
    bench.lose_state()
    assert bench.run() == first + Counts(kept=1, duplicates=1)
    assert bench.progress().counts.total == bench.input.offsets().end


def test_d31_records_stay_as_they_are() -> None:
    """D31 A record in the output or the side topic keeps its key, value, headers and timestamp,
    unless the topic existed before and assigns timestamps itself.
    """
    bench = ContractBench(make_rules(late=ASIDE))
    headers = (("a", b"1"), ("a", None), ("", b""))
    first, copy = Record(b"x", b"first", headers, T), Record(b"x", b"copy", headers, T)
    second, aside = Record(b"y", None, (), T + 7), Record(b"z", b"late", headers, LATE)
    bench.add(first)
    bench.input.append_batch(build_batch([copy, second, aside]), 0)
    bench.run()
    assert bench.records() == [first, second]
    assert bench.records(SIDE) == [aside]
    bench.store.alter_defaults({"message.timestamp.type": "LogAppendTime"})
    bench.run(output="made")
    assert bench.records("made") == [first, second]
    bench.store.create_topic("stamped")
    bench.run(output="stamped")
    assert [item.timestamp for item in bench.records("stamped")] == [NOW_MS, NOW_MS]


def test_d32_partition_and_order() -> None:
    """D32 Records keep their partition and their order: the output and the side topic have them in
    the order of their offsets in the input.
    """
    bench = ContractBench(rules_of(), partitions=3)
    for partition in range(3):
        records = draw_records(random.Random(partition), 90)
        append(bench.input, partition, records)
    bench.run(chunk_bytes=800)
    for partition in range(3):
        options = {item.value: item.offset for item in bench.input.partition(partition).read()}
        for topic in (OUTPUT, SIDE):
            offsets = [options[item.value] for item in bench.records(topic, partition)]
            assert offsets == sorted(set(offsets))
            assert offsets


def test_d33_partitions_do_not_know_each_other() -> None:
    """D33 Partitions are independent: copies in different partitions are all kept."""
    bench = ContractBench(partitions=2)
    for partition in range(2):
        bench.put((b"x", T), (b"x", T), partition=partition)
    bench.put((b"x", NOW_MS), partition=1)
    bench.put((b"y", T), partition=0)
    assert bench.run() == Counts(kept=4, duplicates=2)
    assert [bench.passed(partition=item) for item in range(2)] == [[0, 2], [0, 2]]


def test_d34_committed_records_alone() -> None:
    """D34 Only committed records of the input are processed: aborted records have no effect, and
    processing waits for open transactions.
    """
    bench = ContractBench()
    log = bench.input.partition(0).log

    def write(producer: int, key: bytes, time: int) -> None:
        batch = build_batch(
            [Record(key, b"0", timestamp=time)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(batch)

    write(7, b"x", T + LATENESS)
    log.end_transaction(producer_id=7, producer_epoch=0, committed=False)
    bench.put((b"x", T - 1))
    write(8, b"y", T)
    bench.put((b"z", T))
    assert bench.run() == Counts(kept=1)
    assert bench.progress().stream_time_ms == T - 1
    log.end_transaction(producer_id=8, producer_epoch=0, committed=True)
    assert bench.run() == Counts(kept=3)
    assert [item.key for item in bench.records()] == [b"x", b"y", b"z"]


@pytest.mark.parametrize("chunk_bytes", [1, 700, 1 << 20])
def test_d35_chunks(chunk_bytes: int) -> None:
    """D35 Chunk boundaries do not affect the result: it equals that of processing records one by
    one.
    """
    rules = replace(rules_of(refresh=True), late=FORWARD, future=FORWARD, missing=FORWARD)
    bench = ContractBench(rules)
    records = draw_records(random.Random(35), 200)
    append(bench.input, 0, records)
    bench.run(chunk_bytes=chunk_bytes)
    assert [item.value for item in bench.records()] == model_of(rules, records).output


def test_d36_a_record_that_does_not_fit() -> None:
    """D36 A record that does not fit into a batch of the output ends the run with an error that
    names its partition and offset, and nothing of its chunk is written.
    """
    bench = ContractBench()
    bench.store.create_topic(OUTPUT, settings={"max.message.bytes": 500})
    bench.put((b"x", T))
    assert bench.run() == Counts(kept=1)
    bench.put((b"y", T))
    bench.add(Record(b"z", bytes(600), (), T))
    with pytest.raises(RecordTooLarge, match=rf"{SOURCE}-0, offset 1: the record with offset 2 "):
        bench.run()
    assert bench.passed() == [0]
    assert bench.progress().position == 1
    bench.store.alter_topic(OUTPUT, {"max.message.bytes": 5_000})
    assert bench.run() == Counts(kept=3)
