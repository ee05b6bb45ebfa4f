"""varve's cleaner and Kafka's leave the same batches of the same log, run after run.

Compared are all batches with all fields of their headers, their records, the transaction
indexes, and byte by byte what no codec has a say in. Only the segments that hold them may differ.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.tools.cleaner import NothingToClean
from tests.conformance.tools.cleaning_cases import CASES, Case, live, sightings
from tests.conformance.tools.cleaning_pair import (
    PARTITION,
    CleaningPair,
    PairSettings,
    check_directory,
    open_store,
)
from tests.conformance.tools.our_consumer import consume
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.stored_batches import read_partition
from varve.commit_log import Isolation
from varve.records import Record

pytestmark = pytest.mark.java

TURN_COUNT = 5
SEED_COUNT = 2


@pytest.mark.parametrize("name", CASES)
def test_both_cleaners_leave_the_same(kafka_log: JavaShell, scratch: Path, name: str) -> None:
    seen: set[str] = set()
    for seed in range(SEED_COUNT):
        chance = random.Random(f"{name} {seed}")
        seen |= _clean_by_turns(kafka_log, scratch / str(seed), CASES[name], chance)
    assert seen >= set(CASES[name].expected)


def _clean_by_turns(
    kafka_log: JavaShell, home: Path, case: Case, chance: random.Random
) -> set[str]:
    """Some rounds of appends and cleanings; gives what was seen of the rarer outcomes."""
    pair = CleaningPair(kafka_log, home, case.settings())
    seen: set[str] = set()
    log_start = 0
    begin = case.settings(**{"cleanup.policy": "delete"})
    for number, now_ms in live(pair, case, chance, TURN_COUNT, begin=begin):
        before = read_partition(pair.theirs)
        if case.raises_log_start:
            log_start = chance.choice([base for base in before.batches if base >= log_start])
            pair.raise_log_start(log_start, now_ms)
        try:
            ours, theirs = pair.clean(now_ms)
        except NothingToClean:
            continue
        where = f"{home.name}, round {number}, cleaned at {now_ms}, Kafka: {theirs}"
        assert pair.differences(same_segments=False, from_offset=log_start) == [], where
        assert (ours.first_dirty_offset, ours.end_offset) == (
            theirs.first_dirty_offset,
            theirs.end_offset,
        ), where
        seen |= sightings(before, read_partition(pair.theirs))
    for partition in (pair.ours, pair.theirs):
        assert check_directory(partition.parent, now_ms) == []
    return seen


@pytest.mark.parametrize("name", ["no producers", "transactions", "zstd"])
def test_what_varve_leaves_stale_does_not_change_what_readers_find(
    kafka_log: JavaShell, scratch: Path, name: str
) -> None:
    case = replace(CASES[name], shape=replace(CASES[name].shape, key_count=80, rolls=0.2))
    settings = replace(case.settings(), own={"min.stale.ratio": "0.6"})
    pair = CleaningPair(kafka_log, scratch, settings)
    left_stale = 0
    for _, now_ms in live(pair, case, random.Random(f"{name} stale"), 6):
        left_stale += pair.clean(now_ms)[0].left_stale_bytes
        ours, theirs = pair.read()
        kept = {record.offset for record in ours.records()}
        assert kept >= {record.offset for record in theirs.records()}
        assert _newest(pair.ours, settings, now_ms) == _newest(pair.theirs, settings, now_ms)
    assert left_stale > 0


def _newest(partition: Path, settings: PairSettings, now_ms: int) -> dict[bytes | None, Record]:
    """The table that a reader of committed records makes of a compacted partition."""
    with open_store(partition.parent, settings, now_ms) as store:
        log = store.get(PARTITION)
        found = {one.key: one for _, one in consume(log, Isolation.READ_COMMITTED)}
    return {key: record for key, record in found.items() if record.value is not None}
