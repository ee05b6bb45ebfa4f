"""varve's cleaner and Kafka's leave the same batches of the same log, run after run.

Compared are all batches with all fields of their headers, their records, the transaction
indexes, and byte by byte what no codec has a say in. Only the segments that hold them may differ.
"""

import random
from pathlib import Path

import pytest

from conformance.cleaner import NothingToClean
from conformance.cleaning_cases import CASES, Case, draw_turns, sightings
from conformance.cleaning_pair import CleaningPair, check_directory
from conformance.shell import JavaShell
from conformance.stored_batches import read_partition

pytestmark = pytest.mark.java

TURN_COUNT = 5
SEED_COUNT = 2


@pytest.mark.parametrize("name", CASES)
def test_both_cleaners_leave_the_same(kafka_log: JavaShell, scratch: Path, name: str) -> None:
    seen: set[str] = set()
    for seed in range(SEED_COUNT):
        chance = random.Random(f"{name} {seed}")
        seen |= _live(kafka_log, scratch / str(seed), CASES[name], chance)
    assert seen >= set(CASES[name].expected)


def _live(kafka_log: JavaShell, home: Path, case: Case, chance: random.Random) -> set[str]:
    """Some rounds of appends and cleanings; gives what was seen of the rarer outcomes."""
    pair = CleaningPair(kafka_log, home, case.settings())
    seen: set[str] = set()
    log_start = 0
    for number, turn in enumerate(draw_turns(case, chance, TURN_COUNT)):
        if number == 0:
            pair.begin(turn.steps, turn.now_ms, case.settings(**{"cleanup.policy": "delete"}))
        else:
            pair.append(turn.steps, turn.now_ms)
        before = read_partition(pair.theirs)
        if case.raises_log_start:
            log_start = chance.choice([base for base in before.batches if base >= log_start])
            pair.raise_log_start(log_start, turn.now_ms)
        try:
            ours, theirs = pair.clean(turn.now_ms)
        except NothingToClean:
            continue
        where = f"{home.name}, round {number}, cleaned at {turn.now_ms}, Kafka: {theirs}"
        assert pair.differences(same_segments=False, from_offset=log_start) == [], where
        assert (ours.first_dirty_offset, ours.end_offset) == (
            theirs.first_dirty_offset,
            theirs.end_offset,
        ), where
        seen |= sightings(before, read_partition(pair.theirs))
    for partition in (pair.ours, pair.theirs):
        assert check_directory(partition.parent, turn.now_ms) == []
    return seen
