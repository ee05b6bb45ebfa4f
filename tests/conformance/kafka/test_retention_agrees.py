"""varve's retention and Kafka's leave the same segments, records' timestamps ruling both."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.tools.cleaning_cases import DAY_MS, Case, live
from tests.conformance.tools.cleaning_pair import CleaningPair
from tests.conformance.tools.cleaning_script import Shape
from tests.conformance.tools.shell import JavaShell

pytestmark = pytest.mark.java

TURN_COUNT = 5
CLOCKS = {
    "sane clocks": Shape(),
    "records from the future or without a time": Shape(future=0.01, undated=0.5),
}
NO_TIME = {"retention.ms": "-1"}
LIMITS: Mapping[str, Mapping[str, str]] = {
    "a second": {"retention.ms": "1000"},
    "a day": {"retention.ms": str(DAY_MS)},
    "no time at all": {"retention.ms": "0"},
    "a few segments": {**NO_TIME, "retention.bytes": "9000"},
    "no bytes at all": {**NO_TIME, "retention.bytes": "0"},
    "time and size": {"retention.ms": str(DAY_MS), "retention.bytes": "9000"},
    "no limit": NO_TIME,
    "compacted too": {"retention.ms": "1000", "cleanup.policy": "compact,delete"},
    "compacted only": {"retention.ms": "1000", "cleanup.policy": "compact"},
}


@pytest.mark.parametrize("clocks", CLOCKS)
@pytest.mark.parametrize("limit", LIMITS)
def test_both_delete_the_same_segments(
    kafka_log: JavaShell, scratch: Path, limit: str, clocks: str
) -> None:
    # What retention leaves may tell too little of a producer for its next sequence to be taken.
    shape = replace(CLOCKS[clocks], rolls=0.2, producer_count=0)
    case = Case(shape=shape, configs={"cleanup.policy": "delete", **LIMITS[limit]})
    pair = CleaningPair(kafka_log, scratch, case.settings())
    chance = random.Random(f"{limit}, {clocks}")
    may_raise = "delete" in pair.settings.configs["cleanup.policy"]
    for number, now_ms in live(pair, case, chance, TURN_COUNT):
        if may_raise and number == 1:
            pair.raise_log_start(chance.choice(sorted(pair.read()[0].batches)), now_ms)
        _expire(pair, now_ms)
        _expire(pair, now_ms + 800)


def _expire(pair: CleaningPair, now_ms: int) -> None:
    ours, theirs = pair.expire(now_ms)
    deleted = 0 if ours is None else len(ours.segments)
    assert deleted == theirs.deleted
    assert pair.differences() == []
    assert pair.offsets(now_ms) == (theirs.log_start_offset, theirs.log_end_offset)
